#include "tools/command_line/culprit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "generator/core/nearest.h"
#include "tools/command_line/formatter.h"

namespace octile::tools {
namespace {

// Words that people try, and what does the job.
constexpr std::array kElsewhere{
    std::pair<std::string_view, std::string_view>{"warm", "octile compile"},
    std::pair<std::string_view, std::string_view>{"benchmark", "octile bench"},
    std::pair<std::string_view, std::string_view>{"clean", "octile cache prune"},
    std::pair<std::string_view, std::string_view>{"delete", "octile cache prune"},
    std::pair<std::string_view, std::string_view>{"remove", "octile cache prune"},
    std::pair<std::string_view, std::string_view>{"generate", "octile emit"},
    std::pair<std::string_view, std::string_view>{"version", "octile --version"},
};

// Returns the innermost subcommand that was given.
const CLI::App& innermost(const CLI::App& app) {
  const auto given = app.get_subcommands();
  return given.empty() ? app : innermost(*given.front());
}

std::string help_of(const CLI::App& app) {
  std::string path = path_of(app);
  return fmt::format("`octile help{}`", path.substr(std::string_view("octile").size()));
}

std::vector<std::string_view> names_of(const std::vector<const CLI::App*>& apps) {
  std::vector<std::string_view> names;
  for (const CLI::App* app : apps) names.push_back(app->get_name());
  return names;
}

// Returns the path of a subcommand of any depth with this name.
std::optional<std::string> path_to(const CLI::App& app, const std::string& name) {
  for (const CLI::App* sub : shown_subcommands(app)) {
    if (sub->get_name() == name) return path_of(*sub);
    if (auto deeper = path_to(*sub, name)) return deeper;
  }
  return std::nullopt;
}

std::string unknown_option(const CLI::App& app, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  std::vector<std::string> known;
  for (const CLI::Option* option : options_of(app)) {
    for (const std::string& long_name : option->get_lnames()) known.push_back("--" + long_name);
  }
  const std::vector<std::string_view> views(known.begin(), known.end());
  const std::string meant = did_you_mean(name, views);
  return fmt::format("`{}` has no option '{}'{}", path_of(app), name,
                     meant.empty() ? fmt::format("; {} lists them", help_of(app)) : meant);
}

// Returns the word that no subcommand took, and the subcommand that was asked.
std::optional<std::pair<const CLI::App*, std::string>> culprit(const CLI::App& app) {
  for (const std::string& word : app.remaining()) return std::pair(&app, word);
  for (const CLI::App* given : app.get_subcommands()) {
    if (auto found = culprit(*given)) return found;
  }
  return std::nullopt;
}

std::string about_word(const CLI::App& root, const CLI::App& app, const std::string& word) {
  if (word.starts_with('-') && word != "-") return unknown_option(app, word);
  if (!shown_subcommands(app).empty()) return unknown_subcommand(root, app, word);
  if (positionals_of(app).empty()) {
    const auto path = path_to(root, word);
    return fmt::format(
        "`{}` takes no argument '{}'; {}", path_of(app), word,
        path ? fmt::format("did you mean `{}`?", *path) : help_of(app) + " lists what it takes");
  }
  return fmt::format(
      "`{}` does not take the argument '{}' beside the others; {} lists what it "
      "takes",
      path_of(app), word, help_of(app));
}

std::string wrong_number_of_values(const CLI::App& app, const std::string& name) {
  const CLI::Option* option = app.get_option_no_throw(name);
  if (option != nullptr && option->count() > 1) {
    return fmt::format("{} is given {} times; allowed: once", name, option->count());
  }
  return fmt::format("{} needs a value; {} says which", name, help_of(app));
}

}  // namespace

std::string unknown_subcommand(const CLI::App& root, const CLI::App& app, const std::string& word) {
  const bool top = app.get_parent() == nullptr;
  std::string text = top ? fmt::format("there is no subcommand '{}'", word)
                         : fmt::format("there is no verb '{}' of `{}`", word, path_of(app));
  for (const auto& [tried, instead] : kElsewhere) {
    if (word == tried) return text + fmt::format("; did you mean `{}`?", instead);
  }
  if (const auto path = path_to(root, word)) {
    return text + fmt::format("; did you mean `{}`?", *path);
  }
  const std::string meant = did_you_mean(word, names_of(shown_subcommands(app)));
  return text + (meant.empty() ? fmt::format("; {} lists them", help_of(app)) : meant);
}

std::string idle_option(const CLI::App& root) {
  for (const CLI::App* given : root.get_subcommands()) {
    const auto below = given->get_subcommands();
    if (below.empty()) continue;
    for (const CLI::Option* option : options_of(*given)) {
      if (option->count() == 0) continue;
      const bool is_known = below.front()->get_option_no_throw(option->get_name()) != nullptr;
      return fmt::format(
          "{} is given before `{}`, where it has no effect{}", option->get_name(),
          below.front()->get_name(),
          is_known ? fmt::format("; allowed: `{} {}`", path_of(*below.front()), option->get_name())
                   : fmt::format("; {} lists what it takes", help_of(*below.front())));
    }
  }
  return {};
}

std::string sentence_of(const CLI::App& root, const CLI::ParseError& error) {
  if (const auto found = culprit(root)) return about_word(root, *found->first, found->second);
  const CLI::App& app = innermost(root);
  const auto verbs = shown_subcommands(app);
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !verbs.empty()) {
    return fmt::format("a subcommand is required: {}", fmt::join(names_of(verbs), ", "));
  }
  std::string sentence = error.what();
  std::ranges::replace(sentence, '\n', ' ');
  const std::string name = sentence.substr(0, sentence.find(": "));
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    return wrong_number_of_values(app, name);
  }
  // Options with values say themselves what they take, so this one is a flag.
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    const std::string flag = sentence.substr(name.size() + 2);
    return fmt::format("{} takes no value; {} explains it", flag.substr(0, flag.find(' ')),
                       help_of(app));
  }
  // CLI11 puts the option's name before a validator's sentence, which begins with it.
  if (const std::string twice = name + ": " + name + " "; sentence.starts_with(twice)) {
    sentence.erase(0, name.size() + 2);
  }
  // A validator's own sentence names the allowed values.
  if (sentence.find("allowed") != std::string::npos) return sentence;
  return fmt::format("{}; {} lists what is allowed", sentence, help_of(app));
}

}  // namespace octile::tools
