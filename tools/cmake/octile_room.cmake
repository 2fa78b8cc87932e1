# Defines components: a component is one folder and one target. Its headers are included as
# "component/file.h". The include path of a component is a folder that holds only a link to it, so a
# target sees only the components it depends on, and any other #include fails to compile.
include(${CMAKE_CURRENT_LIST_DIR}/octile_precompiled.cmake)
# A project that adds Octile may have made these targets itself, of versions of its own.
set(packages fmt nlohmann_json tl-expected)
set(targets fmt::fmt nlohmann_json::nlohmann_json tl::expected)
foreach(package target IN ZIP_LISTS packages targets)
  if(NOT TARGET ${target})
    find_package(${package} QUIET)
  endif()
  if(NOT TARGET ${target})
    message(FATAL_ERROR "CMake finds no ${package}. On Debian and Ubuntu `tools/setup.sh build` installs what a build "
                        "needs, once, also for `pip install .`.")
  endif()
endforeach()
find_package(Threads REQUIRED)

add_library(octile_flags INTERFACE)
set(werror "$<$<BOOL:${OCTILE_WERROR}>:-Werror>")
# docs/numerics.md allows the compiler no contraction: -ffp-contract=off.
set_property(TARGET octile_flags PROPERTY INTERFACE_COMPILE_OPTIONS
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wconversion;-Wsign-conversion;-Wnon-virtual-dtor;-Woverloaded-virtual;${werror};-ffp-contract=off>
  $<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra;-Wshadow;-Wconversion;-Wstrict-prototypes;-Wpedantic;${werror};-ffp-contract=off>)
# GCC 12 warns of overlaps, overflows, overreads and frees inside its own std::string and std::vector once they are
# inlined (GCC bugs 105329, 105651 and 107852, fixed in 13). It warns of frees under a sanitizer alone.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(octile_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict;-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread>)
  if(OCTILE_SANITIZE)
    target_compile_options(octile_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-free-nonheap-object>)
  endif()
