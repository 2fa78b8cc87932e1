// The subcommands: one file each, added to the command line by one function each.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "generator/core/device_spec.h"
#include "generator/core/error.h"
#include "generator/families.h"
#include "tools/common/command_line.h"
#include "tools/common/handles.h"
#include "tools/common/progress.h"
#include "tools/models/workload.h"

namespace octile::tools {

// A subcommand after the command line was read: what it is called and what it does. It prints its
// result to stdout; an error is printed by main. What it gives is the exit status; `work` may
// return a Status where success has only one.
struct Command {
  template <typename Work>
  Command(CLI::App* of, Work work)
      : app(of), run([work = std::move(work)]() -> Result<int> {
          if constexpr (std::is_same_v<std::invoke_result_t<const Work&>, Status>) {
            return work().map([] { return 0; });
          } else {
            return work();
          }
        }) {}

  CLI::App* app;
  std::function<Result<int>()> run;
};

Command add_demo(CLI::App& root);
Command add_emit(CLI::App& root);
Command add_compile(CLI::App& root);
Command add_tune(CLI::App& root);
Command add_bench(CLI::App& root);
Command add_cache(CLI::App& root);
Command add_doctor(CLI::App& root);

// What several subcommands ask for.
struct ProblemOptions {
  std::string gemm;      // MxNxK
  std::string quantize;  // RxC
  std::string problem;   // canonical text
  std::string recipe = "blockwise";

  void add_to(CLI::App& app);
  bool given() const { return !gemm.empty() || !quantize.empty() || !problem.empty(); }
  // Errors: kInvalidArgument, also where not exactly one of the three is given.
  Result<Problem> read() const;
};

// One problem, or the linear layers of a model.
struct WorkOptions {
  ProblemOptions problem;
  std::string model;
  std::vector<std::int64_t> tokens;

  // `default_tokens` is for the help.
  void add_to(CLI::App& app, const std::string& default_tokens);
  // `default_tokens`: of a problem that leaves them open; empty: 1 to 16384. Errors:
  // kInvalidArgument, also where not exactly one of problem and model is given.
  Result<std::vector<Work>> read(const std::vector<std::int64_t>& default_tokens = {}) const;
};

// What kernels are chosen for: a device of today's list or a live one. Errors: kInvalidArgument for
// the host, which runs none; those of resolve_target().
Result<DeviceSpec> device_spec(const std::string& name);

ProgressMode progress_mode(bool always);
void add_models_option(CLI::App& app, std::vector<std::string>& models);
void add_tokens_option(CLI::App& app, std::vector<std::int64_t>& tokens,
                       const std::string& default_tokens);
// What device_spec() takes; `what` begins the help.
void add_target_option(CLI::App& app, std::string& device, const std::string& what);
void add_jobs_option(CLI::App& app, int& jobs);
void add_json_option(CLI::App& app, bool& json);
void add_progress_option(CLI::App& app, bool& always);

// One document, indented, to stdout.
void print_json(const Json& document);

// A precise sentence for a value of the command line.
tl::unexpected<Error> refuse(std::string message);

}  // namespace octile::tools
