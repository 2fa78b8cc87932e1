# A room is one top-level folder and one target. Its headers are included as "room/file.h", and a
# target sees only the rooms it names: the include path of a room is a folder that holds nothing but
# a link to that room, so an upward #include fails to compile rather than in review.
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(tl-expected REQUIRED)
find_package(Threads REQUIRED)

add_library(octile_flags INTERFACE)
# The numerics contract leaves no contraction to a compiler: -ffp-contract=off.
set_property(TARGET octile_flags PROPERTY INTERFACE_COMPILE_OPTIONS
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wconversion;-Wsign-conversion;-Wnon-virtual-dtor;-Woverloaded-virtual;-Werror;-ffp-contract=off>
  $<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra;-Wshadow;-Wconversion;-Werror;-ffp-contract=off>)
if(OCTILE_SANITIZE)
  target_compile_options(octile_flags INTERFACE -fsanitize=${OCTILE_SANITIZE} -fno-omit-frame-pointer
                                                -fno-sanitize-recover=all)
  target_link_options(octile_flags INTERFACE -fsanitize=${OCTILE_SANITIZE})
endif()

# octile_room(<name> SOURCES ... DEPENDS rooms-and-libraries...)
function(octile_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;DEPENDS" ${ARGN})
  set(view ${CMAKE_BINARY_DIR}/rooms/${name})
  file(MAKE_DIRECTORY ${view})
  file(CREATE_LINK ${CMAKE_SOURCE_DIR}/${name} ${view}/${name} SYMBOLIC)
  add_library(octile_${name} STATIC ${ROOM_SOURCES})
  target_include_directories(octile_${name} PUBLIC $<BUILD_INTERFACE:${view}>)
  target_link_libraries(octile_${name} PUBLIC ${ROOM_DEPENDS} PRIVATE octile_flags)
endfunction()
