# A room is one top-level folder and one target. Its headers are included as "room/file.h", and a
# target sees only the rooms it names: the include path of a room is a folder that holds nothing but
# a link to that room, so an upward #include fails to compile rather than in review.
include(${CMAKE_CURRENT_LIST_DIR}/octile_precompiled.cmake)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(tl-expected REQUIRED)
find_package(Threads REQUIRED)

add_library(octile_flags INTERFACE)
# The numerics contract leaves no contraction to a compiler: -ffp-contract=off.
set_property(TARGET octile_flags PROPERTY INTERFACE_COMPILE_OPTIONS
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wconversion;-Wsign-conversion;-Wnon-virtual-dtor;-Woverloaded-virtual;-Werror;-ffp-contract=off>
  $<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra;-Wshadow;-Wconversion;-Wstrict-prototypes;-Wpedantic;-Werror;-ffp-contract=off>)
# GCC 12 warns of overlaps, overflows and overreads inside its own std::string and std::vector once they are
# inlined (GCC bugs 105329, 105651 and 107852, mended in 13).
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(octile_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict;-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread>)
endif()
# GCC looks for garbage less often: 5 % of a file's time for 50 MB.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(octile_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=524288>)
endif()
# Messages name files from the top of the tree, and a binary does not depend on where it was built.
target_compile_options(octile_flags INTERFACE -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(OCTILE_SANITIZE)
  # -O1 -g1: a sanitizer on -O0 code runs the reference executor some ten times slower, and its reports
  # need lines, not variables.
  target_compile_options(octile_flags INTERFACE -fsanitize=${OCTILE_SANITIZE} -fno-omit-frame-pointer
                                                -fno-sanitize-recover=all -O1 -g1)
  target_compile_definitions(octile_flags INTERFACE _GLIBCXX_ASSERTIONS)
  # The runtimes wrap dlopen(), so the caller whose RUNPATH counts is the sanitizer's library. The
  # older DT_RPATH of the program still applies.
  target_link_options(octile_flags INTERFACE -fsanitize=${OCTILE_SANITIZE} -Wl,--disable-new-dtags)
endif()

# fmt, compiled once. As headers only, every file compiles the formatter anew (3 of 4 CPU seconds of a
# typical file, 5 of 6 under a sanitizer); as Debian's shared library, a built command would need a package
# that other machines lack. What has to be instantiated is version 9's; others are used as headers only.
if(fmt_VERSION MATCHES "^9\\.")
  add_library(octile_fmt STATIC ${CMAKE_CURRENT_LIST_DIR}/fmt_once.cc)
  target_include_directories(octile_fmt SYSTEM PUBLIC
    $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
  target_link_libraries(octile_fmt PRIVATE octile_flags)
else()
  add_library(octile_fmt INTERFACE)
  target_link_libraries(octile_fmt INTERFACE fmt::fmt-header-only)
endif()

octile_precompiled(octile_room_precompiled HEADERS ${OCTILE_PRECOMPILED_ROOM}
                   LINK octile_fmt tl::expected octile_flags)

# octile_room(<name> SOURCES ... DEPENDS rooms-and-libraries...)
function(octile_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;DEPENDS" ${ARGN})
  octile_include_view(${name} view)
  add_library(octile_${name} STATIC ${ROOM_SOURCES})
  target_include_directories(octile_${name} PUBLIC $<BUILD_INTERFACE:${view}>)
  target_link_libraries(octile_${name} PUBLIC ${ROOM_DEPENDS} PRIVATE octile_flags)
  target_precompile_headers(octile_${name} REUSE_FROM octile_room_precompiled)
endfunction()

# octile_include_view(<room> <variable>): makes the folder that shows only that room. One for all build
# folders: compile lines are then the same in each, and ccache serves one from what another compiled.
function(octile_include_view name variable)
  set(view ${PROJECT_SOURCE_DIR}/build/rooms/${name})
  if(NOT EXISTS ${view}/${name})
    file(MAKE_DIRECTORY ${view})
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${name} ${view}/${name} SYMBOLIC)
  endif()
  set(${variable} ${view} PARENT_SCOPE)
endfunction()
