// Manual pages, from the same definitions as the help. Text that the help has not, such as the
// fields of JSON and examples, is in docs/man/<page>.man, which is embedded.
#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octile::tools {

// Returns the page of the command itself, or of one of its subcommands, in roff.
std::string manual_page(const CLI::App& app);

// Returns "octile" and "octile-VERB" for each subcommand.
std::vector<std::string> manual_pages(const CLI::App& root);

struct ManualText {
  std::string_view page;  // "octile-cache"
  std::string_view roff;
};
std::span<const ManualText> manual_texts();  // texts of docs/man, which the build embeds

}  // namespace octile::tools
