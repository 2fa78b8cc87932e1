// Sentences about a command line that CLI11 refuses.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace octile::tools {

// Returns the sentence about the word that is wrong, with the nearest allowed one, or about the
// missing one. `root` has parsed the command line as far as it could.
std::string sentence_of(const CLI::App& root, const CLI::ParseError& error);

// Returns the sentence about a word that is not a subcommand of `app`.
std::string unknown_subcommand(const CLI::App& root, const CLI::App& app, const std::string& word);

// Returns the sentence about an option that stands before the name of a subcommand, which does not
// read it; empty if there is none.
std::string idle_option(const CLI::App& root);

}  // namespace octile::tools
