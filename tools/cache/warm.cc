// octile cache warm: every kernel that models or problems need, compiled ahead of time, without a
// GPU.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "generator/families.h"
#include "runtime/api/boundary.h"
#include "tools/cache/verbs.h"
#include "tools/cache/entries.h"
#include "tools/common/on_workers.h"
#include "tools/models/problem_file.h"

namespace octile::tools::verbs {
namespace {

struct Options {
  ProblemOptions problem;
  std::vector<std::string> models;
  std::string problems;
  std::vector<std::int64_t> tokens;
  std::string device = "h200";
  std::string part = "1/1";
  int jobs = 0;
  bool json = false;
  bool progress = false;
};

// --part I/N: of the kernels in the order of their digests, each N-th from the I-th on. Processes
// that are given the same work and different parts share it without talking to each other.
struct Part {
  std::size_t index = 1;
  std::size_t count = 1;
};

Result<Part> read_part(const std::string& text) {
  Part part;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, part.index);
  if (first.ec == std::errc() && first.ptr != end && *first.ptr == '/') {
    const auto second = std::from_chars(first.ptr + 1, end, part.count);
    if (second.ec == std::errc() && second.ptr == end && 1 <= part.index &&
        part.index <= part.count) {
      return part;
    }
  }
  return refuse(fmt::format("--part is '{}'; allowed: I/N with 1 <= I <= N, such as 1/4", text));
}

// --- what there is to compile ---

Result<std::vector<Work>> read_problem_file(const Options& options) {
  std::vector<Work> works;
  const Status ok = for_each_problem(
      options.problems, "--problems", options.problem.recipe, [&](const Problem& p) -> Status {
        auto work = work_of_problem(p, counts_for(p, options.tokens));
        if (!work) return tl::unexpected<Error>(work.error());
        works.push_back(std::move(work->front()));
        return {};
      });
  if (!ok) return tl::unexpected<Error>(ok.error());
  return works;
}

Result<std::vector<Work>> read_work(const Options& options) {
  const int sources = (options.problem.given() ? 1 : 0) + (options.models.empty() ? 0 : 1) +
                      (options.problems.empty() ? 0 : 1);
  if (sources != 1) {
    return refuse(
        fmt::format("{} of --model, --problems and a single problem (--gemm, --quantize, "
                    "--problem) are given; exactly one is allowed",
                    sources));
  }
  if (!options.problems.empty()) return read_problem_file(options);
  if (options.models.empty()) return work_of_problem(options.problem.read(), options.tokens);
  std::vector<Work> works;
  for (const std::string& name : options.models) {
    const auto model = find_model(name);
    if (!model) return tl::unexpected<Error>(model.error());
    auto layers = work_of_layers(*model, options.problem.recipe, options.tokens);
    if (!layers) return tl::unexpected<Error>(layers.error());
    std::ranges::move(*layers, std::back_inserter(works));
  }
  return works;
}

struct Job {
  Problem problem;  // the first that needs the kernel
  Choice choice;
  octile::cache::Identity identity;
};
using Jobs = std::map<std::string, Job>;  // by digest

// The kernels a plan would prepare for these counts.
Status add_jobs(const Work& work, const DeviceSpec& device, Engine& engine, Jobs& jobs) {
  if (Status ok = check_supported(work.problem); !ok) return ok;
  for (const TokenRange& range : work.tokens) {
    for (int bucket = bucket_of(range.lo); bucket <= bucket_of(range.hi); ++bucket) {
      Choice choice = engine.choose_config(work.problem, bucket_upper(bucket), device);
      const auto kernel = emit(work.problem, choice.config, device, embedded_templates());
      if (!kernel) return tl::unexpected<Error>(kernel.error());
      octile::cache::Identity identity = identity_of(*kernel, device);
      const std::string digest = octile::cache::digest_hex(octile::cache::key_text(identity));
      jobs.try_emplace(digest, Job{work.problem, std::move(choice), std::move(identity)});
    }
  }
  return {};
}

Result<Jobs> all_jobs(const std::vector<Work>& works, const DeviceSpec& device, Engine& engine) {
  Jobs jobs;
  for (const Work& work : works) {
    if (Status ok = add_jobs(work, device, engine, jobs); !ok) {
      return tl::unexpected<Error>(ok.error());
    }
  }
  return jobs;
}

// --- compiling it ---

struct Done {
  std::string digest;
  Job job;
  Result<Built> built = Built{};
  bool kept = false;  // the cache has it now
};

std::vector<Done> part_of(const Jobs& jobs, const Part& part) {
  std::vector<Done> own;
  std::size_t index = 0;
  for (const auto& [digest, job] : jobs) {
    if (index++ % part.count == part.index - 1) own.push_back({digest, job});
  }
  return own;
}

class Warming {
 public:
  Warming(Library& library, const DeviceSpec& device, const Options& options)
      : library_(library),
        device_(device),
        each_line_(options.progress),
        progress_(ProgressMode::kAuto) {}

  void run(std::vector<Done>& own) {
    std::atomic<std::size_t> ended = 0;
    for_each_on(library_.workers, own.size(), [&](std::size_t i) {
      make(own[i]);
      report(own[i], ++ended, own.size());
    });
    progress_.done();
  }

