// The `octile` command. Exit status: 0 done, 1 failed, 2 bad usage, 130 interrupted. An error is
// one sentence on stderr.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tools/command.h"
#include "tools/common/out_of_memory.h"
#include "tools/common/output.h"

namespace octile::tools {
namespace {

constexpr int kFailed = 1;
constexpr int kBadUsage = 2;

// A sentence may quote an argument or a file, and a compiler's log. Nobody reads more of it.
std::string_view shortened(std::string_view message) {
  constexpr std::size_t kMostBytes = std::size_t{64} << 10;
  return message.substr(0, kMostBytes);
}

int report(const Error& error) {
  print_stderr("octile: {}\n", shortened(error.message));
  return error.code == ErrorCode::kInvalidArgument ? kBadUsage : kFailed;
}

// Returns the exit status of a command that did its work: output that did not arrive is a failure.
int end(int exit_status) {
  if (const Status ok = check_stdout(); !ok) return report(ok.error());
  return exit_status;
}

std::string version_text() {
  int major = 0;
  int minor = 0;
  int patch = 0;
  octile_version(&major, &minor, &patch);
  return fmt::format("octile {}.{}.{}", major, minor, patch);
}

bool has_subcommand(const CLI::App& app, const std::string& name) {
  return !app.get_subcommands([&](const CLI::App* known) { return known->get_name() == name; })
              .empty();
}

// CLI11 would say that a subcommand is required or that an argument is unexpected. This names the
// word that is wrong, and the subcommand that does the job today.
Status check_words(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return {};
  const std::string first = argv[1];
  if (!has_subcommand(app, first)) {
    return refuse(fmt::format("there is no subcommand '{}'; `octile help` lists them", first));
  }
  if (first != "cache" || argc < 3 || argv[2][0] == '-') return {};
  const std::string verb = argv[2];
  if (has_subcommand(*app.get_subcommand("cache"), verb)) return {};
  return refuse(fmt::format("there is no verb '{}' of `octile cache`; {}", verb,
                            verb == "warm" ? "did you mean `octile compile`, which compiles "
                                             "kernels into the cache ahead of time?"
                                           : "`octile help cache` lists them"));
}

// The help of CLI11 is that of the last parse.
Status print_help(CLI::App& app, const std::string& topic) {
  if (!topic.empty() && !has_subcommand(app, topic)) {
    return refuse(fmt::format("help: there is no subcommand '{}'", topic));
  }
  app.clear();
  print_stdout("{}", topic.empty() ? app.help() : app.get_subcommand(topic)->help("octile"));
  return {};
}

Result<int> run_given(const std::vector<Command>& commands) {
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return 0;  // not reached: one subcommand is required
}

int run(int argc, char** argv) {
  CLI::App app("FP8 quantise and GEMM kernels for Hopper: generate, compile, cache, run, measure.",
               "octile");
  app.set_version_flag("--version", version_text());
  app.footer("Exit status: 0 done, 1 failed, 2 bad usage, 130 interrupted.");
  const std::vector<Command> commands{add_demo(app),  add_emit(app),  add_compile(app),
                                      add_tune(app),  add_bench(app), add_cache(app),
                                      add_doctor(app)};
  std::string topic;
  CLI::App* help = app.add_subcommand("help", "print this text, or that of a subcommand");
  help->add_option("subcommand", topic);
  app.require_subcommand(1);

  if (const Status ok = check_words(app, argc, argv); !ok) return report(ok.error());
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    std::ostringstream text;
    const int exit_status = app.exit(asked, text, text);
    write_stdout(text.str());
    return end(exit_status);
  } catch (const CLI::ParseError& error) {
    std::string sentence = error.what();
    std::replace(sentence.begin(), sentence.end(), '\n', ' ');
    print_stderr("octile: {}; `octile help` lists what is allowed\n", shortened(sentence));
    return kBadUsage;
  }

  const Result<int> exit_status =
      help->parsed() ? print_help(app, topic).map([] { return 0; }) : run_given(commands);
  if (!exit_status) return report(exit_status.error());
  return end(*exit_status);
}

}  // namespace
}  // namespace octile::tools

int main(int argc, char** argv) {
  octile::tools::open_standard_streams();
  octile::tools::end_if_memory_ends();
  try {
    return octile::tools::run(argc, argv);
  } catch (const std::exception& error) {
    octile::tools::print_stderr("octile: {}\n", error.what());
    return 1;
  }
}
