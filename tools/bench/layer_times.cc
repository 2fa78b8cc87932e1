#include "tools/bench/layer_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "runtime/prove/gemm/bench.h"
#include "runtime/prove/gemm/operands.h"
#include "runtime/prove/quantize/bench.h"
#include "runtime/prove/quantize/operands.h"
#include "tools/bench/runner.h"
#include "tools/models/bf16_roofline.h"
#include "tools/peers/peers.h"

namespace octile::tools {
namespace {

constexpr std::uint64_t kSeed = 1;  // the same operands every run

// A kernel of Octile with its operands. It does not move once a contender refers to it.
template <typename P>
struct OctileKernel {
  Runner<P> run;
  std::vector<typename tuner::BenchFamily<P>::Slot> slots;

  Contender contender() const {
    return {"octile",
            [this](int i, CUstream stream) { return run(args_of(slot_at(slots, i)), stream); },
            static_cast<int>(slots.size())};
  }
};

template <typename P>
Result<std::unique_ptr<OctileKernel<P>>> prepare(const BenchContext& context, const P& problem,
                                                 std::int64_t tokens) {
  Record ignored;
  auto run = make_runner(context, problem, tokens, ignored);
  if (!run) return tl::unexpected<Error>(run.error());
  const int count = rotation_slots(context.gpu.spec(), bytes_touched(problem, tokens));
  auto slots = make_slots(context.gpu, problem, tokens, count, kSeed);
  if (!slots) return tl::unexpected<Error>(slots.error());
  return std::make_unique<OctileKernel<P>>(OctileKernel<P>{std::move(*run), std::move(*slots)});
}

// GEMMs in BF16 of one size, one behind the other.
struct Bf16 {
  Peer peer;
  int count = 1;

