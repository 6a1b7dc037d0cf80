# `cmake --install build --prefix /usr/local`: the binary, which holds the page, the documents and a unit for systemd.
# Libraries of the build are linked in, and are not installed.
include(GNUInstallDirs)
install(TARGETS larder RUNTIME)
install(FILES README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md")
# Where systemd looks: what belongs to the machine's administrator lies below its prefix.
set(LARDER_UNIT_DIR lib/systemd/system CACHE STRING "Where the unit goes, below the prefix")
# Made when it is installed: only then is the prefix known.
install(CODE "set(LARDER_BIN_DIR \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}\")
  set(LARDER_DOC_DIR \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DOCDIR}\")
  configure_file(\"${CMAKE_SOURCE_DIR}/packaging/larder.service.in\" \"${CMAKE_BINARY_DIR}/larder.service\" @ONLY)")
install(FILES ${CMAKE_BINARY_DIR}/larder.service DESTINATION ${LARDER_UNIT_DIR})
