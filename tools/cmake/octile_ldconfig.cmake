# Runs as the last step of an installation: into a prefix whose libraries the loader searches, and as root, it renews
# the loader's list. A staged installation (DESTDIR, packages) leaves that to whoever installs the result.
if("$ENV{DESTDIR}" STREQUAL "" AND "${CMAKE_INSTALL_PREFIX}" MATCHES "^/usr(/local)?/?$")
  execute_process(COMMAND id -u OUTPUT_VARIABLE user OUTPUT_STRIP_TRAILING_WHITESPACE)
  find_program(OCTILE_LDCONFIG ldconfig PATHS /sbin /usr/sbin)
  if(user STREQUAL "0" AND OCTILE_LDCONFIG)
    message(STATUS "Running ${OCTILE_LDCONFIG}")
    execute_process(COMMAND ${OCTILE_LDCONFIG} COMMAND_ERROR_IS_FATAL ANY)
  endif()
endif()
