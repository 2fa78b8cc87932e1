// The words that a shell offers for the last word of a command line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace octile::tools {

// `words` are those after `octile`; the last is the one to complete, perhaps empty. Returns the
// subcommands, options or values that begin with it. Nothing means a file.
std::vector<std::string> complete(const CLI::App& root, const std::vector<std::string>& words);

}  // namespace octile::tools
