// octile bench verdict: whether FP8 pays in each layer of a model, measured.
#pragma once

#include <functional>
#include <optional>

#include "generator/core/error.h"
#include "tools/command_line/command_line.h"

namespace octile::tools {

// Adds `bench verdict`. Returns what runs it, or nothing if the command line does not name it.
std::function<std::optional<Status>()> add_bench_verdict(CLI::App& bench);

}  // namespace octile::tools
