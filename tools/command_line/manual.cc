#include "tools/command_line/manual.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "generator/core/ascii.h"
#include "generator/core/device_spec.h"
#include "octile/octile.h"
#include "runtime/base/environment.h"
#include "tools/command_line/command_line.h"
#include "tools/command_line/formatter.h"

namespace octile::tools {
namespace {

// Returns the text for roff: a hyphen that can be copied, no control line, no escape.
std::string roff(std::string_view text) {
  std::string out;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
    line_begins = c == '\n';
  }
  return out;
}

std::string hyphenated(const CLI::App& app) {
  std::string name = path_of(app);
  std::ranges::replace(name, ' ', '-');
  return name;
}

// The description in the manual is a sentence.
std::string sentence(std::string text) {
  if (text.empty()) return text;
  text[0] = to_upper(text[0]);
  if (!text.ends_with('.')) text += '.';
  return text;
}

std::string names_text(const CLI::Option& option) {
  if (option.get_positional()) return "\\fI" + roff(option.get_name(true)) + "\\fR";
  std::string text;
  for (const std::string& name : option.get_snames()) text += "\\fB\\-" + roff(name) + "\\fR, ";
  for (const std::string& name : option.get_lnames()) text += "\\fB\\-\\-" + roff(name) + "\\fR, ";
  return text.substr(0, text.size() - 2);
}

std::string option_entry(const CLI::Option& option) {
  std::string text = ".TP\n" + names_text(option);
  if (!option.get_positional() && option.get_items_expected_max() > 0)
    text += " \\fI" + roff(option.get_type_name()) + "\\fR";
  text += "\n" + roff(sentence(option.get_description())) + "\n";
  if (!option.get_default_str().empty())
    text += fmt::format("The default is {}.\n", roff(option.get_default_str()));
  return text;
}

std::string options_text(const CLI::App& app) {
  std::string text;
  for (const CLI::Option* option : positionals_of(app)) text += option_entry(*option);
  const bool is_section = app.get_parent() != nullptr && app.get_parent()->get_parent() != nullptr;
  for (const CLI::Option* option : options_of(app)) {
    if (!is_section || option != app.get_help_ptr()) text += option_entry(*option);
  }
  return text;
}

std::string synopsis(const CLI::App& app) {
  std::string text = ".B " + roff(path_of(app)) + "\n";
  if (!options_of(app).empty()) text += ".RI [ options ]\n";
  for (const CLI::Option* option : positionals_of(app)) {
    text += fmt::format(".I {}{}\n", roff(option->get_name(true)),
                        option->get_items_expected_max() > 1 ? " ..." : "");
  }
  if (!shown_subcommands(app).empty())
    text += app.get_require_subcommand_min() > 0 ? ".I command\n" : ".RI [ command ]\n";
  return text;
}

// The page of a group explains exit statuses; a section repeats only its own.
std::string footer_text(const CLI::App& app) {
  const bool is_section = app.get_parent() != nullptr && app.get_parent()->get_parent() != nullptr;
  if (is_section && app.get_footer() == kExitStatus) return {};
  return app.get_footer().empty() ? std::string() : ".PP\n" + roff(app.get_footer()) + "\n";
}

// The subcommands of the command itself have pages of their own; those of a subcommand have a
// section of its page.
std::string commands_text(const CLI::App& app) {
  const auto subcommands = shown_subcommands(app);
  if (subcommands.empty()) return {};
  std::string text = ".SH COMMANDS\n";
  const bool is_root = app.get_parent() == nullptr;
  for (const CLI::App* sub : subcommands) {
    if (is_root) {
      text += fmt::format(".TP\n.BR {} (1)\n{}\n", roff(hyphenated(*sub)),
                          roff(sentence(sub->get_description())));
      continue;
    }
    text +=
        fmt::format(".SS {}\n{}\n{}{}", roff(path_of(*sub)), roff(sentence(sub->get_description())),
                    options_text(*sub), footer_text(*sub));
  }
  return text;
}

std::string environment_text() {
  std::string text = ".SH ENVIRONMENT\n";
  for (const EnvironmentVariable& variable : environment_variables()) {
    text += fmt::format(".TP\n.B {}\n{}\n", roff(variable.name),
                        roff(sentence(std::string(variable.meaning))));
  }
  return text +
         fmt::format(".PP\nA switch takes {}. A size takes {}. OCTILE_TUNING takes {}.\n",
                     roff(kSwitchRule), roff(kBytesRule), roff(kTuningRule)) +
         "Any other value, and a variable that begins with OCTILE_ and is not among these, is "
         "named in a warning. A command that runs with more rights than its caller (setuid) reads "
         "none of them.\n";
}

std::string_view own_text(const std::string& page) {
  for (const ManualText& text : manual_texts()) {
    if (text.page == page) return text.roff;
  }
  return {};
}

// The DESCRIPTION of a page's own text precedes the options, the rest follows.
std::pair<std::string_view, std::string_view> split_description(std::string_view text) {
  if (!text.starts_with(".SH DESCRIPTION")) return {"", text};
  const std::size_t next = std::min(text.find("\n.SH "), text.size() - 1) + 1;
  return {text.substr(0, next), text.substr(next)};
}

std::string see_also(const CLI::App& app) {
  const CLI::App& root = app.get_parent() == nullptr ? app : *app.get_parent();
  std::string text = ".SH SEE ALSO\n";
  std::vector<std::string> pages = manual_pages(root);
  std::erase(pages, hyphenated(app));
  for (std::size_t i = 0; i < pages.size(); ++i) {
    text += fmt::format(".BR {} (1){}\n", roff(pages[i]), i + 1 < pages.size() ? "," : "");
  }
  return text;
}

}  // namespace

std::vector<std::string> manual_pages(const CLI::App& root) {
  std::vector<std::string> pages{hyphenated(root)};
  for (const CLI::App* sub : shown_subcommands(root)) pages.push_back(hyphenated(*sub));
  return pages;
}

std::string manual_page(const CLI::App& app) {
  const std::string page = hyphenated(app);
  std::string title = page;
  for (char& c : title) c = to_upper(c);
  std::string text =
      fmt::format(".TH {} 1 \"\" \"octile {}.{}.{}\" \"User Commands\"\n", roff(title),
                  OCTILE_VERSION_MAJOR, OCTILE_VERSION_MINOR, OCTILE_VERSION_PATCH);
  std::string what = app.get_description();
  if (what.ends_with('.')) what.pop_back();
  text += fmt::format(".SH NAME\n{} \\- {}\n", roff(page), roff(what));
  text += ".SH SYNOPSIS\n" + synopsis(app);
  const auto [description, rest] = split_description(own_text(page));
  text += description;
  text += ".SH OPTIONS\n" + options_text(app) + footer_text(app);
  text += commands_text(app);
  text += rest;
  if (app.get_parent() == nullptr) text += environment_text();
  return text + see_also(app);
}

}  // namespace octile::tools
