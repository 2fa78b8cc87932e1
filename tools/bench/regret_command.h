// octile bench regret: how much faster than the tuner's decisions the fastest of many more
// candidates are.
#pragma once

#include <functional>
#include <optional>

#include "generator/core/error.h"
#include "tools/command_line/command_line.h"

namespace octile::tools {

// Adds `bench regret`. Returns what runs it, or nothing if the command line does not name it.
std::function<std::optional<Status>()> add_bench_regret(CLI::App& bench);

}  // namespace octile::tools
