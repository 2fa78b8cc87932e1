#include "tools/bench/bench_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>
#include <vector>

#include "runtime/families/gemm/bench.h"
#include "runtime/engine/describe.h"
#include "runtime/families/gemm/operands.h"
#include "tools/bench/bench_kernels.h"
#include "tools/bench/peers.h"
#include "tools/tune/tasks.h"
#include "tools/tune/report.h"

namespace octile::tools {
namespace {

constexpr std::uint64_t kOperandSeed = 1;  // the same operands every run

template <typename Slot>
const Slot& at(const std::vector<Slot>& slots, int i) {
  return slots[static_cast<std::size_t>(i)];
}

void note_check(const char* who, const ProductCheck& check, BenchResult& result) {
  result.ok = result.ok && check.ok;
  result.check +=
      fmt::format("{}{}: {}", result.check.empty() ? "" : "; ", who, check.worst.to_text());
}

TimingOptions timing_options(int rounds, std::size_t slots) {
  TimingOptions options;
  options.rounds = rounds;
  options.slots = static_cast<int>(slots);
  return options;
}

// Our product as it is to be timed: a plan's, or a search's winner.
using RunGemm = std::function<Status(const GemmArguments&, CUstream)>;

Contender gemm_contender(const BenchContext& context, const RunGemm& run,
                         const std::vector<GemmSlot>& slots) {
  const std::uint32_t flags = context.overlap ? OCTILE_RUN_B_READY : OCTILE_RUN_DEFAULT;
  return {"octile", [&run, &slots, flags](int i, CUstream stream) {
            const GemmSlot& s = at(slots, i);
            GemmArguments args = args_of(s);
            args.flags = flags;
            return run(args, stream);
          }};
}

// Alone where cuBLASLt does not take the problem (m % 4 != 0, say).
Status compare_with_cublaslt(const BenchContext& context, const GemmProblem& problem,
                             std::vector<GemmSlot>& slots, const RunGemm& run,
                             BenchResult& result) {
  const auto peer = Peer::cublaslt(context.cublaslt, context.gpu, problem, result.tokens, slots);
  if (!peer && peer.error().code == ErrorCode::kUnsupported) {
    result.check += "; no cublaslt: " + peer.error().message;
    return compare(context, {gemm_contender(context, run, slots)}, slots.size(), result);
  }
  if (!peer) return tl::unexpected<Error>(peer.error());
  const auto check = run_and_check(context.gpu, problem, slots.front(),
                                   [&] { return peer->run(0, context.gpu.stream()); });
  if (!check) return tl::unexpected<Error>(check.error());
  note_check(peer->name().c_str(), *check, result);
  return compare(context, {gemm_contender(context, run, slots), peer->contender()}, slots.size(),
                 result);
}

// The winner of a search for this token count.
Result<RunGemm> searched_gemm(const BenchContext& context, const GemmProblem& problem,
                              BenchResult& result) {
  const auto winner = search_first(context, Problem(problem), result);
  if (!winner) return tl::unexpected<Error>(winner.error());
  const FixedKernel<GemmProblem>& kernel =
      tuner::bench_as<GemmProblem>(*context.search->bench()).kernel(*winner);
  return RunGemm([&kernel](const GemmArguments& args, CUstream stream) {
    return kernel.run(args, stream);
  });
}

// A plan's, for this token count.
Result<RunGemm> planned_gemm(const BenchContext& context, const GemmProblem& problem,
                             BenchResult& result) {
  auto prepared = prepare_plan(context, problem, result.tokens, result.tokens);
  if (!prepared) return tl::unexpected<Error>(prepared.error());
  result.kernel = std::move(prepared->kernel);
  auto plan = std::make_shared<const PlanHandle>(std::move(prepared->plan));
  return RunGemm(
      [plan](const GemmArguments& args, CUstream stream) { return plan->run(args, stream); });
}

}  // namespace

Result<int> search_first(const BenchContext& context, const Problem& problem, BenchResult& result) {
  const tuner::Budget budget(tuner::steady_clock(), context.search_seconds);
  const auto decision = context.search->decide(task_at(problem, result.tokens), budget);
  if (!decision) return tl::unexpected<Error>(decision.error());
  const int winner = context.search->winner();
  const tuner::GpuBench& bench = *context.search->bench();
  if (decision->outcome == tuner::Outcome::kNoneRight || !bench.has_kernel(winner)) {
    return fail(ErrorCode::kInternal,
                fmt::format("the search for {} has no kernel to offer: {}",
                            to_text(decision->task), tuner::name_of(decision->outcome)));
  }
  result.kernel = describe(*bench.built(winner).kernel);
  result.search = to_json(*decision);
  return winner;
}

Result<PreparedPlan> prepare_plan(const BenchContext& context, const Problem& problem,
                                  std::int64_t lo, std::int64_t hi) {
  auto plan = PlanHandle::create(context.library, context.gpu.device(), problem);
  if (!plan) return tl::unexpected<Error>(plan.error());
  if (Status ok = plan->prepare(lo, hi); !ok) return tl::unexpected<Error>(ok.error());
  const auto description = plan->describe();
  if (!description) return tl::unexpected<Error>(description.error());
  return PreparedPlan{std::move(*plan), description->at("kernels").at(0)};
}

Status compare(const BenchContext& context, const std::vector<Contender>& contenders,
               std::size_t slots, BenchResult& result) {
  auto timings = measure(context.gpu, contenders, timing_options(context.rounds, slots));
  if (!timings) return tl::unexpected<Error>(timings.error());
  result.ours = std::move(timings->front());
  if (contenders.size() < 2) return {};
  result.has_baseline = true;
  result.baseline = std::move(*std::min_element(
      timings->begin() + 1, timings->end(),
      [](const Timing& a, const Timing& b) { return a.median_us < b.median_us; }));
  result.ratio = median_ratio(result.baseline, result.ours);
  return {};
}

Result<BenchResult> bench_gemm(const BenchContext& context, const GemmProblem& problem,
                               std::int64_t m) {
  BenchResult result;
  result.problem = problem;
  result.tokens = m;
  const std::int64_t bytes = bytes_touched(problem, m);
  auto slots =
      make_slots(context.gpu, problem, m, rotation_slots(context.gpu, bytes), kOperandSeed);
  if (!slots) return tl::unexpected<Error>(slots.error());
  const auto run = context.search == nullptr ? planned_gemm(context, problem, result)
                                             : searched_gemm(context, problem, result);
  if (!run) return tl::unexpected<Error>(run.error());
  GemmSlot& slot = slots->front();
  const auto check = run_and_check(context.gpu, problem, slot,
                                   [&] { return (*run)(args_of(slot), context.gpu.stream()); });
  if (!check) return tl::unexpected<Error>(check.error());
  note_check("octile", *check, result);
  const Status ok =
      context.cublaslt == nullptr
          ? compare(context, {gemm_contender(context, *run, *slots)}, slots->size(), result)
          : compare_with_cublaslt(context, problem, *slots, *run, result);
  if (!ok) return tl::unexpected<Error>(ok.error());
  result.tflops = 2.0 * static_cast<double>(m) * static_cast<double>(problem.n) *
                  static_cast<double>(problem.k) / result.ours.median_us * 1e-6;
  result.tbps = static_cast<double>(bytes) / result.ours.median_us * 1e-6;
  return result;
}

namespace {

// A round: `batch` calls enqueued behind each other, then waited for.
Status time_calls(const GpuSession& gpu, int batch, const std::function<Status(int)>& call,
                  Timing& timing) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < batch; ++i) {
    if (Status ok = call(i); !ok) return ok;
  }
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  timing.rounds_us.push_back(took.count() / batch);
  return gpu.synchronize();
}

}  // namespace