endif()
# GCC collects garbage less often, which saves 5 % of a file's compile time and costs 50 MB.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(octile_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=524288>)
endif()
# Messages name files relative to the top of the tree, and a binary does not depend on the build's location.
target_compile_options(octile_flags INTERFACE -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
# Without a build type and flags of its own, a project that adds Octile has Octile's files optimised all the same.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND NOT OCTILE_SANITIZE)
  foreach(language IN ITEMS C CXX)
    if(NOT CMAKE_${language}_FLAGS MATCHES "(^| )-O")
      separate_arguments(optimised UNIX_COMMAND "${CMAKE_${language}_FLAGS_RELEASE}")
      target_compile_options(octile_flags INTERFACE $<$<COMPILE_LANGUAGE:${language}>:${optimised}>)
    endif()
  endforeach()
endif()
if(OCTILE_SANITIZE)
  # GCC takes variables for uninitialised where a sanitizer's checks are inlined (std::regex, GCC 12).
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(octile_flags INTERFACE -Wno-maybe-uninitialized)
  endif()
  # -O1 -g1: on -O0 code a sanitizer runs the reference executor about ten times slower. Its reports need
  # lines but no variables.
  target_compile_options(octile_flags INTERFACE -fsanitize=${OCTILE_SANITIZE} -fno-omit-frame-pointer
                                                -fno-sanitize-recover=all -O1 -g1)
  target_compile_definitions(octile_flags INTERFACE _GLIBCXX_ASSERTIONS)
  # The runtimes wrap dlopen(), so the RUNPATH of the sanitizer's library counts. The older DT_RPATH of the
  # program still applies.
  target_link_options(octile_flags INTERFACE -fsanitize=${OCTILE_SANITIZE} -Wl,--disable-new-dtags)
endif()

# -O1 for files that neither compute nor are timed, which compiles them in three quarters of the time.
add_library(octile_quick INTERFACE)
target_compile_options(octile_quick INTERFACE $<$<CONFIG:Release,RelWithDebInfo>:-O1>)
# -O0 for files of tests, whose statements run a few times: compiling them costs two thirds of the time at -O1.
add_library(octile_unoptimised INTERFACE)
target_compile_options(octile_unoptimised INTERFACE $<$<CONFIG:Release,RelWithDebInfo>:-O0>)

# Shipped files run on systems with an older libstdc++ than the build's. libgcc_s is left to the system, because the
# static one needs a newer C library; so does std::random_device, which libstdc++'s archive brings and nothing here uses.
#
# Every symbol is resolved when a library or program is loaded, and the table of them is read-only from then on.
add_library(octile_shipped INTERFACE)
target_link_options(octile_shipped INTERFACE -Wl,-z,relro,-z,now)
if(NOT OCTILE_SANITIZE)
  target_link_options(octile_shipped INTERFACE -static-libstdc++ -Wl,--gc-sections)
endif()

# fmt is compiled once. Used as headers only, every file would compile the formatter anew (3 of 4 CPU seconds
# of a typical file, 5 of 6 under a sanitizer). Used as Debian's shared library, a built command would need a
# package that other machines lack. fmt_once.cc instantiates version 9; other versions are used as headers only.
set(fmt_headers $<TARGET_PROPERTY:fmt::fmt,INTERFACE_INCLUDE_DIRECTORIES>)
if(fmt_VERSION MATCHES "^9\\.")
  add_library(octile_fmt STATIC ${CMAKE_CURRENT_LIST_DIR}/fmt_once.cc)
  target_include_directories(octile_fmt SYSTEM PUBLIC ${fmt_headers})
  target_link_libraries(octile_fmt PRIVATE octile_flags)
else()
  add_library(octile_fmt INTERFACE)
  target_include_directories(octile_fmt SYSTEM INTERFACE ${fmt_headers})
  target_compile_definitions(octile_fmt INTERFACE FMT_HEADER_ONLY=1)
endif()

octile_precompiled(octile_room_precompiled HEADERS ${OCTILE_PRECOMPILED_ROOM}
                   LINK octile_fmt tl::expected octile_flags)
octile_precompiled(octile_room_quick_precompiled HEADERS ${OCTILE_PRECOMPILED_ROOM}
                   LINK octile_fmt tl::expected octile_flags octile_quick)

# octile_room(<folder> SOURCES ... DEPENDS components-and-libraries... [QUICK]) defines the component of a folder, named
# from the top of the tree. The target of runtime/base is octile_runtime_base. Its dependencies are defined before it, so
# no circle can be written down: CMake itself lets static libraries depend on each other. QUICK: its files neither
# compute nor run for each call (octile_quick).
function(octile_room folder)
  cmake_parse_arguments(ROOM "QUICK" "" "SOURCES;DEPENDS" ${ARGN})
  octile_include_view(${folder} view)
  string(REPLACE "/" "_" name ${folder})
  foreach(target IN LISTS ROOM_DEPENDS)
    if(target MATCHES "^octile_" AND NOT TARGET ${target})
      message(FATAL_ERROR "${folder} depends on ${target}, which is not below it")
    endif()
  endforeach()
  add_library(octile_${name} STATIC ${ROOM_SOURCES})
  target_include_directories(octile_${name} PUBLIC $<BUILD_INTERFACE:${view}>)
  target_link_libraries(octile_${name} PUBLIC ${ROOM_DEPENDS} PRIVATE octile_flags)
  if(ROOM_QUICK)
    target_link_libraries(octile_${name} PRIVATE octile_quick)
    target_precompile_headers(octile_${name} REUSE_FROM octile_room_quick_precompiled)
  else()
    target_precompile_headers(octile_${name} REUSE_FROM octile_room_precompiled)
  endif()
  octile_compile_together(octile_${name} ${ROOM_SOURCES})
endfunction()

# octile_compile_together(<target> <source>...) lets OCTILE_UNITY compile the files of each folder as one. The names of
# their anonymous namespaces differ therefore within a folder; a test (House) holds that.
function(octile_compile_together target)
  if(NOT OCTILE_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # GCC takes each of the files for a header that leaks the types of its anonymous namespace.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
  foreach(source IN LISTS ARGN)
    # Generated files are compiled alone, also by a later configuration, which finds them.
    cmake_path(IS_PREFIX PROJECT_BINARY_DIR ${source} NORMALIZE generated)
    if(generated)
      continue()
    endif()
    cmake_path(GET source PARENT_PATH folder)
    file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${folder})
    string(REPLACE "/" "_" group ${folder})
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
endfunction()

# octile_include_view(<folder> <variable>) makes the folder that shows only that component, in the build folder. Build
# folders in build/ share build/rooms, so their compile lines are equal and ccache can serve one from another. A link
# is relative if both of its ends are in the source tree, so a copy of the tree reads its own headers.
function(octile_include_view folder variable)
  string(REPLACE "/" "_" name ${folder})
  cmake_path(IS_PREFIX OCTILE_OWN_BUILDS ${PROJECT_BINARY_DIR} NORMALIZE shared)
  cmake_path(GET folder PARENT_PATH parent)
  if(shared)
    set(view ${OCTILE_OWN_BUILDS}/rooms/${name})
    file(RELATIVE_PATH target ${view}/${parent} ${PROJECT_SOURCE_DIR}/${folder})
  else()
    set(view ${PROJECT_BINARY_DIR}/rooms/${name})
    set(target ${PROJECT_SOURCE_DIR}/${folder})
  endif()
  set(link ${view}/${folder})
  set(present "")
  if(IS_SYMLINK ${link})
    file(READ_SYMLINK ${link} present)
  endif()
  if(NOT present STREQUAL target)
    file(MAKE_DIRECTORY ${view}/${parent})
    file(CREATE_LINK ${target} ${link} SYMBOLIC)
  endif()
  set(${variable} ${view} PARENT_SCOPE)
endfunction()