  Contender contender() const {
    const int slots = peer.slot_count();
    return {"bf16",
            [this, slots](int i, CUstream stream) {
              Status ok;
              for (int j = 0; ok && j < count; ++j) ok = peer.run((i * count + j) % slots, stream);
              return ok;
            },
            static_cast<int>(ceil_div(slots, count))};
  }
};

// The GEMM of one group of the mean size, or the problem itself.
struct Mean {
  GemmProblem problem;
  std::int64_t tokens = 0;
  std::int64_t count = 1;
};

Mean mean_of(const GemmUse& use) {
  constexpr std::int64_t kAlign = 8;  // rows of 16 bytes, which cuBLASLt's fast kernels take
  Mean mean{use.problem, use.tokens};
  if (use.problem.grouping != Grouping::kContiguous) return mean;
  mean.problem.grouping = Grouping::kNone;
  mean.problem.groups = 0;
  mean.count = filled_groups(use.problem, use.tokens);
  mean.tokens = ceil_div(use.tokens, mean.count);
  if (has_tokens_in_k(use.problem)) mean.tokens = round_up(mean.tokens, kAlign);
  return mean;
}

// Returns null, with a remark, if cuBLASLt does not take the GEMM.
Result<std::unique_ptr<Bf16>> prepare_bf16(const BenchContext& context, const GemmUse& use,
                                           std::vector<std::string>& remarks) {
  if (use.problem.grouping == Grouping::kMasked || is_batched(use.problem)) {
    remarks.push_back(fmt::format("BF16 of {} is estimated: no call of cuBLASLt computes it",
                                  short_text(use.problem)));
    return nullptr;
  }
  const Mean mean = mean_of(use);
  auto peer = Peer::bf16(context.cublaslt, context.gpu, mean.problem, mean.tokens);
  if (peer) return std::make_unique<Bf16>(Bf16{std::move(*peer), static_cast<int>(mean.count)});
  if (peer.error().code != ErrorCode::kUnsupported) return tl::unexpected<Error>(peer.error());
  remarks.push_back(
      fmt::format("BF16 of {} is estimated: {}", short_text(use.problem), peer.error().message));
  return nullptr;
}

// The kernels of a case. Contenders refer to it.
struct Kernels {
  std::vector<std::unique_ptr<OctileKernel<GemmProblem>>> gemms;
  std::vector<std::unique_ptr<OctileKernel<QuantizeProblem>>> quantizers;
  std::vector<std::unique_ptr<Bf16>> bf16;  // null: estimated, without a loop beside it
};

Status prepare_gemm(const BenchContext& context, const GemmUse& use, Kernels& kernels,
                    MeasuredCase& measured) {
  auto gemm = prepare(context, use.problem, use.tokens);
  if (!gemm) return tl::unexpected<Error>(gemm.error());
  OctileKernel<GemmProblem>& kernel = **gemm;
  const auto check = run_and_check(context.gpu, use.problem, kernel.slots.front(), [&] {
    return kernel.run(args_of(kernel.slots.front()), context.gpu.stream());
  });
  if (!check) return tl::unexpected<Error>(check.error());
  measured.ok = measured.ok && check->ok;
  measured.check += (measured.check.empty() ? "" : "; ") + check->worst.to_text();
  kernels.gemms.push_back(std::move(*gemm));
  auto bf16 = prepare_bf16(context, use, measured.remarks);
  if (!bf16) return tl::unexpected<Error>(bf16.error());
  kernels.bf16.push_back(std::move(*bf16));
  return {};
}

Status prepare_all(const BenchContext& context, const LayerCase& layer, Kernels& kernels,
                   MeasuredCase& measured) {
  for (const GemmUse& use : layer.gemms) {
    if (Status ok = prepare_gemm(context, use, kernels, measured); !ok) return ok;
  }
  for (const QuantizerUse& use : layer.quantizers) {
    const bool is_masked = use.problem.grouping == Grouping::kMasked;
    const std::int64_t rows = is_masked ? ceil_div(use.rows, groups_of(use.problem)) : use.rows;
    auto quantizer = prepare(context, use.problem, rows);
    if (!quantizer) return tl::unexpected<Error>(quantizer.error());
    kernels.quantizers.push_back(std::move(*quantizer));
  }
  return {};
}

KernelTime time_of(const Timing& timing) {
  const Interval interval = median_interval(timing.rounds_us);
  return {{timing.median_us, interval.lo, interval.hi, TimeSource::kMeasured}, timing.rounds_us};
}

// A loop over groups differs from a grouped GEMM, whose estimate stands in its place.
KernelTime bf16_time(const Bf16& bf16, const Timing& timing, const KernelTime& estimated,
                     Loop& loop) {
  if (bf16.count == 1) return time_of(timing);
  loop.name = fmt::format("cublaslt x {}", bf16.count);
  loop.us += timing.median_us;
  return estimated;
}

Status time_all(const BenchContext& context, const Kernels& kernels, const CaseTimes& estimated,
                MeasuredCase& measured) {
  std::vector<Contender> contenders;
  TimingOptions options;
  options.rounds = context.rounds;
  for (const auto& gemm : kernels.gemms) contenders.push_back(gemm->contender());
  for (const auto& quantizer : kernels.quantizers) contenders.push_back(quantizer->contender());
  for (const auto& bf16 : kernels.bf16) {
    if (bf16 != nullptr) contenders.push_back(bf16->contender());
  }
  const auto timings = measure(context.gpu, contenders, options);
  if (!timings) return tl::unexpected<Error>(timings.error());
  CaseTimes& times = measured.times;
  times.fused_us = estimated.fused_us;
  auto next = timings->begin();
  for (std::size_t i = 0; i < kernels.gemms.size(); ++i) times.gemms.push_back(time_of(*next++));
  for (std::size_t i = 0; i < kernels.quantizers.size(); ++i) {
    times.quantizers.push_back(time_of(*next++));
  }
  for (std::size_t i = 0; i < kernels.bf16.size(); ++i) {
    const Bf16* bf16 = kernels.bf16[i].get();
    times.bf16.push_back(bf16 == nullptr
                             ? estimated.bf16[i]
                             : bf16_time(*bf16, *next++, estimated.bf16[i], measured.loop));
  }
  if (measured.loop.us > 0) {
    measured.remarks.push_back(
        fmt::format("BF16 is estimated as grouped GEMMs; {}, a call a group, takes {:.2f} us",
                    measured.loop.name, measured.loop.us));
  }
  return {};
}

}  // namespace

Result<MeasuredCase> measure_case(const BenchContext& context, const LayerCase& layer,
                                  const CaseTimes& estimated) {
  MeasuredCase measured;
  Kernels kernels;
  if (Status ok = prepare_all(context, layer, kernels, measured); !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  if (Status ok = time_all(context, kernels, estimated, measured); !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  return measured;
}

}  // namespace octile::tools
