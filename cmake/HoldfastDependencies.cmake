# What a program that links the library needs: read by this build, and installed beside HoldfastConfig.cmake.
# Debian 12: libabsl-dev libssl-dev librocksdb-dev pkg-config libxxhash-dev libzstd-dev libhiredis-dev libdnnl-dev libtomlplusplus-dev
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(OpenSSL REQUIRED)
# pkg_check_modules below leaves names in the cache that RocksDB's own search for zstd would take for answers.
unset(zstd_INCLUDE_DIRS CACHE)
unset(zstd_LIBRARIES CACHE)
find_package(RocksDB REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(hiredis REQUIRED IMPORTED_TARGET hiredis)
# Its -D_FILE_OFFSET_BITS=64 says nothing on a 64-bit system, and keeps the tests from their precompiled header.
set_target_properties(PkgConfig::hiredis PROPERTIES INTERFACE_COMPILE_OPTIONS "")

# The distribution's dnnl package file asks for OpenCL, which the CPU library does not need: found by name.
find_path(DNNL_INCLUDE_DIR dnnl.h REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
if(NOT TARGET dnnl::cpu)
  add_library(dnnl::cpu INTERFACE IMPORTED)
  target_include_directories(dnnl::cpu INTERFACE ${DNNL_INCLUDE_DIR})
  target_link_libraries(dnnl::cpu INTERFACE ${DNNL_LIBRARY})
endif()
