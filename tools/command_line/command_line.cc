#include "tools/command_line/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tools/command_line/culprit.h"
#include "tools/command_line/formatter.h"
#include "tools/common/terminal.h"

namespace octile::tools {
namespace {

// Ends the parse with a sentence for main to print.
[[noreturn]] void refuse_value(const std::string& sentence) {
  throw CLI::ValidationError(sentence);
}

template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [last, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || last != text.data() + text.size()) return std::nullopt;
  return number;
}

template <typename Number>
constexpr const char* kNumberRule = std::is_floating_point_v<Number> ? "a number"
                                    : std::is_unsigned_v<Number>     ? "a whole number from 0 on"
                                                                     : "a whole number";

// Validators of CLI11 change nothing and have no text in the help if their description is empty.
void check_each(CLI::Option* option, std::function<void(const std::string&)> check) {
  option->check(CLI::Validator(
      [check = std::move(check)](std::string& text) {
        check(text);
        return std::string();
      },
      ""));
}

void check_not_empty(CLI::Option* option) {
  check_each(option, [option](const std::string& text) {
    if (!text.empty()) return;
    refuse_value(fmt::format("{} is ''; allowed: a text that is not empty", option->get_name()));
  });
}

template <typename Number>
void check_number(CLI::Option* option) {
  check_each(option, [option](const std::string& text) {
    if (parse_number<Number>(text)) return;
    refuse_value(
        fmt::format("{} is '{}'; allowed: {}", option->get_name(), text, kNumberRule<Number>));
  });
}

template <typename Value>
struct NumberOf {
  using Type = Value;
};
template <typename Value>
struct NumberOf<std::optional<Value>> {
  using Type = Value;
};

// Appends a whole number, or "1:256", which stands for 1, 2, 4, ... 256.
template <typename Value>
void append_numbers(const std::string& name, std::string_view part, std::vector<Value>& values) {
  constexpr Value kMost = 0x7fffffff;
  const std::size_t colon = std::min(part.find(':'), part.size());
  const auto first = parse_number<Value>(part.substr(0, colon));
  const auto last = colon == part.size() ? first : parse_number<Value>(part.substr(colon + 1));
  if (!first || !last) {
    refuse_value(
        fmt::format("{} has '{}'; allowed: whole numbers, with a comma between them, and "
                    "ranges such as 1:256, which double",
                    name, part));
  }
  if (colon == part.size()) return values.push_back(*first);
  if (*first < 1 || *last < *first || *last > kMost) {
    refuse_value(
        fmt::format("{} has '{}'; allowed: ranges upwards, from 1 to {}", name, part, kMost));
  }
  for (Value value = *first; value <= *last; value *= 2) values.push_back(value);
}

// Splits "a,b" and converts each part. `name` is the option's, for the sentence.
template <typename Value>
void append_parts(const std::string& name, std::string_view text, std::vector<Value>& values) {
  for (std::string_view rest = text;;) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view part = rest.substr(0, comma);
    if (part.empty()) {
      refuse_value(
          text.empty()
              ? fmt::format("{} is ''; allowed: values with a comma between them", name)
              : fmt::format("{} has '' in '{}'; allowed: values that are not empty, with a comma "
                            "between them",
                            name, text));
    }
    if constexpr (std::is_arithmetic_v<Value>) {
      append_numbers(name, part, values);
    } else {
      values.emplace_back(part);
    }
    if (comma == rest.size()) return;
    rest.remove_prefix(comma + 1);
  }
}

std::map<const CLI::Option*, Completions>& registry() {
  static std::map<const CLI::Option*, Completions> all;
  return all;
}

}  // namespace

bool Option::is_given() const { return option_ != nullptr && option_->count() > 0; }

const Option& Option::show_default() const {
  option_->capture_default_str();
  return *this;
}

const Option& Option::require() const {
  option_->required();
  return *this;
}

const Option& Option::exclude(const Option& other) const {
  option_->excludes(other.option_);
  return *this;
}

