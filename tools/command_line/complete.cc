#include "tools/command_line/complete.h"

#include <algorithm>
#include <iterator>

#include "tools/command_line/command_line.h"
#include "tools/command_line/formatter.h"

namespace octile::tools {
namespace {

const CLI::App* subcommand_named(const CLI::App& app, const std::string& word) {
  for (const CLI::App* sub : shown_subcommands(app)) {
    if (sub->get_name() == word) return sub;
  }
  return nullptr;
}

const CLI::Option* option_named(const CLI::App& app, const std::string& word) {
  if (!word.starts_with('-')) return nullptr;
  return app.get_option_no_throw(word.substr(0, word.find('=')));
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }
bool takes_several(const CLI::Option& option) { return option.get_items_expected_max() > 1; }

// Values may follow a comma: what precedes it stays.
std::vector<std::string> values_for(const CLI::Option& option, const std::string& typed) {
  std::vector<std::string> found;
  const Completions values = completions_of(option);
  if (!values) return found;
  const std::size_t last = takes_several(option) ? typed.rfind(',') + 1 : 0;
  for (const std::string& value : values()) {
    if (value.starts_with(typed.substr(last))) found.push_back(typed.substr(0, last) + value);
  }
  return found;
}

std::vector<std::string> option_names(const CLI::App& app, const std::string& typed) {
  std::vector<std::string> found;
  for (const CLI::Option* option : options_of(app)) {
    for (const std::string& name : option->get_lnames()) {
      if (("--" + name).starts_with(typed)) found.push_back("--" + name);
    }
  }
  return found;
}

std::vector<std::string> words_of(const CLI::App& app, const std::string& typed) {
  std::vector<std::string> found;
  for (const CLI::App* sub : shown_subcommands(app)) {
    if (sub->get_name().starts_with(typed)) found.push_back(sub->get_name());
  }
  for (const CLI::Option* option : positionals_of(app)) {
    std::ranges::move(values_for(*option, typed), std::back_inserter(found));
  }
  return found;
}

}  // namespace

std::vector<std::string> complete(const CLI::App& root, const std::vector<std::string>& words) {
  if (words.empty()) return words_of(root, "");
  const CLI::App* app = &root;
  const CLI::Option* pending = nullptr;  // its value comes next
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    if (const CLI::Option* option = option_named(*app, word)) {
      pending = takes_value(*option) && word.find('=') == std::string::npos ? option : nullptr;
      continue;
    }
    if (pending != nullptr) {
      if (!takes_several(*pending)) pending = nullptr;
      continue;
    }
    // `octile help VERB` takes the words of subcommands.
    const CLI::App* from = app->get_name() == "help" ? &root : app;
    if (const CLI::App* sub = subcommand_named(*from, word)) app = sub;
  }
  const std::string& typed = words.back();
  if (typed.starts_with("--") && typed.find('=') != std::string::npos) {
    const CLI::Option* option = option_named(*app, typed);
    if (option == nullptr) return {};
    const std::size_t cut = typed.find('=') + 1;
    std::vector<std::string> found = values_for(*option, typed.substr(cut));
    for (std::string& value : found) value.insert(0, typed.substr(0, cut));
    return found;
  }
  if (typed.starts_with('-')) return option_names(*app, typed);
  if (pending != nullptr) return values_for(*pending, typed);
  if (app->get_name() == "help") return words_of(root, typed);
  return words_of(*app, typed);
}

}  // namespace octile::tools
