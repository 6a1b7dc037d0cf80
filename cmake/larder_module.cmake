# larder_precompile(TARGET HEADERS...): these and what nearly all sources include are read once for all sources of the
# target: half of the time to compile is their headers'. Sources include what they need all the same: the
# presets of sanitizers compile without.
function(larder_precompile target)
  if(LARDER_SANITIZE)
    return()
  endif()
  target_precompile_headers(${target} PRIVATE <algorithm> <chrono> <functional> <map> <memory> <mutex> <optional> <span>
                            <string> <string_view> <thread> <unordered_map> <vector> <fmt/format.h> ${ARGN})
endfunction()

# Tests take longer to compile than to run.
set(test_options $<$<CONFIG:Release>:-O1>)
# Libraries of some tests ask for it; what is compiled once has to be the same for all.
set(test_definitions _FILE_OFFSET_BITS=64)
if(LARDER_TESTS)
  find_package(GTest REQUIRED)
endif()

# Once for all programs of tests.
function(larder_precompile_tests)
  if(LARDER_SANITIZE)
    return()
  endif()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/test_headers.cc CONTENT "")
  add_library(larder_test_headers OBJECT ${CMAKE_BINARY_DIR}/test_headers.cc)
  target_link_libraries(larder_test_headers PRIVATE GTest::gtest GTest::gmock fmt::fmt nlohmann_json::nlohmann_json)
  target_compile_options(larder_test_headers PRIVATE ${test_options})
  target_compile_definitions(larder_test_headers PRIVATE ${test_definitions})
  larder_precompile(larder_test_headers <gtest/gtest.h> <gmock/gmock.h> <nlohmann/json.hpp>)
endfunction()

# larder_test_program(NAME LABEL DEPS...): makes a program of GoogleTest's one of the tests.
function(larder_test_program name label)
  target_link_libraries(${name} PRIVATE ${ARGN} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_options(${name} PRIVATE ${test_options})
  if(TARGET larder_test_headers)
    target_precompile_headers(${name} REUSE_FROM larder_test_headers)
  endif()
  target_compile_definitions(${name} PRIVATE ${test_definitions} LARDER_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${label})
endfunction()

# larder_module(NAME DEPS...): the static library of one folder under src/ and, when tests are built,
# NAME_test from its *_test.cc files. Sources are found by name, so that a new file needs no edit here.
# NAME_folders are those in the folder whose sources belong to it, NAME_headers is what else many of them include.
function(larder_module name)
  list(TRANSFORM ${name}_folders REPLACE "(.+)" "${CMAKE_CURRENT_SOURCE_DIR}/\\1/*.cc" OUTPUT_VARIABLE patterns)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc ${patterns})
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  add_library(larder_${name} STATIC ${sources})
  target_link_libraries(larder_${name} PUBLIC ${ARGN})
  larder_precompile(larder_${name} ${${name}_headers})
  if(LARDER_TESTS AND tests)
    add_executable(${name}_test ${tests})
    larder_test_program(${name}_test unit larder_${name})
  endif()
endfunction()
