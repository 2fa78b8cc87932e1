// The subcommands. Each has one file and one function that adds it to the command line.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "generator/core/device_spec.h"
#include "generator/core/error.h"
#include "generator/families.h"
#include "tools/command_line/command_line.h"
#include "tools/common/handles.h"
#include "tools/common/progress.h"
#include "tools/models/model_options.h"
#include "tools/models/workload.h"

namespace octile::tools {

Command add_demo(CLI::App& root);
Command add_emit(CLI::App& root);
Command add_compile(CLI::App& root);
Command add_tune(CLI::App& root);
Command add_bench(CLI::App& root);
Command add_explain(CLI::App& root);
Command add_shapes(CLI::App& root);
Command add_inspect(CLI::App& root);
Command add_report(CLI::App& root);
Command add_cache(CLI::App& root);
Command add_doctor(CLI::App& root);

// One problem, in one of three forms.
struct ProblemOptions {
  std::string gemm;      // MxNxK
  std::string quantize;  // RxC
  std::string problem;   // canonical text
  std::string recipe = "blockwise";
  Option recipe_option;

  void add_to(CLI::App& app);
  // Takes a text without an option: a canonical text, MxNxK or ROWSxCOLS.
  void set_text(const std::string& text);
  bool given() const { return !gemm.empty() || !quantize.empty() || !problem.empty(); }
  // Errors: kInvalidArgument, also unless exactly one of the three is given, or if --recipe is
  // given with a canonical text, which states its types.
  Result<Problem> read() const;
};

// One problem, the problems of a file, or the linear layers of models.
struct WorkOptions {
  ProblemOptions problem;
  ModelOptions model;
  std::string problem_file;
  std::vector<std::int64_t> tokens;
  std::vector<std::string> passes;  // empty: fprop, of models those of --mode
  std::string user;                 // who runs the models' layers: "torch", or empty

  // `default_tokens` is the help's text about --tokens.
  void add_to(CLI::App& app, const std::string& default_tokens);
  // Adds --for.
  void add_user_to(CLI::App& app);
  // Errors: kInvalidArgument unless exactly one of the three is given, if passes are given for a
  // problem that has none, or options of a model without one.
  Status check() const;
  // Errors: kInvalidArgument for a name that is not that of a pass.
  Result<std::vector<Pass>> read_passes() const;
  // Returns the single problem, or the GEMMs of a single MxNxK, with the counts of --tokens.
  Result<std::vector<Request>> read_problem() const;
  // Returns the works of the models.
  Result<std::vector<Work>> read_models() const;
  // Calls `use` for each problem of --problem-file, which is read once. Errors: those of
  // for_each_problem(); kInvalidArgument if --recipe, --passes or --tokens is given and no line
  // takes it.
  Status for_each_in_file(const std::function<Status(const Request&)>& use) const;
  // Returns each problem once. `default_tokens` are the counts of a problem that leaves its own
  // open and gets none by --tokens; if they are empty, 1 to 16384. Errors: kInvalidArgument, also
  // those of check().
  Result<std::vector<Work>> read(const std::vector<std::int64_t>& default_tokens = {}) const;

 private:
  using Works = Result<std::vector<Work>>;
  Works read_single(const std::vector<std::int64_t>& default_tokens) const;
  Works read_problem_file(const std::vector<std::int64_t>& counts) const;
};

// Returns a known device or a live one. Errors: kInvalidArgument for the host, which runs no
// kernels; those of resolve_target().
Result<DeviceSpec> device_spec(const std::string& name);

// Errors: kInvalidArgument for a name other than a known device, cuda, cuda:N, and, if that is
// allowed, host.
Status check_device_name(const std::string& name, bool host_allowed);
// Returns the names of the known devices, with or without kernels.
std::vector<std::string_view> known_device_names();
// Returns the error with "`octile tune` needs a GPU: " before it.
Error needs_gpu(std::string_view verb, const Error& error);

ProgressMode progress_mode(bool always);
// Adds --device with the names that device_spec() takes. The help begins with `what`.
void add_target_option(CLI::App& app, std::string& device, const std::string& what);
void add_gpu_option(CLI::App& app, std::string& device);  // --device, a live one
// The help is `what` and the names.
Option add_recipe_option(CLI::App& app, std::string& recipe, const std::string& what);
Option add_tokens_option(CLI::App& app, std::int64_t& tokens);  // one count
// Refuses --tokens if it is given and the problem states its token count.
Status check_tokens_option(const Option& option, const Problem& problem, std::int64_t tokens);
void add_baseline_option(CLI::App& app, std::string& baseline, const std::string& what);
void add_jobs_option(CLI::App& app, int& jobs);
void add_json_option(CLI::App& app, bool& json);
void add_wide_option(CLI::App& app, bool& wide);
void add_progress_option(CLI::App& app, bool& always);
// --records, the file that gets a line for each measurement (common/records.h).
void add_records_option(CLI::App& app, std::string& path);

// Prints one indented document to stdout.
void print_json(const Json& document);

// Returns a kInvalidArgument error.
tl::unexpected<Error> refuse(std::string message);

}  // namespace octile::tools
