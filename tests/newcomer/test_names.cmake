# Every test has a name that a line of a terminal holds and that a person reads: folder, suite and case, and of a case
# with a parameter its name.
#   cmake -DCTEST=<ctest> -DBUILD=<build folder> -P test_names.cmake
execute_process(COMMAND ${CTEST} -N --test-dir ${BUILD} OUTPUT_VARIABLE listed COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "Test +#[0-9]+: [^\n]*" tests "${listed}")
list(LENGTH tests count)
set(failed "")
foreach(test IN LISTS tests)
  string(REGEX REPLACE "^Test +#[0-9]+: " "" name "${test}")
  string(REPLACE " (Disabled)" "" name "${name}")
  string(LENGTH "${name}" length)
  if(length GREATER 130 OR NOT name MATCHES "^[A-Za-z0-9_./-]+$")
    string(APPEND failed "  ${name}\n")
  endif()
endforeach()
if(failed OR count LESS 1000)
  message(FATAL_ERROR "of ${count} tests these have names that cannot be read:\n${failed}")
endif()