Result<LaunchTimings> bench_launch(const BenchContext& context, const GemmProblem& problem) {
  constexpr std::int64_t kMostTokens = 64;  // short kernels: the host is what is measured
  constexpr int kBatch = 64;                // well below the launches a driver queues
  constexpr int kBatches = 400;
  const auto prepared = prepare_plan(context, problem, 1, kMostTokens);
  if (!prepared) return tl::unexpected<Error>(prepared.error());
  const auto slots = make_slots(context.gpu, problem, kMostTokens, 8, kOperandSeed);
  if (!slots) return tl::unexpected<Error>(slots.error());
  const auto empty = load_empty_kernel(context.gpu);
  if (!empty) return tl::unexpected<Error>(empty.error());
  const auto run = [&](int i) {
    const GemmSlot& s = at(*slots, i % static_cast<int>(slots->size()));
    GemmArguments args = args_of(s);
    args.tokens = 1 + i % kMostTokens;
    args.a_scale_ld = kMostTokens;
    return prepared->plan.run(args, context.gpu.stream());
  };
  const auto launch = [&](int) { return empty->launch(1, 32, nullptr, context.gpu.stream()); };
  LaunchTimings timings;
  timings.ours.name = "octile_gemm_run";
  timings.bare.name = "empty kernel";
  for (int batch = 0; batch < kBatches; ++batch) {
    // The first calls fault code and tables in.
    if (batch == kBatches / 10) timings.ours.rounds_us = timings.bare.rounds_us = {};
    Status ok = time_calls(context.gpu, kBatch, run, timings.ours);
    if (ok) ok = time_calls(context.gpu, kBatch, launch, timings.bare);
    if (!ok) return tl::unexpected<Error>(ok.error());
  }
  summarize(timings.ours);
  summarize(timings.bare);
  return timings;
}

Json to_json(const BenchResult& result) {
  Json object{{"problem", to_text(result.problem)},
              {"tokens", result.tokens},
              {"kernel", result.kernel.at("name")},
              {"config", result.kernel.at("config")},
              {"ok", result.ok},
              {"check", result.check},
              {"octile", to_json(result.ours)},
              {"tbps", result.tbps}};
  if (!result.search.is_null()) object["search"] = result.search;
  if (result.tflops > 0) object["tflops"] = result.tflops;
  if (std::holds_alternative<QuantizeProblem>(result.problem))
    object["scale_share"] = result.scale_share;
  if (result.has_baseline) {
    object["baseline"] = to_json(result.baseline);
    object["ratio"] = result.ratio;
  }
  return object;
}

}  // namespace octile::tools
