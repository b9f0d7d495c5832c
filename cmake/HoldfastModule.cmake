# One folder is one module. Its objects are compiled once and used twice: as a small static library that the
# module's tests link (hf_NAME), and as a part of the whole library (holdfast).

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# Asserts stay on in release: NDEBUG is never defined. Contraction is off, so that a product and a sum are fused
# only where the source says fma(): the same bits from every compiler.
set(CMAKE_CXX_FLAGS_RELEASE "-O3")
# The flags are the host compiler's: nvcc knows none of them (its own contraction is off by -fmad=false).
add_compile_options("$<$<COMPILE_LANGUAGE:CXX,C>:-Wall;-Wextra;-ffp-contract=off;-march=${HOLDFAST_ARCH}>")
if(HOLDFAST_WERROR)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX,C>:-Werror>)
endif()
if(HOLDFAST_ASAN)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX,C>:-fsanitize=address,undefined;-fno-sanitize-recover=all;-fno-omit-frame-pointer;-g;-O1>")
  add_link_options(-fsanitize=address,undefined)
endif()
if(HOLDFAST_TSAN)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX,C>:-fsanitize=thread;-g;-O1>")
  add_link_options(-fsanitize=thread)
endif()

set_property(GLOBAL PROPERTY HOLDFAST_MODULES "")

# What most files include and what takes longest to read, precompiled once for each set of flags: half of the time that
# a file takes without. Not under a compiler cache, which does better without, and shows what a file forgot to include.
# What comes out of a precompiled header counts as the program's own: gcc 12 then warns of its std::string (PR 105329).
function(holdfast_precompile target kind)
  if(CMAKE_CXX_COMPILER_LAUNCHER)
    return()
  endif()
  if(NOT TARGET hf_headers_${kind})
    file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/headers_${kind}.cc CONTENT "\n")
    add_library(hf_headers_${kind} OBJECT ${CMAKE_BINARY_DIR}/headers_${kind}.cc)
    holdfast_optimise(hf_headers_${kind} ${kind})
    target_precompile_headers(hf_headers_${kind} PRIVATE
      <algorithm> <functional> <map> <memory> <span> <string> <vector>
      <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_split.h> <nlohmann/json.hpp>)
  endif()
  target_precompile_headers(${target} REUSE_FROM hf_headers_${kind})
  holdfast_quiet_strings(${target})
endfunction()

function(holdfast_quiet_strings target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds;-Wno-restrict;-Wno-stringop-overflow;-Wno-stringop-overread;-Wno-maybe-uninitialized>)
endfunction()

# cold: code that waits for people, files and networks gains nothing from -O3, which takes longer to compile.
function(holdfast_optimise target kind)
  if(kind STREQUAL "cold" AND CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  endif()
endfunction()

# holdfast_module(NAME SOURCES a.cc ... [DEPS base ...] [LIBS pkg::lib ...] [COLD] [OWN_FLAGS])
# DEPS name other modules; LIBS name outside libraries. OWN_FLAGS: the module is given compiler flags of its own, which
# no precompiled header fits.
function(holdfast_module name)
  cmake_parse_arguments(M "COLD;OWN_FLAGS" "" "SOURCES;DEPS;LIBS" ${ARGN})
  add_library(hf_${name}_objects OBJECT ${M_SOURCES})
  set(kind hot)
  if(M_COLD)
    set(kind cold)
  endif()
  holdfast_optimise(hf_${name}_objects ${kind})
  if(NOT M_OWN_FLAGS)
    holdfast_precompile(hf_${name}_objects ${kind})
  endif()
  target_include_directories(hf_${name}_objects PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(hf_${name}_objects PUBLIC ${M_LIBS})
  add_library(hf_${name} STATIC $<TARGET_OBJECTS:hf_${name}_objects>)
  target_include_directories(hf_${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(hf_${name} PUBLIC ${M_LIBS})
  foreach(dep ${M_DEPS})
    target_link_libraries(hf_${name}_objects PUBLIC $<TARGET_PROPERTY:hf_${dep},INTERFACE_LINK_LIBRARIES>)
    target_link_libraries(hf_${name} PUBLIC hf_${dep})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY HOLDFAST_MODULES ${name})
  set_property(GLOBAL APPEND PROPERTY HOLDFAST_LIBS ${M_LIBS})
endfunction()

function(holdfast_library)
  get_property(modules GLOBAL PROPERTY HOLDFAST_MODULES)
  get_property(libs GLOBAL PROPERTY HOLDFAST_LIBS)
  list(REMOVE_DUPLICATES libs)
  set(objects "")
  foreach(name ${modules})
    list(APPEND objects $<TARGET_OBJECTS:hf_${name}_objects>)
  endforeach()
  add_library(holdfast STATIC ${objects})
  target_include_directories(holdfast PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}>
                             $<INSTALL_INTERFACE:include> $<INSTALL_INTERFACE:include/holdfast>)
  target_compile_features(holdfast PUBLIC cxx_std_20)
  # Of these only headers are used, and only inside the library: a program that links it needs none of them.
  set(header_only CLI11::CLI11 nlohmann_json::nlohmann_json)
  foreach(lib ${libs})
    if(lib IN_LIST header_only)
      target_link_libraries(holdfast PUBLIC $<BUILD_INTERFACE:${lib}>)
    else()
      target_link_libraries(holdfast PUBLIC ${lib})
    endif()
  endforeach()
endfunction()

# GoogleTest's headers cost two thirds of a test file's compile time: precompiled once for all, except under a compiler
# cache, which does better without. Test code itself gains nothing from -O3.
function(holdfast_test_options name)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  endif()
  if(CMAKE_CXX_COMPILER_LAUNCHER)
    return()
  endif()
  if(NOT TARGET hf_test_headers)
    file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/test_headers.cc CONTENT "\n")
    add_executable(hf_test_headers ${CMAKE_BINARY_DIR}/test_headers.cc)
    target_link_libraries(hf_test_headers PRIVATE GTest::gmock GTest::gtest GTest::gtest_main)
    if(CMAKE_BUILD_TYPE STREQUAL "Release")
      target_compile_options(hf_test_headers PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
    endif()
    target_precompile_headers(hf_test_headers PRIVATE <gmock/gmock.h> <gtest/gtest.h>
      <absl/status/statusor.h> <nlohmann/json.hpp>)
  endif()
  target_precompile_headers(${name} REUSE_FROM hf_test_headers)
  holdfast_quiet_strings(${name})
endfunction()

# holdfast_test(NAME SOURCES a_test.cc ... DEPS module ... [LABELS unit] [TIMEOUT 60] [ARGS ...])
# One binary is one ctest entry. Every test has a label and a bound against hanging.
function(holdfast_test name)
  cmake_parse_arguments(T "" "TIMEOUT" "SOURCES;DEPS;LIBS;LABELS;ARGS" ${ARGN})
  if(NOT T_LABELS)
    set(T_LABELS unit)
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  add_executable(${name} ${T_SOURCES})
  foreach(dep ${T_DEPS})
    target_link_libraries(${name} PRIVATE hf_${dep})
  endforeach()
  target_link_libraries(${name} PRIVATE ${T_LIBS} GTest::gmock GTest::gtest GTest::gtest_main)
  holdfast_test_options(${name})
  add_test(NAME ${name} COMMAND ${name} ${T_ARGS})
  set_tests_properties(${name} PROPERTIES LABELS "${T_LABELS}" TIMEOUT ${T_TIMEOUT})
endfunction()
