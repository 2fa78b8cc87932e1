// The `octile` command. Exit status: 0 done, 1 failed, 2 bad usage, 130 interrupted. An error is
// one sentence on stderr.
#include <fmt/format.h>

#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "tools/command.h"
#include "tools/command_line/help.h"
#include "tools/common/out_of_memory.h"
#include "tools/common/output.h"
#include "tools/common/terminal.h"

namespace octile::tools {
namespace {

constexpr int kFailed = 1;
constexpr int kBadUsage = 2;

// A sentence may quote an argument or a file, and a compiler's log. Nobody reads more of it.
std::string_view shortened(std::string_view message) {
  constexpr std::size_t kMostBytes = std::size_t{64} << 10;
  return message.substr(0, kMostBytes);
}

void print_sentence(std::string_view sentence) { print_error(shortened(sentence)); }

int report(const Error& error) {
  print_sentence(error.message);
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

Result<int> run_given(const std::vector<Command>& commands) {
  for (const Command& command : commands) {
    if (is_given(*command.app)) return command.run();
  }
  return 0;  // not reached: one subcommand is required
}

int run(int argc, char** argv) {
  const auto command_line = new_command_line(
      "FP8 quantise and GEMM kernels for Hopper: generate, compile, cache, run, measure.",
      version_text());
  CLI::App& app = *command_line;
  const std::vector<Command> commands{
      add_demo(app),    add_emit(app), add_explain(app), add_shapes(app), add_inspect(app),
      add_compile(app), add_tune(app), add_bench(app),   add_report(app), add_cache(app),
      add_doctor(app),  add_help(app), add_complete(app)};

  const Result<std::string> asked = parse(app, argc, argv);
  if (!asked) return report(asked.error());
  if (!asked->empty()) {
    write_stdout(*asked);
    return end(0);
  }
  const Result<int> exit_status = run_given(commands);
  if (!exit_status) return report(exit_status.error());
  return end(*exit_status);
}

}  // namespace
}  // namespace octile::tools

int main(int argc, char** argv) {
  octile::tools::open_standard_streams();
  octile::tools::take_size_limits_as_errors();
  octile::tools::end_if_memory_ends();
  try {
    return octile::tools::run(argc, argv);
  } catch (const std::exception& error) {
    octile::tools::print_stderr("octile: {}\n", error.what());
    return 1;
  }
}
