// The help of every subcommand, in lines that fit the terminal.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <memory>
#include <string>

namespace octile::tools {

// Subcommands that are added afterwards inherit it.
std::shared_ptr<CLI::FormatterBase> help_formatter(std::size_t width);

// Returns "octile cache list" for the app of that verb.
std::string path_of(const CLI::App& app);

// Returns what follows an option's name: " TEXT [default]", ", ..." for several values, and what
// it excludes.
std::string value_text(const CLI::Option& option);

// Returns the subcommands of an app that are shown.
std::vector<const CLI::App*> shown_subcommands(const CLI::App& app);
// Returns its options, --help among them, and its positional arguments.
std::vector<const CLI::Option*> options_of(const CLI::App& app);
std::vector<const CLI::Option*> positionals_of(const CLI::App& app);

}  // namespace octile::tools
