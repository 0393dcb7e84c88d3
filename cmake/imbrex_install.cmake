# imbrex_install.cmake - what `cmake --install` puts where.  The result may be moved as a whole: the
# CMake package, the pkg-config file and the tool find the library relative to themselves.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/imbrex)

# All of it is built by the target imbrex_package, and by a build of everything.  What is not built
# yet is missed before anything is put down, and not half-way.
set(package_files "")
set(package_targets imbrex imbrex_static)
foreach(target imbrex_mpi imbrex_tool)
    if(TARGET ${target})
        list(APPEND package_targets ${target})
    endif()
endforeach()
add_custom_target(imbrex_package DEPENDS ${package_targets})
foreach(target ${package_targets})
    string(APPEND package_files " \"$<TARGET_FILE:${target}>\"")
endforeach()
install(CODE "
    foreach(file${package_files})
        if(NOT EXISTS \"\${file}\")
            message(FATAL_ERROR \"imbrex: nothing was installed, as \${file} is not built yet: \"
                                \"first cmake --build '${PROJECT_BINARY_DIR}'\")
        endif()
    endforeach()")

install(TARGETS imbrex EXPORT imbrex_shared)
install(TARGETS imbrex_static EXPORT imbrex_static)
if(TARGET imbrex_mpi)
    install(TARGETS imbrex_mpi)
endif()
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
# Beside the library, where it finds it: PYTHONPATH names the folder.
install(DIRECTORY python/imbrex DESTINATION ${CMAKE_INSTALL_LIBDIR}/imbrex/python
        FILES_MATCHING PATTERN "*.py" PATTERN "*.pyi" PATTERN "py.typed")
# As they lie here, so that what they say of each other is true there, too.
install(FILES LICENSE README.md CHANGELOG.md OPTIONAL DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs examples OPTIONAL DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(TARGET imbrex_tool)
    install(TARGETS imbrex_tool)
endif()

# What pyproject.toml puts beside the Python files of a wheel, which keeps no links.
install(FILES $<TARGET_FILE:imbrex> DESTINATION lib RENAME $<TARGET_SONAME_FILE_NAME:imbrex>
        COMPONENT python EXCLUDE_FROM_ALL)
if(TARGET imbrex_tool)
    install(TARGETS imbrex_tool COMPONENT python EXCLUDE_FROM_ALL)
endif()

# find_package(imbrex): imbrex::imbrex, and imbrex::imbrex_static where its BLAS is found again.
install(EXPORT imbrex_shared NAMESPACE imbrex:: DESTINATION ${package_dir})
install(EXPORT imbrex_static NAMESPACE imbrex:: DESTINATION ${package_dir})
configure_package_config_file(cmake/imbrex-config.cmake.in imbrex-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(imbrex-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/imbrex-config.cmake
              ${PROJECT_BINARY_DIR}/imbrex-config-version.cmake
              cmake/imbrex_find.cmake cmake/Findimbrex_blas.cmake
        DESTINATION ${package_dir})

# pkg-config imbrex
set(pc_dir ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH pc_to_prefix ${pc_dir} ${CMAKE_INSTALL_PREFIX})
file(RELATIVE_PATH pc_to_lib ${pc_dir} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH pc_to_doc ${pc_dir} ${CMAKE_INSTALL_FULL_DOCDIR})
file(RELATIVE_PATH pc_to_include ${pc_dir} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
set(pc_libs_private "-pthread -lm")
if(imbrex_blas)
    get_target_property(blas_file imbrex::blas IMPORTED_LOCATION)
    get_filename_component(blas_dir ${blas_file} DIRECTORY)
    get_filename_component(blas_name ${blas_file} NAME_WE)
    string(REGEX REPLACE "^lib" "" blas_name ${blas_name})
    set(pc_libs_private "-L${blas_dir} -l${blas_name} ${pc_libs_private}")
endif()
configure_file(cmake/imbrex.pc.in imbrex.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/imbrex.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
