# Headers of others that many files include, parsed once: that saves 1 CPU second for a file of a room, 2 for one of
# the tests and 3 for one of the command. Headers of ours are left out: an edit of one would compile everything
# anew. A file still includes what it uses: the preset `lint` is without, for clang-tidy and to prove that.
set(OCTILE_PRECOMPILED_ROOM
  <algorithm> <array> <atomic> <bit> <chrono> <cmath> <cstdint> <filesystem> <fstream> <functional> <limits> <map>
  <memory> <mutex> <optional> <random> <set> <span> <string> <string_view> <thread> <utility> <variant> <vector>
  <fmt/format.h> <tl/expected.hpp>)
set(OCTILE_PRECOMPILED_TOOLS ${OCTILE_PRECOMPILED_ROOM} <fmt/chrono.h> <nlohmann/json.hpp>)
set(OCTILE_PRECOMPILED_TESTS ${OCTILE_PRECOMPILED_TOOLS} <gmock/gmock.h> <gtest/gtest.h>)

# octile_precompiled(<name> HEADERS <header>... LINK <target>...): a target for others to name in
# `target_precompile_headers(... REUSE_FROM <name>)`. Their compile options have to be those of the targets
# linked here, or the compiler refuses the header (-Winvalid-pch, an error).
function(octile_precompiled name)
  cmake_parse_arguments(ARG "" "" "HEADERS;LINK" ${ARGN})
  set(empty ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)
  file(CONFIGURE OUTPUT ${empty} CONTENT "")
  add_library(${name} OBJECT ${empty})
  target_link_libraries(${name} PRIVATE ${ARG_LINK})
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
endfunction()
