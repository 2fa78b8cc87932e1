// The `octile` command. Exit status: 0 done, 1 failed, 2 bad usage, 130 interrupted; an error is
// one sentence on stderr.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "tools/command.h"

namespace octile::tools {
namespace {

constexpr int kFailed = 1;
constexpr int kBadUsage = 2;

int report(const Error& error) {
  fmt::print(stderr, "octile: {}\n", error.message);
  return error.code == ErrorCode::kInvalidArgument ? kBadUsage : kFailed;
}

std::string version_text() {
  int major = 0;
  int minor = 0;
  int patch = 0;
  octile_version(&major, &minor, &patch);
  return fmt::format("octile {}.{}.{}", major, minor, patch);
}

int run(int argc, char** argv) {
  CLI::App app("FP8 quantise and GEMM kernels for Hopper: generate, compile, cache, run, measure.",
               "octile");
  app.set_version_flag("--version", version_text());
  app.footer("Exit status: 0 done, 1 failed, 2 bad usage, 130 interrupted.");
  const std::vector<Command> commands{add_demo(app),  add_emit(app),  add_compile(app),
                                      add_tune(app),  add_bench(app), add_cache(app),
                                      add_doctor(app)};
  CLI::App* help = app.add_subcommand("help", "this text, or that of a subcommand");
  std::string topic;
  help->add_option("subcommand", topic);
  app.require_subcommand(1);
  // CLI11 would say that a subcommand is required, not what is wrong with this one.
  if (argc > 1 && argv[1][0] != '-' &&
      app.get_subcommands([&](const CLI::App* known) { return known->get_name() == argv[1]; })
          .empty()) {
    return report({ErrorCode::kInvalidArgument,
                   fmt::format("there is no subcommand '{}'; `octile help` lists them", argv[1])});
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    std::string sentence = error.what();
    for (char& c : sentence) c = c == '\n' ? ' ' : c;
    fmt::print(stderr, "octile: {}; `octile help` lists what is allowed\n", sentence);
    return kBadUsage;
  }
  if (help->parsed()) {
    const auto found = app.get_subcommands(
        [&](const CLI::App* candidate) { return candidate->get_name() == topic; });
    if (!topic.empty() && found.empty()) {
      return report(
          {ErrorCode::kInvalidArgument, fmt::format("help: there is no subcommand '{}'", topic)});
    }
    app.clear();  // CLI11 gives the help of what was parsed
    fmt::print("{}", topic.empty() ? app.help() : found.front()->help("octile"));
    return 0;
  }
  int exit_status = 0;
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    const Result<int> result = command.run();
    if (!result) return report(result.error());
    exit_status = *result;
  }
  if (std::fflush(stdout) != 0) {
    return report({ErrorCode::kInternal, "stdout cannot be written"});
  }
  return exit_status;
}

}  // namespace
}  // namespace octile::tools

int main(int argc, char** argv) {
  try {
    return octile::tools::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "octile: {}\n", error.what());
    return 1;
  }
}