const Option& Option::in_range(std::int64_t least, std::int64_t most) const {
  check_each(option_, [option = option_, least, most](const std::string& text) {
    const auto number = parse_number<std::int64_t>(text);
    if (number && *number >= least && *number <= most) return;
    refuse_value(fmt::format("{} is {}; allowed: {} to {}", option->get_name(), text, least, most));
  });
  return *this;
}

const Option& Option::complete_with(Completions values) const {
  registry()[option_] = std::move(values);
  return *this;
}

Completions completions_of(const CLI::Option& option) {
  const auto found = registry().find(&option);
  return found == registry().end() ? Completions() : found->second;
}

std::shared_ptr<CLI::App> new_command_line(const std::string& what, const std::string& version) {
  auto app = std::make_shared<CLI::App>(what, "octile");
  app->set_version_flag("--version", version);
  app->footer(kExitStatus);
  app->formatter(help_formatter(line_width()));
  app->require_subcommand(1);
  return app;
}

Result<std::string> parse(CLI::App& command_line, int argc, const char* const* argv) {
  try {
    command_line.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    std::ostringstream text;
    command_line.exit(asked, text, text);
    return text.str();
  } catch (const CLI::ParseError& error) {
    return fail(ErrorCode::kInvalidArgument, sentence_of(command_line, error));
  }
  if (std::string idle = idle_option(command_line); !idle.empty())
    return fail(ErrorCode::kInvalidArgument, std::move(idle));
  return std::string();
}

CLI::App* add_subcommand(CLI::App& to, const std::string& name, const std::string& what,
                         const std::string& footer) {
  CLI::App* app = to.add_subcommand(name, what);
  app->footer(footer);
  return app;
}

CLI::App* add_group(CLI::App& to, const std::string& name, const std::string& what,
                    const std::string& footer) {
  CLI::App* app = add_subcommand(to, name, what, footer);
  app->require_subcommand(1);
  return app;
}

bool is_given(const CLI::App& subcommand) { return subcommand.parsed(); }

template <typename Value>
Option add_option(CLI::App& app, const std::string& names, Value& value, const std::string& what) {
  CLI::Option* option = app.add_option(names, value, what);
  using Number = typename NumberOf<Value>::Type;
  if constexpr (std::is_arithmetic_v<Number>) {
    check_number<Number>(option);
  } else {
    check_not_empty(option);
  }
  return Option(option);
}

template Option add_option(CLI::App&, const std::string&, std::string&, const std::string&);
template Option add_option(CLI::App&, const std::string&, int&, const std::string&);
template Option add_option(CLI::App&, const std::string&, std::int64_t&, const std::string&);
template Option add_option(CLI::App&, const std::string&, std::optional<std::int64_t>&,
                           const std::string&);
template Option add_option(CLI::App&, const std::string&, std::uint64_t&, const std::string&);
template Option add_option(CLI::App&, const std::string&, double&, const std::string&);
template Option add_option(CLI::App&, const std::string&, std::optional<double>&,
                           const std::string&);
template Option add_option(CLI::App&, const std::string&, std::vector<std::string>&,
                           const std::string&);

Option add_optional_value(CLI::App& app, const std::string& names, double& value,
                          const std::string& what) {
  CLI::Option* option = app.add_option(names, value, what);
  option->expected(0, 1)->capture_default_str();
  return Option(option);
}

Option add_flag(CLI::App& app, const std::string& names, bool& value, const std::string& what) {
  return Option(app.add_flag(names, value, what));
}

template <typename Value>
Option add_list(CLI::App& app, const std::string& names, std::vector<Value>& values,
                const std::string& what) {
  const std::string name = names.substr(names.rfind(',') + 1);
  CLI::Option* option = app.add_option(
      names,
      [&values, name](const CLI::results_t& given) {
        values.clear();
        for (const std::string& text : given) append_parts(name, text, values);
        return true;
      },
      what);
  option->type_name(std::is_arithmetic_v<Value> ? "INT,..." : "TEXT,...");
  option->expected(1, CLI::detail::expected_max_vector_size);
  return Option(option);
}

template Option add_list(CLI::App&, const std::string&, std::vector<std::string>&,
                         const std::string&);
template Option add_list(CLI::App&, const std::string&, std::vector<std::int64_t>&,
                         const std::string&);

}  // namespace octile::tools