 private:
  void make(Done& one) {
    Engine& engine = library_.engine;
    one.built = engine.build(one.job.problem, one.job.choice.config, device_);
    if (!one.built) return;
    const octile::cache::Toolchain& toolchain = one.built->kernel->toolchain;
    one.kept = one.built->state == CacheState::kHit ||
               engine.store().lookup(one.job.identity, toolchain).has_value();
  }

  void report(const Done& one, std::size_t ended, std::size_t count) {
    if (!each_line_) return progress_.step(fmt::format("{} of {} kernels", ended, count));
    const std::string what = !one.built ? "failed" : std::string(octile::name_of(one.built->state));
    fmt::print(stderr, "  {} of {}: {} {}\n", ended, count, what, one.job.identity.entry_name);
  }

  Library& library_;
  const DeviceSpec& device_;
  const bool each_line_;
  Progress progress_;
};

Json to_json(const Done& one) {
  Json object{{"digest", one.digest},
              {"name", one.job.identity.entry_name},
              {"problem", to_text(one.job.problem)},
              {"config", to_text(one.job.choice.config)},
              {"chosen_by", octile::name_of(one.job.choice.by)}};
  if (one.built) {
    object["cache"] = octile::name_of(one.built->state);
    object["compile_ms"] = one.built->kernel->compile_ms;
    object["kept"] = one.kept;
  } else {
    object["error"] = one.built.error().message;
  }
  return object;
}

// The first failure, with how many there were; a kernel that was compiled and is not in the cache
// afterwards is one: the next process compiles it again.
Status outcome(const std::vector<Done>& own, const std::string& root) {
  const auto failed = [](const Done& one) { return !one.built || !one.kept; };
  const auto first = std::ranges::find_if(own, failed);
  if (first == own.end()) return {};
  const auto count = std::ranges::count_if(own, failed);
  if (!first->built) {
    return fail(first->built.error().code,
                fmt::format("{} of {} kernels failed; the first: {}", count, own.size(),
                            first->built.error().message));
  }
  return fail(ErrorCode::kInternal,
              fmt::format("{} of {} kernels were compiled and could not be kept in {}; see the "
                          "warning above, then run the same command again",
                          count, own.size(), root));
}

void print_summary(const Json& summary) {
  const std::string part = summary.at("part").get<std::string>();
  fmt::print("  {} kernel{}{} in {:.2f} s: {} in the cache before, {} compiled\n",
             summary.at("kernels").size(), summary.at("kernels").size() == 1 ? "" : "s",
             part == "1/1" ? "" : fmt::format(" (part {} of {})", part, summary.at("all").dump()),
             summary.at("seconds").get<double>(), summary.at("hits").dump(),
             summary.at("compiled").dump());
}

Json summarise(const std::vector<Done>& own, const Options& options, std::size_t all,
               double seconds) {
  Json kernels = Json::array();
  int hits = 0;
  int compiled = 0;
  for (const Done& one : own) {
    kernels.push_back(to_json(one));
    if (!one.built) continue;
    ++(one.built->state == CacheState::kMiss ? compiled : hits);
  }
  return {{"part", options.part}, {"all", all},         {"hits", hits},
          {"compiled", compiled}, {"seconds", seconds}, {"kernels", kernels}};
}

Status run(const Options& options) {
  const auto part = read_part(options.part);
  if (!part) return tl::unexpected<Error>(part.error());
  const auto works = read_work(options);
  if (!works) return tl::unexpected<Error>(works.error());
  const auto device = device_spec(options.device);
  if (!device) return tl::unexpected<Error>(device.error());
  const auto library = LibraryHandle::create(options.jobs);
  if (!library) return tl::unexpected<Error>(library.error());
  Library& internals = library->get()->library;
  const std::string root = internals.engine.store().options().writable_root;
  if (root.empty()) {
    return refuse("there is no cache folder to warm; allowed: OCTILE_CACHE_DIR, or HOME, set");
  }
  const auto jobs = all_jobs(*works, *device, internals.engine);
  if (!jobs) return tl::unexpected<Error>(jobs.error());
  std::vector<Done> own = part_of(*jobs, *part);
  const auto start = std::chrono::steady_clock::now();
  Warming(internals, *device, options).run(own);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const Json summary = summarise(own, options, jobs->size(), took.count());
  options.json ? print_json(summary) : print_summary(summary);
  return outcome(own, root);
}

}  // namespace

Command add_warm(CLI::App& cache) {
  CLI::App* app = add_subcommand(
      cache, "warm",
      "compile ahead of time what models or problems need, on all cores; needs no GPU");
  auto options = std::make_shared<Options>();
  add_models_option(*app, options->models);
  add_option(*app, "--problems", options->problems,
             "a file of one problem a line: a canonical text, or MxNxK; # begins a comment");
  options->problem.add_to(*app);
  add_tokens_option(*app, options->tokens, "1 to 16384, with --model those of the model");
  add_target_option(*app, options->device, "what to compile for");
  add_option(*app, "--part", options->part,
             "I/N: only the I-th of N shares of the kernels, for N processes or machines")
      .show_default();
  add_jobs_option(*app, options->jobs);
  add_json_option(*app, options->json);
  add_flag(*app, "--progress", options->progress,
           "a line on stderr for each kernel, also where that is no terminal");
  return {app, [options] { return run(*options); }};
}

}  // namespace octile::tools::verbs
