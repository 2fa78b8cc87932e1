# A build that is configured again compiles nothing anew. Generated files, which are there then, stay out of the files
# that OCTILE_UNITY compiles as one.
#   cmake -DBUILD=<build folder> -P second_build.cmake
file(STRINGS ${BUILD}/compile_commands.json unities REGEX "\"file\": .*/Unity/unity_")
file(GLOB generated ${BUILD}/templates/*.cc ${BUILD}/runtime/*.cc)
if(NOT generated)
  message(FATAL_ERROR "no generated file is in ${BUILD}: look where they are now")
endif()
foreach(unity IN LISTS unities)
  string(REGEX REPLACE ".*\"file\": \"([^\"]*)\".*" "\\1" unity "${unity}")
  file(STRINGS ${unity} included REGEX "#include")
  foreach(file IN LISTS generated)
    if(included MATCHES "\"${file}\"")
      message(FATAL_ERROR "${unity} includes ${file}")
    endif()
  endforeach()
endforeach()
