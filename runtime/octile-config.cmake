# The file of an installation that find_package(octile) reads.
foreach(component IN LISTS octile_FIND_COMPONENTS)
  if(octile_FIND_REQUIRED_${component})
    set(octile_FOUND FALSE)
    set(octile_NOT_FOUND_MESSAGE "octile has no component \"${component}\": its target octile::octile is all of it")
    return()
  endif()
endforeach()
include(${CMAKE_CURRENT_LIST_DIR}/octile-targets.cmake)
