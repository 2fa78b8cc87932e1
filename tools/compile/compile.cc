// octile compile: every kernel that problems or models need, compiled ahead of time into the cache,
// without a GPU.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/api/boundary.h"
#include "runtime/engine/describe.h"
#include "tools/command.h"
#include "tools/common/on_workers.h"
#include "tools/common/output.h"
#include "tools/common/part.h"
#include "tools/common/terminal.h"
#include "tools/compile/kernel_report.h"
#include "tools/compile/needed_kernels.h"

namespace octile::tools {
namespace {

struct CompileOptions {
  WorkOptions work;
  std::string device = "h200";
  std::string part = "1/1";
  int jobs = 0;
  bool dry_run = false;
  bool wide = false;
  bool json = false;
  bool progress = false;
};

// --- compiling ---

struct Kernel {
  std::string digest;
  NeededKernel needed;
  Result<Built> built = Built{};
  bool kept = false;      // the cache has it now
  bool replaced = false;  // it cannot be had, and plans use the cost model's kernels instead

  bool failed() const { return !replaced && (!built || !kept); }
};

// Returns of the kernels, in the order of their digests, each N-th from the I-th on.
std::vector<Kernel> part_of(const NeededKernels& kernels, const Part& part) {
  std::vector<Kernel> own;
  std::size_t index = 0;
  for (const auto& [digest, needed] : kernels) {
    if (index++ % part.count == part.index - 1) own.push_back({digest, needed});
  }
  return own;
}

bool chosen_by_a_record(const NeededKernel& kernel) {
  return std::ranges::any_of(kernel.uses, [](const KernelUse& use) {
    return std::ranges::any_of(use.chosen_by, [](ChosenBy by) { return by != ChosenBy::kModel; });
  });
}

class Compilation {
 public:
  Compilation(Library& library, const DeviceSpec& device, bool progress)
      : library_(library), device_(device), each_line_(progress), progress_(ProgressMode::kAuto) {}

  // On all workers. An error of one kernel is kept with it and stops no other.
  void run(std::vector<Kernel>& kernels) {
    std::atomic<std::size_t> ended = 0;
    began_ = std::chrono::steady_clock::now();
    progress_.count(0, kernels.size(), "kernels");
    for_each_on(library_.workers, kernels.size(), [&](std::size_t i) {
      make(kernels[i]);
      report(kernels[i], ++ended, kernels.size());
    });
    progress_.done();
  }

  // Records are advisory, to a plan as here: the cost model's kernels replace one that a record
  // chose and that cannot be had.
  Status replace_failed(std::vector<Kernel>& kernels) {
    std::vector<Kernel> others;
    for (Kernel& kernel : kernels) {
      if (kernel.built || !chosen_by_a_record(kernel.needed)) continue;
      const auto instead = model_kernels(kernel.needed, device_);
      if (!instead) return tl::unexpected<Error>(instead.error());
      std::vector<Kernel> made = part_of(*instead, Part{});
      run(made);
      kernel.replaced = std::ranges::none_of(made, &Kernel::failed);
      if (kernel.replaced) std::ranges::move(made, std::back_inserter(others));
    }
    std::ranges::move(others, std::back_inserter(kernels));
    return {};
  }

 private:
  void make(Kernel& kernel) {
    Engine& engine = library_.engine;
    kernel.built = engine.build(kernel.needed.uses.front().problem, kernel.needed.config, device_);
    if (!kernel.built) return;
    const cache::Toolchain& toolchain = kernel.built->kernel->toolchain;
    kernel.kept = kernel.built->state == CacheState::kHit ||
                  engine.store().lookup(kernel.needed.identity, toolchain).has_value();
  }

  void report(const Kernel& kernel, std::size_t ended, std::size_t count) {
    if (!each_line_) return progress_.count(ended, count, "kernels");
    const std::string what =
        !kernel.built ? "failed" : std::string(octile::name_of(kernel.built->state));
    print_stderr("  {} of {}: {} {}{}\n", ended, count, what, kernel.needed.identity.entry_name,
                 time_left_text(std::chrono::steady_clock::now() - began_, ended, count));
  }

