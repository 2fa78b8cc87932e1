#include "runtime/prove/gemm/adversarial_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/prove/fixed_kernel.h"
#include "runtime/prove/gemm/bench.h"
#include "runtime/prove/gemm/operands.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/synthetic.h"

namespace octile::tuner {
namespace {

constexpr double kLongestBuild = 300;  // seconds

// A GEMM that is measured, and the configuration that it runs with.
struct Probe {
  GemmAtTokens gemm;
  KernelConfig config;
};

Probe probe_of(const GemmAtTokens& gemm, const DeviceSpec& device) {
  return {small_gemm(gemm, device), default_config(gemm.problem, gemm.tokens, device)};
}

// Overwrites the codes of an operand, but for padding.
Status make_adversarial(const GpuSession& gpu, Adversary adversary, const GemmAtTokens& gemm,
                        const std::vector<std::int32_t>& starts, std::uint64_t seed,
                        DeviceTensor& operand) {
  const auto ld = round_up(operand.cols, 16);
  const std::int64_t length = has_tokens_in_k(gemm.problem) ? gemm.tokens : gemm.problem.k;
  auto codes = download(gpu, operand.data);
  if (!codes) return tl::unexpected<Error>(codes.error());
  const std::int64_t rows = static_cast<std::int64_t>(codes->size()) / ld;
  for (std::int64_t col = 0; col < length; ++col) {
    const bool starts_sum = col == 0 || std::ranges::find(starts, col) != starts.end();
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto at = static_cast<std::size_t>(row * ld + col);
      const float value =
          adversarial_value(adversary, starts_sum, reference::random_bits(seed, at));
      (*codes)[at] = reference::to_fp8(value, operand.type.dtype);
    }
  }
  return operand.data.upload(codes->data(), codes->size(), gpu.stream(), 0);
}

Status make_adversarial(const GpuSession& gpu, Adversary adversary, const GemmAtTokens& gemm,
                        std::uint64_t seed, GemmSlot& slot) {
  const auto starts = groups_k(gemm.problem) ? slot.groups.host : std::vector<std::int32_t>();
  Status ok = make_adversarial(gpu, adversary, gemm, starts, 2 * seed, slot.a);
  if (ok) ok = make_adversarial(gpu, adversary, gemm, starts, 2 * seed + 1, slot.b);
  return ok ? gpu.synchronize() : ok;
}

Result<double> error_of(TunerContext& context, const Probe& probe, Built built,
                        std::uint64_t seed) {
  const GpuSession& gpu = context.gpu;
  const GemmProblem& problem = probe.gemm.problem;
  const auto kernel = FixedKernel<GemmProblem>::load(
      context.library, gpu.driver(), gpu.ordinal(), gpu.spec(), problem,
      config_as<GemmProblem>(probe.config), std::move(built));
  if (!kernel) return tl::unexpected<Error>(kernel.error());
  auto slots = make_slots(gpu, problem, probe.gemm.tokens, 1, seed);
  if (!slots) return tl::unexpected<Error>(slots.error());
  GemmSlot& slot = slots->front();
  const auto run = [&] { return kernel->run(args_of(slot), gpu.stream()); };
  auto check = run_and_check(gpu, problem, slot, run);
  double error = check ? check->error : 0;
  for (const Adversary adversary : {Adversary::kOneSign, Adversary::kLargeThenSmall}) {
    if (!check) break;
    GemmAtTokens made = probe.gemm;
    made.tokens = slot.tokens;
    if (Status ok = make_adversarial(gpu, adversary, made, seed, slot); !ok)
      return tl::unexpected<Error>(ok.error());
    check = run_and_check(gpu, problem, slot, run);
    if (check) error = std::max(error, check->error);
  }
  if (!check) return tl::unexpected<Error>(check.error());
  return error;
}

}  // namespace

// Products of two values are at most 4 beside one of 2^16, and a sum keeps 2^13.
float adversarial_value(Adversary adversary, bool starts_sum, std::uint64_t bits) {
  constexpr float kLarge = 256;
  const auto step = static_cast<float>(bits % 4);  // E5M2 has four values a binade
  if (adversary == Adversary::kLargeThenSmall) return starts_sum ? kLarge : (5 + step) / 4;
  return (4 + step) / 4 * ((bits & 4) != 0 ? 0.5F : 1.0F);
}

GemmAtTokens small_gemm(const GemmAtTokens& gemm, const DeviceSpec& device) {
  constexpr std::int64_t kMostRows = 256, kMostGemms = 4;
  GemmAtTokens small = gemm;
  GemmProblem& problem = small.problem;
  problem.n = std::min(problem.n, kMostRows);
  problem.groups = std::min(problem.groups, kMostGemms);
  if (!problem.sums_batch) problem.batch = std::min(problem.batch, kMostGemms);
  if (has_tokens_in_k(problem)) {
    problem.m = std::min(problem.m, kMostRows);
  } else {
    small.tokens = std::min(small.tokens, kMostRows);
  }
  const KernelConfig config = default_config(gemm.problem, gemm.tokens, device);
  return rejection_reason(config, problem, small.tokens, device) ? gemm : small;
}

Result<std::vector<double>> adversarial_errors(TunerContext& context,
                                               const std::vector<GemmAtTokens>& gemms,
                                               std::uint64_t seed) {
  std::vector<Probe> probes;
  for (const GemmAtTokens& gemm : gemms) {
    probes.push_back(probe_of(gemm, context.gpu.spec()));
    context.builds.start(probes.back().gemm.problem, probes.back().config, Need::kNow);
  }
  std::vector<double> errors;
  for (const Probe& probe : probes) {
    const GemmProblem& problem = probe.gemm.problem;
    auto built = context.builds.wait(problem, probe.config, kLongestBuild);
    if (!built)
      return fail(ErrorCode::kInternal, fmt::format("a kernel for {} is not compiled within {} s",
                                                    to_text(problem), kLongestBuild));
    if (!*built) return tl::unexpected<Error>(built->error());
    const auto error = error_of(context, probe, std::move(**built), seed);
    if (!error) return tl::unexpected<Error>(error.error());
    errors.push_back(*error);
  }
  return errors;
}

}  // namespace octile::tuner
