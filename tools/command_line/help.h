// octile help: the help and the manual page of a subcommand; and what shells ask for to complete.
#pragma once

#include "tools/command_line/command_line.h"

namespace octile::tools {

Command add_help(CLI::App& root);
// A subcommand that the help does not show: `octile complete -- WORDS...`.
Command add_complete(CLI::App& root);

}  // namespace octile::tools
