# What `cmake --install` brings to a program that embeds the engine: the headers, one archive of all modules below the
# server, a CMake package (find_package(kvilt), kvilt::kvilt), and kvilt.pc: component `development`. The program is
# component `program`. Neither needs the tests.
#   cmake --build build/release --target kvilt kvilt_archive && cmake --install build/release --prefix PREFIX
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(modules base tensor index tier text template grammar model kernels events peer plan kv policy forward sched engine)
get_property(isas GLOBAL PROPERTY KVILT_KERNEL_ISAS)
foreach(isa ${isas})
  list(APPEND modules kernels_${isa})
endforeach()
foreach(module ${modules})
  list(APPEND objects $<TARGET_OBJECTS:kvilt_${module}>)
endforeach()
if(TARGET xgrammar)
  list(APPEND objects $<TARGET_OBJECTS:xgrammar>)
endif()
add_library(kvilt_archive STATIC ${objects})
add_library(kvilt::kvilt ALIAS kvilt_archive)
set_target_properties(kvilt_archive PROPERTIES OUTPUT_NAME kvilt EXPORT_NAME kvilt LINKER_LANGUAGE CXX)
target_compile_features(kvilt_archive INTERFACE cxx_std_20)
target_include_directories(kvilt_archive INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
# What the archive's objects call, and json_fwd.hpp, which the headers include; kvilt-config.cmake.in finds the same.
find_package(nlohmann_json REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(ICU REQUIRED IMPORTED_TARGET icu-uc)
pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq)
pkg_check_modules(HIREDIS REQUIRED IMPORTED_TARGET hiredis)
target_link_libraries(kvilt_archive INTERFACE
  Threads::Threads nlohmann_json::nlohmann_json fmt::fmt spdlog::spdlog PkgConfig::SODIUM PkgConfig::PCRE2 PkgConfig::ICU PkgConfig::ZMQ PkgConfig::HIREDIS)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/kvilt)
install(TARGETS kvilt RUNTIME COMPONENT program)
install(TARGETS kvilt_archive EXPORT kvilt ARCHIVE COMPONENT development)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/kvilt DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
install(EXPORT kvilt NAMESPACE kvilt:: FILE kvilt-targets.cmake DESTINATION ${package} COMPONENT development)
configure_package_config_file(cmake/kvilt-config.cmake.in ${PROJECT_BINARY_DIR}/kvilt-config.cmake
  INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvilt-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvilt-config.cmake ${PROJECT_BINARY_DIR}/kvilt-config-version.cmake
  DESTINATION ${package} COMPONENT development)
# kvilt.pc names folders from where it lies, so that a prefix may be moved.
cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_INCLUDEDIR BASE_DIRECTORY ${CMAKE_INSTALL_FULL_LIBDIR} OUTPUT_VARIABLE kvilt_include)
configure_file(cmake/kvilt.pc.in ${PROJECT_BINARY_DIR}/kvilt.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvilt.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
