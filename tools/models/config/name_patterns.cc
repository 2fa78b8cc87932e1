#include "tools/models/config/name_patterns.h"

#include <fmt/format.h>

#include <algorithm>
#include <locale>
#include <regex>
#include <utility>

namespace octile::tools {
namespace {

constexpr std::string_view kExpression = "re:";

// Checkpoints of models with several towers name one of them before the layers.
std::string without_tower(std::string name) {
  for (const std::string_view prefix : {"model.", "language_model.", "model."}) {
    if (name.starts_with(prefix)) name.erase(0, prefix.size());
  }
  return name;
}

// Calls `use` for each run of whole parts of a dotted name, until it returns true.
template <typename Use>
bool any_run(std::string_view name, const Use& use) {
  for (std::size_t begin = 0; begin <= name.size();) {
    for (std::size_t end = begin;;) {
      end = std::min(name.find('.', end), name.size());
      if (use(name.substr(begin, end - begin))) return true;
      if (end++ == name.size()) break;
    }
    begin = std::min(name.find('.', begin), name.size()) + 1;
  }
  return false;
}

Status check_simple(const std::string& expression) {
  constexpr std::size_t kMostLetters = 200;
  constexpr auto kMostRepetitions = 8;
  const auto repetitions =
      std::ranges::count_if(expression, [](char c) { return c == '*' || c == '+' || c == '{'; });
  bool nested = false;
  for (std::size_t i = 1; i < expression.size(); ++i) {
    nested = nested || (expression[i - 1] == ')' &&
                        std::string_view("*+{").find(expression[i]) != std::string_view::npos);
  }
  if (!nested && repetitions <= kMostRepetitions && expression.size() <= kMostLetters) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("the pattern 're:{}' is not simple; allowed: up to {} letters with up to "
                          "{} repetitions, none of a group",
                          expression.substr(0, 60), kMostLetters, kMostRepetitions));
}

Result<std::regex> compiled(const std::string& expression) {
  if (Status ok = check_simple(expression); !ok) return tl::unexpected<Error>(ok.error());
  try {
    std::regex regex;
    regex.imbue(std::locale::classic());
    regex.assign(expression);
    return regex;
  } catch (const std::regex_error&) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the pattern 're:{}' is not a regular expression; allowed: one, or a "
                            "name with *",
                            expression));
  }
}

}  // namespace

struct NamePatterns::Expression {
  std::regex regex;

  bool begins(const std::string& name) const {
    return std::regex_search(name, regex, std::regex_constants::match_continuous);
  }
};

bool matches_glob(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

Result<NamePatterns> NamePatterns::read(const std::vector<std::string>& patterns) {
  NamePatterns all;
  for (const std::string& pattern : patterns) {
    if (pattern.starts_with(kExpression)) {
      auto regex = compiled(pattern.substr(kExpression.size()));
      if (!regex) return tl::unexpected<Error>(regex.error());
      all.expressions_.push_back(std::make_shared<const Expression>(Expression{std::move(*regex)}));
    } else if (pattern.find_first_of("*?") == std::string::npos) {
      all.exact_.insert(without_tower(pattern));
    } else {
      all.globs_.push_back(without_tower(pattern));
    }
  }
  return all;
}

bool NamePatterns::match(const std::string& name) const {
  const std::string bare = without_tower(name);
  if (any_run(bare, [&](std::string_view run) { return exact_.contains(std::string(run)); })) {
    return true;
  }
  for (const std::string& glob : globs_) {
    if (any_run(bare, [&](std::string_view run) { return matches_glob(glob, run); })) return true;
  }
  return std::ranges::any_of(expressions_, [&](const auto& expression) {
    return expression->begins("model." + bare) || expression->begins(bare);
  });
}

}  // namespace octile::tools
