# larder_module(NAME DEPS...): the static library of one folder under src/ and, when tests are built,
# NAME_test from its *_test.cc files. Sources are found by name, so that a new file needs no edit here.
find_package(GTest QUIET)

function(larder_module name)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  add_library(larder_${name} STATIC ${sources})
  target_link_libraries(larder_${name} PUBLIC ${ARGN})
  if(LARDER_TESTS AND tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE larder_${name} GTest::gtest GTest::gmock GTest::gtest_main)
    target_compile_definitions(${name}_test PRIVATE LARDER_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    add_test(NAME ${name}_test COMMAND ${name}_test)
    set_tests_properties(${name}_test PROPERTIES LABELS unit)
  endif()
endfunction()
