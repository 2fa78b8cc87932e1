# Documents and examples, side by side as in the source tree, so that links between them hold. The examples that need
# the sources are left out.
install(FILES README.md CHANGELOG.md BENCHMARKS.md FORMAT.md SECURITY.md TYPE DOC COMPONENT development)
install(DIRECTORY docs TYPE DOC COMPONENT development PATTERN man EXCLUDE PATTERN fetch_content EXCLUDE)

# `make package` makes the following of an installation: three Debian packages, whose dependencies dpkg-shlibdeps finds,
# and an archive of all of it that runs wherever it is unpacked.
set(CPACK_PACKAGE_NAME octile)
set(CPACK_PACKAGE_CONTACT "The Octile maintainers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_PACKAGE_FILE_NAME octile-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_GENERATOR TGZ DEB)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL library development command)

# The archive holds everything under one folder, and no prefix.
set(CPACK_ARCHIVE_COMPONENT_INSTALL OFF)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME liboctile${PROJECT_VERSION_MAJOR})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_GENERATE_SHLIBS ON)
# NVIDIA's own package of NVRTC. Debian's is older than the one that Octile needs.
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SUGGESTS "cuda-nvrtc-13-0")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME liboctile-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_COMMAND_PACKAGE_NAME octile)
set(CPACK_DEBIAN_COMMAND_PACKAGE_SECTION utils)
# `octile cache export` and `import` open it at run time, `octile cache show --sass` runs nvdisasm.
set(CPACK_DEBIAN_COMMAND_PACKAGE_RECOMMENDS "libarchive13 | libarchive13t64")
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "The shared library, and the programs in which it compiles and tests kernels")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "The header, the CMake package, the pkg-config file, documents and examples")
set(CPACK_COMPONENT_DEVELOPMENT_DEPENDS library)
set(CPACK_COMPONENT_COMMAND_DESCRIPTION "The command, its manual pages and its completion")
set(CPACK_COMPONENT_COMMAND_DEPENDS library)
include(CPack)
