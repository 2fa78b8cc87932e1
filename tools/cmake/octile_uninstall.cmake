# Removes what octile_install.cmake has installed: the files, then the folders that it made and that are empty now.
#   cmake -DRECORD=<the folder that was given to octile_install.cmake, or its build folder> -P octile_uninstall.cmake
# As for the installation, DESTDIR of the environment precedes every path.
if(NOT EXISTS "${RECORD}/installed.txt")
  message(FATAL_ERROR "\"${RECORD}/installed.txt\" does not exist: `make install` has installed nothing from this build "
                      "folder, or `make uninstall` has removed it")
endif()
file(STRINGS ${RECORD}/installed.txt files)
foreach(file IN LISTS files)
  set(path "$ENV{DESTDIR}${file}")
  if(EXISTS "${path}" OR IS_SYMLINK "${path}")
    message(STATUS "Removing ${path}")
    file(REMOVE "${path}")
    if(EXISTS "${path}" OR IS_SYMLINK "${path}")
      message(FATAL_ERROR "${path} cannot be removed: who installed it may remove it")
    endif()
  endif()
endforeach()

# A folder comes before those in it, so the last is the innermost.
file(STRINGS ${RECORD}/installed_folders.txt folders)
list(SORT folders)
list(REVERSE folders)
foreach(folder IN LISTS folders)
  set(path "$ENV{DESTDIR}${folder}")
  file(GLOB left LIST_DIRECTORIES true "${path}/*" "${path}/.[!.]*")
  if(IS_DIRECTORY "${path}" AND NOT left)
    message(STATUS "Removing ${path}")
    file(REMOVE_RECURSE "${path}")
  endif()
endforeach()
file(REMOVE ${RECORD}/installed.txt ${RECORD}/installed_folders.txt)
