# Third-party headers that many files include are parsed once. That saves 1 CPU second for each file of a component,
# 2 for one of the tests and 3 for one of the command. Octile's own headers are left out, because an edit of one
# would recompile everything. A file still includes what it uses: the preset `lint`, which has no precompiled header,
# proves that and serves clang-tidy.
set(OCTILE_PRECOMPILED_ROOM
  <algorithm> <array> <atomic> <bit> <chrono> <cmath> <cstdint> <filesystem> <fstream> <functional> <limits> <map>
  <memory> <mutex> <optional> <random> <set> <span> <string> <string_view> <thread> <utility> <variant> <vector>
  <fmt/format.h> <tl/expected.hpp>)
set(OCTILE_PRECOMPILED_TOOLS ${OCTILE_PRECOMPILED_ROOM} <fmt/chrono.h>)
set(OCTILE_PRECOMPILED_TESTS ${OCTILE_PRECOMPILED_TOOLS} <nlohmann/json.hpp> <gmock/gmock.h> <gtest/gtest.h>)

# octile_precompiled(<name> HEADERS <header>... LINK <target>...) makes a target for
# `target_precompile_headers(... REUSE_FROM <name>)`. The compile options of its users must be those of the targets
# linked here; otherwise the compiler refuses the header (-Winvalid-pch, an error).
function(octile_precompiled name)
  cmake_parse_arguments(ARG "" "" "HEADERS;LINK" ${ARGN})
  set(empty ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)
  file(CONFIGURE OUTPUT ${empty} CONTENT "")
  add_library(${name} OBJECT ${empty})
  target_link_libraries(${name} PRIVATE ${ARG_LINK})
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
endfunction()
