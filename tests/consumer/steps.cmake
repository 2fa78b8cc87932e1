# Runs one step of the consumer test. CMakeLists.txt beside this file sets the variables.
set(prefix ${WORK}/prefix)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Runs a program and fails unless it prints this version.
function(expect_version)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE said COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
  if(NOT said STREQUAL "octile ${VERSION}\n")
    message(FATAL_ERROR "said \"${said}\", expected \"octile ${VERSION}\"")
  endif()
endfunction()

if(STEP STREQUAL install)
  file(REMOVE_RECURSE ${prefix})
  run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/staged)
  # The installation is moved, because nothing in it may depend on its location.
  file(RENAME ${WORK}/staged ${prefix})
  # Nothing in an installed file leads the loader to a folder of the build, nor, by an empty element, to the folder
  # that a program is started in.
  file(GLOB files ${prefix}/bin/* ${prefix}/lib/*.so.* ${prefix}/lib/*/*.so.*)
  foreach(file IN LISTS files)
    execute_process(COMMAND ${READELF} --dynamic --wide ${file} OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
    if(NOT dynamic MATCHES "NEEDED" OR dynamic MATCHES "RPATH|RUNPATH")
      message(FATAL_ERROR "${file} has a RUNPATH, or no dynamic section:\n${dynamic}")
    endif()
  endforeach()
  # The command finds the program that compiles beside itself.
  execute_process(COMMAND ${prefix}/bin/octile doctor --json OUTPUT_VARIABLE doctor COMMAND_ERROR_IS_FATAL ANY)
  string(JSON program GET "${doctor}" compiler_program)
  file(REAL_PATH ${prefix}/bin/octile-compiler expected)
  if(NOT program STREQUAL expected)
    message(FATAL_ERROR "octile compiles in \"${program}\", expected \"${expected}\"")
  endif()
elseif(STEP STREQUAL compile)
  # Neither the environment nor the folder of the build helps: what was installed finds NVRTC.
  file(REMOVE_RECURSE ${WORK}/cache)
  run(${CMAKE_COMMAND} -E env -i HOME=${WORK} PATH=/usr/bin:/bin OCTILE_CACHE_DIR=${WORK}/cache
      ${prefix}/bin/octile compile --quantize 16x7168)
  file(GLOB_RECURSE entries ${WORK}/cache/v1/*.octile)
  if(NOT entries)
    message(FATAL_ERROR "no kernel is in ${WORK}/cache")
  endif()
elseif(STEP STREQUAL uninstall)
  # A file that others put there stays.
  file(REMOVE_RECURSE ${WORK}/removed)
  run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/removed)
  file(WRITE ${WORK}/removed/share/doc/octile/others "")
  run(${CMAKE_COMMAND} -DMANIFEST=${BUILD}/install_manifest.txt -P ${UNINSTALL})
  file(GLOB_RECURSE left RELATIVE ${WORK}/removed ${WORK}/removed/*)
  if(NOT left STREQUAL "share/doc/octile/others" OR EXISTS ${WORK}/removed/include/octile)
    message(FATAL_ERROR "left: ${left}")
  endif()
elseif(STEP STREQUAL find_package)
  file(REMOVE_RECURSE ${WORK}/cmake)
  run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/cmake -G ${GENERATOR} -DCMAKE_C_COMPILER=${CC}
      -DCMAKE_PREFIX_PATH=${prefix} -DOCTILE_WANTED=${VERSION})
  run(${CMAKE_COMMAND} --build ${WORK}/cmake)
  expect_version(${WORK}/cmake/consumer)
elseif(STEP STREQUAL pkg_config)
  file(GLOB pc ${prefix}/lib*/pkgconfig ${prefix}/lib/*/pkgconfig)
  set(ENV{PKG_CONFIG_PATH} ${pc})
  # Debian's pkg-config drops -I and -L only of system folders, and none of these folders is one.
  execute_process(COMMAND pkg-config --cflags --libs "octile >= ${VERSION}"
                  OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  execute_process(COMMAND pkg-config --variable=libdir octile OUTPUT_VARIABLE libdir
                  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  run(${CC} ${SOURCE}/main.c -o ${WORK}/by_pkg_config ${flags} -Wl,-rpath,${libdir})
  expect_version(${WORK}/by_pkg_config)
else()
  message(FATAL_ERROR "unknown STEP \"${STEP}\"")
endif()
