# Checks that liboctile.so exports exactly the functions of the public headers. An additional symbol would become
# part of the ABI unnoticed, and a missing one would make a header false.
file(GLOB headers ${HEADERS}/*.h)
set(text "")
foreach(header IN LISTS headers)
  file(READ ${header} one)
  string(APPEND text "${one}")
endforeach()
string(REGEX REPLACE "/\\*([^*]|\\*[^/])*\\*/" "" text "${text}")
string(REGEX MATCHALL "OCTILE_API [^;(]*octile_[a-z0-9_]+\\(" declared "${text}")
list(TRANSFORM declared REPLACE "^.*(octile_[a-z0-9_]+)\\($" "\\1")
if(NOT declared)
  message(FATAL_ERROR "no OCTILE_API function found in ${HEADERS}")
endif()

execute_process(COMMAND ${NM} --dynamic --defined-only --format=posix ${LIBRARY}
                OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]+" lines "${symbols}")
set(exported "")
foreach(line IN LISTS lines)
  string(REGEX MATCH "^[^ @]+" name "${line}")
  if(NOT line MATCHES "^OCTILE_[0-9.]+ A ")  # a version node itself
    list(APPEND exported ${name})
  endif()
endforeach()

set(missing ${declared})
list(REMOVE_ITEM missing ${exported})
set(surplus ${exported})
list(REMOVE_ITEM surplus ${declared})
if(missing OR surplus)
  message(FATAL_ERROR "declared and not exported: ${missing}\nexported and not declared: ${surplus}")
endif()
