// A GEMM's benchmark: checked against FP64, timed beside cuBLASLt.
#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/prove/gemm/bench.h"
#include "runtime/prove/gemm/operands.h"
#include "tools/bench/measurement.h"
#include "tools/bench/runner.h"
#include "tools/bench/yardsticks.h"
#include "tools/peers/peers.h"

namespace octile::tools {
namespace {

constexpr std::uint64_t kOperandSeed = 1;  // the same operands every run

// Runs `call` on the slot and adds to the record's check how far D is from FP64.
Status check_against_fp64(const BenchContext& context, const GemmProblem& problem, GemmSlot& slot,
                          const std::string& who, const std::function<Status()>& call,
                          Record& record) {
  const auto check = run_and_check(context.gpu, problem, slot, call);
  if (!check) return tl::unexpected<Error>(check.error());
  record.ok = record.ok && check->ok;
  record.check +=
      fmt::format("{}{}: {}", record.check.empty() ? "" : "; ", who, check->worst.to_text());
  return {};
}

Contender gemm_contender(const BenchContext& context, const Runner<GemmProblem>& run,
                         const std::vector<GemmSlot>& slots) {
  const std::uint32_t flags = context.b_ready ? OCTILE_RUN_B_READY : OCTILE_RUN_DEFAULT;
  return {"octile",
          [&run, &slots, flags](int i, CUstream stream) {
            GemmArguments args = args_of(slot_at(slots, i));
            args.flags = flags;
            return run(args, stream);
          },
          static_cast<int>(slots.size())};
}

// If cuBLASLt does not take the problem (m % 4 != 0, say), times Octile's GEMM alone.
Status compare_with_cublaslt(const BenchContext& context, const GemmProblem& problem,
                             std::int64_t tokens, std::vector<GemmSlot>& slots,
                             const Runner<GemmProblem>& run, Record& record) {
  const Contender octile_gemm = gemm_contender(context, run, slots);
  const auto peer = Peer::cublaslt(context.cublaslt, context.gpu, problem, tokens, slots);
  if (!peer && peer.error().code == ErrorCode::kUnsupported) {
    record.check += "; no cublaslt: " + peer.error().message;
    return compare(context, {octile_gemm}, "", record);
  }
  if (!peer) return tl::unexpected<Error>(peer.error());
  Status checked = check_against_fp64(
      context, problem, slots.front(), peer->name(),
      [&] { return peer->run(0, context.gpu.stream()); }, record);
  if (!checked) return checked;
  return compare(context, {octile_gemm, peer->contender()}, version_text(*context.cublaslt),
                 record);
}

// Adds one round to the samples: `batch` calls enqueued behind each other, then waited for.
Status time_calls(const GpuSession& gpu, int batch, const std::function<Status(int)>& call,
                  std::vector<double>& samples) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < batch; ++i) {
    if (Status ok = call(i); !ok) return ok;
  }
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  samples.push_back(took.count() / batch);
  return gpu.synchronize();
}

// Times both calls in batches that take turns.
Status time_in_turns(const GpuSession& gpu, const std::function<Status(int)>& octile_call,
                     const std::function<Status(int)>& bare_call, Record& record) {
  constexpr int kBatch = 64;  // well below the launches a driver queues
  constexpr int kFirst = 40;  // whose calls fault code and tables in
  constexpr int kRounds = 360;
  std::vector<double> octile_us, bare_us;
  for (int batch = 0; batch < kFirst + kRounds; ++batch) {
    if (batch == kFirst) octile_us = bare_us = {};
    Status ok = time_calls(gpu, kBatch, octile_call, octile_us);
    if (ok) ok = time_calls(gpu, kBatch, bare_call, bare_us);
    if (!ok) return ok;
  }
  record.protocol = {"host", kRounds, true, "",
                     fmt::format("a round is {} calls, each with new pointers", kBatch)};
  record.values = measured(std::move(octile_us));
  record.peers = {{"empty kernel", "", measured(std::move(bare_us)), {}}};
  return {};
}

}  // namespace

std::string bench_label(const GemmProblem& problem) { return short_text(problem); }

Result<Record> bench(const BenchContext& context, const GemmProblem& problem, std::int64_t tokens) {
  Record record = record_of(context, problem, tokens);
  const int count = rotation_slots(context.gpu.spec(), bytes_touched(problem, tokens));
  auto slots = make_slots(context.gpu, problem, tokens, count, kOperandSeed);
  if (!slots) return tl::unexpected<Error>(slots.error());
  const auto run = make_runner(context, problem, tokens, record);
  if (!run) return tl::unexpected<Error>(run.error());
  GemmSlot& first = slots->front();
  Status ok = check_against_fp64(
      context, problem, first, "octile",
      [&] { return (*run)(args_of(first), context.gpu.stream()); }, record);
  if (ok && context.cublaslt == nullptr) {
    ok = compare(context, {gemm_contender(context, *run, *slots)}, "", record);
  } else if (ok) {
    ok = compare_with_cublaslt(context, problem, tokens, *slots, *run, record);
  }
  if (!ok) return tl::unexpected<Error>(ok.error());
  record.details.set("flop", flops(problem, tokens));
  record.details.set("bytes", bytes_moved(problem, tokens));
  if (context.b_ready) record.details.set("b_ready", true);
  return record;
}

Result<std::optional<Record>> host_overhead(const BenchContext& context,
                                            const GemmProblem& problem) {
  Record record = new_record(context.tool, context.gpu);
  record.what = to_text(problem);
  record.part = "host's part of octile_gemm_run";
  record.unit = "us";
  constexpr std::int64_t kHostBoundTokens = 64;  // kernels so short that the host is measured
  constexpr int kSlots = 8;
  const auto prepared = prepare_plan(context, problem, 1, kHostBoundTokens);
  if (!prepared) return tl::unexpected<Error>(prepared.error());
  const auto slots = make_slots(context.gpu, problem, kHostBoundTokens, kSlots, kOperandSeed);
  if (!slots) return tl::unexpected<Error>(slots.error());
  const auto empty = empty_kernel(context.templates);
  if (!empty) return tl::unexpected<Error>(empty.error());
  const auto run = [&](int i) {
    GemmArguments args = args_of(slot_at(*slots, i % kSlots));
    args.tokens = 1 + i % kHostBoundTokens;
    if (!has_tokens_in_k(problem)) args.a_scale_ld = kHostBoundTokens;
    return prepared->plan.run(args.call(), context.gpu.stream());
  };
  const auto launch = [&](int) { return (*empty)->launch(1, 32, nullptr, context.gpu.stream()); };
  if (Status ok = time_in_turns(context.gpu, run, launch, record); !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  return record;
}

}  // namespace octile::tools
