# The package: find_package(Holdfast), target Holdfast::holdfast. Headers keep their path in the tree below
# include/holdfast, so that they include each other as they do here.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(HOLDFAST_PUBLIC_HEADERS
  kernels/device.h kernels/ops.h
  runtime/base/clock.h runtime/base/digest.h runtime/base/hd.h runtime/base/status.h runtime/base/text.h
  runtime/cli/main.h
  runtime/models/model.h runtime/models/settings.h)
foreach(header ${HOLDFAST_PUBLIC_HEADERS})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${CMAKE_SOURCE_DIR}/${header} DESTINATION include/holdfast/${folder})
endforeach()
install(FILES ${CMAKE_SOURCE_DIR}/runtime/holdfast.h DESTINATION include/holdfast)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Holdfast)
install(TARGETS holdfast EXPORT HoldfastTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS holdfast_program RUNTIME DESTINATION bin)
install(EXPORT HoldfastTargets NAMESPACE Holdfast:: DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/HoldfastConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/HoldfastConfig.cmake.in ${CMAKE_BINARY_DIR}/HoldfastConfig.cmake
                              INSTALL_DESTINATION ${package})
install(FILES ${CMAKE_BINARY_DIR}/HoldfastConfig.cmake ${CMAKE_BINARY_DIR}/HoldfastConfigVersion.cmake
              ${CMAKE_SOURCE_DIR}/cmake/HoldfastDependencies.cmake DESTINATION ${package})
