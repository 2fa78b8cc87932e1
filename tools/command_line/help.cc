#include "tools/command_line/help.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "tools/command_line/complete.h"
#include "tools/command_line/culprit.h"
#include "tools/command_line/formatter.h"
#include "tools/command_line/manual.h"
#include "tools/common/output.h"

namespace octile::tools {
namespace {

struct Options {
  std::vector<std::string> words;
  bool man = false;
  bool list_pages = false;
};

Result<const CLI::App*> find_topic(const CLI::App& root, const std::vector<std::string>& words) {
  const CLI::App* app = &root;
  for (const std::string& word : words) {
    const CLI::App* next = nullptr;
    for (const CLI::App* sub : shown_subcommands(*app)) {
      if (sub->get_name() == word) next = sub;
    }
    if (next == nullptr && shown_subcommands(*app).empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("`{}` has no verbs, and '{}' is given as one", path_of(*app), word));
    }
    if (next == nullptr)
      return fail(ErrorCode::kInvalidArgument, unknown_subcommand(root, *app, word));
    app = next;
  }
  return app;
}

Status print_help(CLI::App& root, const Options& options) {
  if (options.list_pages && (options.man || !options.words.empty())) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--list-pages is given with {}; allowed: alone",
                            options.man ? "--man" : "a subcommand"));
  }
  if (options.list_pages) {
    for (const std::string& page : manual_pages(root)) print_stdout("{}\n", page);
    return {};
  }
  const auto topic = find_topic(root, options.words);
  if (!topic) return tl::unexpected<Error>(topic.error());
  const CLI::App* app = *topic;
  if (options.man) {
    // A verb of a verb is a section of its parent's page.
    while (app != &root && app->get_parent() != &root) app = app->get_parent();
    print_stdout("{}", manual_page(*app));
    return {};
  }
  const std::string parent = app == &root ? "" : path_of(*app->get_parent());
  root.clear();  // CLI11's help is that of the last parse
  print_stdout("{}", app->help(parent));
  return {};
}

}  // namespace

Command add_help(CLI::App& root) {
  CLI::App* app = add_subcommand(root, "help", "print this text, or that of a subcommand");
  auto options = std::make_shared<Options>();
  add_option(*app, "subcommand", options->words, "such as cache, or cache list");
  add_flag(*app, "--man", options->man, "print the manual page instead, in roff");
  add_flag(*app, "--list-pages", options->list_pages, "print the names of the manual pages");
  return {app, [options, &root] { return print_help(root, *options); }};
}

Command add_complete(CLI::App& root) {
  CLI::App* app = add_subcommand(root, "complete", "print what a shell offers for the last word");
  app->group("");
  auto words = std::make_shared<std::vector<std::string>>();
  app->add_option("words", *words);
  return {app, [words, &root]() -> Status {
            for (const std::string& word : complete(root, *words)) print_stdout("{}\n", word);
            return {};
          }};
}

}  // namespace octile::tools
