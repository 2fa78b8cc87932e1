# Installs a build and records what that adds to the system, for octile_uninstall.cmake:
#   cmake -DBUILD=<build folder> -DPREFIX=<folder> -P octile_install.cmake
# <build folder>/installed.txt gets the files, installed_folders.txt the folders that were not there before; RECORD names
# another folder for the two. As always with CMake, DESTDIR of the environment precedes every path.
cmake_path(ABSOLUTE_PATH BUILD)
if(NOT RECORD)
  set(RECORD ${BUILD})
endif()
cmake_path(ABSOLUTE_PATH PREFIX)

# An installation into an empty folder says which files there are.
set(destination "$ENV{DESTDIR}")
set(ENV{DESTDIR} ${BUILD}/staged)
file(REMOVE_RECURSE ${BUILD}/staged)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX}
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE_RECURSE ${BUILD}/staged)
file(STRINGS ${BUILD}/install_manifest.txt files)
set(ENV{DESTDIR} "${destination}")

# Files that an earlier installation has made and this one finds still belong to the installation.
set(folders "")
if(EXISTS ${RECORD}/installed_folders.txt)
  file(STRINGS ${RECORD}/installed_folders.txt folders)
endif()
foreach(file IN LISTS files)
  cmake_path(GET file PARENT_PATH folder)
  while(NOT EXISTS "${destination}${folder}")
    list(APPEND folders ${folder})
    cmake_path(GET folder PARENT_PATH folder)
  endwhile()
endforeach()
list(REMOVE_DUPLICATES folders)

execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX} COMMAND_ERROR_IS_FATAL ANY)
list(JOIN files "\n" text)
file(WRITE ${RECORD}/installed.txt "${text}\n")
list(JOIN folders "\n" text)
file(WRITE ${RECORD}/installed_folders.txt "${text}\n")