  Library& library_;
  const DeviceSpec& device_;
  const bool each_line_;
  std::chrono::steady_clock::time_point began_;
  Progress progress_;
};

// --- what came of it ---

Json to_json(const KernelUse& use) {
  Json chosen_by = Json::array();
  for (const ChosenBy by : use.chosen_by) chosen_by.push_back(octile::name_of(by));
  return {{"problem", to_text(use.problem)}, {"buckets", use.buckets}, {"chosen_by", chosen_by}};
}

Json to_json(const Kernel& kernel) {
  Json object;
  if (kernel.built) {
    object = describe(*kernel.built->kernel);
    object.add("kept", kernel.kept);
  } else {
    object = {{"name", kernel.needed.identity.entry_name},
              {"config", to_text(kernel.needed.config)},
              {"source_digest", kernel.digest},
              {"error", kernel.built.error().message},
              {"replaced", kernel.replaced}};
  }
  Json problems = Json::array();
  for (const KernelUse& use : kernel.needed.uses) problems.push_back(to_json(use));
  object.add("tested", kernel.needed.is_tested);
  return object.add("problems", std::move(problems));
}

struct Totals {
  std::size_t problems = 0;
  std::size_t all = 0;  // kernels of all parts
  double seconds = 0;
};

Json summarise(const std::vector<Kernel>& kernels, const CompileOptions& options,
               const Totals& totals) {
  Json array = Json::array();
  for (const Kernel& kernel : kernels) array.push_back(to_json(kernel));
  const auto hits = std::ranges::count_if(kernels, [](const Kernel& kernel) {
    return kernel.built && kernel.built->state != CacheState::kMiss;
  });
  const auto compiled = std::ranges::count_if(kernels, [](const Kernel& kernel) {
    return kernel.built && kernel.built->state == CacheState::kMiss;
  });
  return {{"device", options.device},  {"part", options.part},
          {"all", totals.all},         {"hits", hits},
          {"compiled", compiled},      {"kept", std::ranges::count_if(kernels, &Kernel::kept)},
          {"seconds", totals.seconds}, {"kernels", std::move(array)}};
}

// Says what came of the kernels.
std::string outcomes_text(const Json& summary) {
  const auto failed = std::ranges::count_if(summary.at("kernels"), [](const Json& kernel) {
    return kernel.contains("error") && !kernel.at("replaced").boolean().value_or(false);
  });
  const auto hits = summary.at("hits").integer().value_or(0);
  const auto compiled = summary.at("compiled").integer().value_or(0);
  if (failed > 0 && hits + compiled == 0) return fmt::format("{} failed", failed);
  return fmt::format("{} from the cache, {} compiled{}", hits, compiled,
                     failed > 0 ? fmt::format(", {} failed", failed) : "");
}

void print_summary(const Json& summary, const Totals& totals, bool wide) {
  const Json& kernels = summary.at("kernels");
  const std::string part = *summary.at("part").string();
  if (const TextTable table = kernel_table(kernels); !table.is_empty()) {
    print_table(table, wide);
    print_stdout("\n");
  }
  print_stdout("  {} kernel{}{} for {} problem{} in {:.2f} s: {}\n", kernels.size(),
               kernels.size() == 1 ? "" : "s",
               part == "1/1" ? "" : fmt::format(" (part {} of {})", part, totals.all),
               totals.problems, totals.problems == 1 ? "" : "s", totals.seconds,
               outcomes_text(summary));
  write_stdout(chosen_by_line(kernels));
  const auto tested = std::ranges::count_if(
      kernels, [](const Json& kernel) { return kernel.at("tested").boolean().value_or(false); });
  if (tested == 0) return;
  print_stdout("{}\n", wrapped(fmt::format("  {} of them are known-answer tests, which the device "
                                           "passes before its first kernel is used",
                                           tested),
                               line_width(), 4));
}

void warn_of_replaced(const std::vector<Kernel>& kernels) {
  for (const Kernel& kernel : kernels) {
    if (!kernel.replaced) continue;
    print_stderr(
        "octile: warning: a tuning record's configuration is not used, the cost model's "
        "is: {}\n",
        kernel.built.error().message);
  }
}

// Returns the first failure, with how many there were. A kernel that was compiled and that the
// cache does not have afterwards is a failure: the next process compiles it again.
Status outcome(const std::vector<Kernel>& kernels, const std::string& root) {
  const auto first = std::ranges::find_if(kernels, &Kernel::failed);
  if (first == kernels.end()) return {};
  const auto count = std::ranges::count_if(kernels, &Kernel::failed);
  if (!first->built) {
    return fail(first->built.error().code,
                fmt::format("{} of {} kernels failed; the first: {}", count, kernels.size(),
                            first->built.error().message));
  }
  return fail(ErrorCode::kInternal,
              fmt::format("{} of {} kernels were compiled and could not be kept in {}; see the "
                          "warning above, then run the same command again",
                          count, kernels.size(), root));
}

// Prints the problems with their token counts.
void print_works(const std::vector<Work>& works, bool json) {
  Json problems = Json::array();
  for (const Work& work : works) {
    Json counts = Json::array();
    for (const TokenRange& range : work.tokens) counts.push_back(Json::array({range.lo, range.hi}));
    problems.push_back({{"problem", to_text(work.problem)}, {"tokens", std::move(counts)}});
    if (!json) print_stdout("{}\n", to_text(work.problem));
  }
  if (json) print_json({{"problems", std::move(problems)}});
}

Status run_compile(const CompileOptions& options) {
  const auto part = read_part(options.part);
  if (!part) return tl::unexpected<Error>(part.error());
  if (options.dry_run && part->count > 1) {
    return refuse(
        "--part and --dry-run are given; allowed: one of them, because parts are of "
        "kernels and --dry-run lists problems");
  }
  const auto works = options.work.read();
  if (!works) return tl::unexpected<Error>(works.error());
  const auto device = device_spec(options.device);
  if (!device) return tl::unexpected<Error>(device.error());
  if (options.dry_run) {
    print_works(*works, options.json);
    return {};
  }
  const auto library = LibraryHandle::create(options.jobs);
  if (!library) return tl::unexpected<Error>(library.error());
  Library& internals = library->get()->library;
  const std::string root = internals.engine.store().options().writable_root;
  if (root.empty()) {
    return refuse(
        "there is no cache folder to compile into; allowed: OCTILE_CACHE_DIR, or HOME, set");
  }
  const auto needed = needed_kernels(*works, *device, internals.engine);
  if (!needed) return tl::unexpected<Error>(needed.error());
  std::vector<Kernel> kernels = part_of(*needed, *part);

  const auto start = std::chrono::steady_clock::now();
  Compilation compilation(internals, *device, options.progress);
  compilation.run(kernels);
  if (Status ok = compilation.replace_failed(kernels); !ok) return ok;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;

  const Totals totals{works->size(), needed->size(), took.count()};
  const Json summary = summarise(kernels, options, totals);
  options.json ? print_json(summary) : print_summary(summary, totals, options.wide);
  warn_of_replaced(kernels);
  return outcome(kernels, root);
}

}  // namespace

Command add_compile(CLI::App& root) {
  CLI::App* app = add_subcommand(
      root, "compile",
      "compile the kernels of problems or models into the cache, on all cores; needs no GPU");
  auto options = std::make_shared<CompileOptions>();
  options->work.add_to(*app, "1 to 16384, with --model those of --mode");
  options->work.add_user_to(*app);
  add_target_option(*app, options->device, "the device to compile for");
  add_flag(*app, "--dry-run", options->dry_run,
           "print the canonical texts of the problems, one a line, and compile nothing");
  add_option(*app, "--part", options->part,
             "I/N: compile only the I-th of N shares of the kernels, for N processes or machines")
      .show_default();
  add_jobs_option(*app, options->jobs);
  add_wide_option(*app, options->wide);
  add_json_option(*app, options->json);
  add_progress_option(*app, options->progress);
  return {app, [options] { return run_compile(*options); }};
}

}  // namespace octile::tools
