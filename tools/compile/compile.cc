// octile compile: kernels into the cache, without a GPU.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <utility>

#include "tools/command.h"
#include "tools/compile/kernel_report.h"

namespace octile::tools {
namespace {

struct Options {
  WorkOptions work;
  std::string device = "h200";
  int jobs = 0;
  bool json = false;
  bool progress = false;
};

// Compiles what one problem needs, in its own plan: one object for each of its kernels.
Result<std::vector<Json>> compile_one(const LibraryHandle& library, const std::string& device,
                                      const Work& work) {
  const auto plan = PlanHandle::create(library, device, work.problem);
  if (!plan) return tl::unexpected<Error>(plan.error());
  for (const TokenRange& range : work.tokens) {
    if (Status ok = plan->prepare(range.lo, range.hi); !ok) {
      return tl::unexpected<Error>(ok.error());
    }
  }
  const auto description = plan->describe();
  if (!description) return tl::unexpected<Error>(description.error());
  std::vector<Json> kernels;
  for (const Json& kernel : description->at("kernels")) {
    Json object{{"problem", description->at("problem")}, {"device", description->at("device")}};
    object.update(kernel);
    kernels.push_back(std::move(object));
  }
  return kernels;
}

// All problems at once; the library's workers bound how many kernels are compiled at a time.
Result<Json> compile_all(const LibraryHandle& library, const Options& options,
                         const std::vector<Work>& works) {
  std::vector<std::future<Result<std::vector<Json>>>> pending;
  pending.reserve(works.size());
  for (const Work& work : works) {
    pending.push_back(
        std::async(std::launch::async, [&] { return compile_one(library, options.device, work); }));
  }
  Json kernels = Json::array();
  Status failed;
  for (auto& one : pending) {
    auto made = one.get();
    if (!made && failed) failed = tl::unexpected<Error>(made.error());
    if (!made) continue;
    for (Json& kernel : *made) kernels.push_back(std::move(kernel));
  }
  if (!failed) return tl::unexpected<Error>(failed.error());
  return kernels;
}

void print_summary(const Json& kernels, std::size_t problems, double seconds) {
  const Json distinct = distinct_kernels(kernels);
  fmt::print("{}", kernel_table(distinct));
  const auto hits = std::count_if(distinct.begin(), distinct.end(),
                                  [](const Json& k) { return k.at("cache") == "hit"; });
  fmt::print("\n  {} kernel{} for {} problem{} in {:.2f} s: {} from the cache, {} compiled\n",
             distinct.size(), distinct.size() == 1 ? "" : "s", problems, problems == 1 ? "" : "s",
             seconds, hits, static_cast<std::int64_t>(distinct.size()) - hits);
  fmt::print("  {}\n", chosen_by_line(kernels));
}

Status run(const Options& options) {
  const auto works = options.work.read();
  if (!works) return tl::unexpected<Error>(works.error());
  if (const auto device = device_spec(options.device); !device) {
    return tl::unexpected<Error>(device.error());
  }
  const auto library = LibraryHandle::create(options.jobs);
  if (!library) return tl::unexpected<Error>(library.error());
  Progress progress(progress_mode(options.progress));
  progress.step(fmt::format("compiling for {} problems", works->size()));
  const auto start = std::chrono::steady_clock::now();
  const auto kernels = compile_all(*library, options, *works);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  progress.done();
  if (!kernels) return tl::unexpected<Error>(kernels.error());
  if (options.json) {
    print_json(*kernels);
  } else {
    print_summary(*kernels, works->size(), took.count());
  }
  return {};
}

}  // namespace

Command add_compile(CLI::App& root) {
  CLI::App* app = add_subcommand(
      root, "compile", "compile the kernels of a problem or a model into the cache; needs no GPU");
  auto options = std::make_shared<Options>();
  options->work.add_to(*app, "1 to 16384");
  add_target_option(*app, options->device, "what to compile for");
  add_jobs_option(*app, options->jobs);
  add_json_option(*app, options->json);
  add_progress_option(*app, options->progress);
  return {app, [options] { return run(*options); }};
}

}  // namespace octile::tools
