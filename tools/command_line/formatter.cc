#include "tools/command_line/formatter.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tools/common/terminal.h"

namespace octile::tools {
namespace {

// Columns of names before their description, at most a third of the line.
constexpr std::size_t kMostNameColumns = 26;

class Formatter : public CLI::Formatter {
 public:
  explicit Formatter(std::size_t width)
      : width_(width), name_columns_(std::min(kMostNameColumns, width / 3)) {}

  std::string make_description(const CLI::App* app) const override {
    return wrapped(app->get_description(), width_) + "\n";
  }
  std::string make_footer(const CLI::App* app) const override {
    return app->get_footer().empty() ? std::string() : wrapped(app->get_footer(), width_) + "\n";
  }
  std::string make_subcommand(const CLI::App* sub) const override {
    return row(sub->get_name(), sub->get_description());
  }
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    const std::string name =
        (is_positional ? option->get_name(true) : option->get_name(false, true)) +
        value_text(*option);
    return row(name, option->get_description());
  }

 private:
  // A name that is too long has its line, and the description begins on the next.
  std::string row(const std::string& name, const std::string& description) const {
    std::string text = "  " + name;
    if (columns_of(text) + 2 > name_columns_) {
      text.append("\n").append(name_columns_, ' ');
    } else {
      text.append(name_columns_ - columns_of(text), ' ');
    }
    return text + wrapped(description, width_, name_columns_, name_columns_) + "\n";
  }

  const std::size_t width_;
  const std::size_t name_columns_;
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter(std::size_t width) {
  return std::make_shared<Formatter>(width);
}

std::string path_of(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? app.get_name() : path_of(*parent) + " " + app.get_name();
}

std::string value_text(const CLI::Option& option) {
  std::string text;
  if (option.get_type_size() != 0 && !option.get_type_name().empty())
    text += " " + option.get_type_name();
  if (!option.get_default_str().empty()) text += fmt::format(" [{}]", option.get_default_str());
  if (option.get_required()) text += ", required";
  return text;
}

std::vector<const CLI::App*> shown_subcommands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); });
}

std::vector<const CLI::Option*> options_of(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return option->nonpositional(); });
}

std::vector<const CLI::Option*> positionals_of(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return option->get_positional(); });
}

}  // namespace octile::tools
