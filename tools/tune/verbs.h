// The subcommands of `octile tune`, which read records and search nothing.
#pragma once

#include <functional>
#include <optional>

#include "tools/command.h"

namespace octile::tools {

// Exit status of `merge` if some lines are not records.
inline constexpr int kSomeLinesLeftOut = 3;

// Adds them. The result runs the one that was given and returns its exit status, or nothing
// if none was given.
using TuneVerbs = std::function<std::optional<Result<int>>()>;
TuneVerbs add_tune_verbs(CLI::App& tune);

}  // namespace octile::tools
