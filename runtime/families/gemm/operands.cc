#include "runtime/families/gemm/operands.h"

#include <bit>
#include <utility>

#include "runtime/families/gemm/tensor_arguments.h"
#include "runtime/measure/random_operands.h"

namespace octile {
namespace {

constexpr std::uint8_t kPoison = 0xFF;  // two such bytes are a NaN of 16-bit D

// Returns an operand whose rows are as far apart as octile_gemm_args takes them by default.
Result<DeviceTensor> random_operand(const GpuSession& gpu, const TensorType& type,
                                    std::int64_t rows, std::int64_t k, std::uint64_t seed) {
  auto tensor = random_tensor(gpu, type, rows, round_up(k, 16), seed);
  if (tensor) tensor->cols = k;
  return tensor;
}

// Makes what the slot has beside A and B.
Status add_outputs(const GpuSession& gpu, const GemmProblem& problem, std::int64_t m,
                   std::uint64_t seed, GemmSlot& slot) {
  const auto make = [&](std::int64_t bytes, DeviceBuffer& to) -> Status {
    auto buffer = gpu.allocate(static_cast<std::size_t>(bytes));
    if (!buffer) return tl::unexpected<Error>(buffer.error());
    to = std::move(*buffer);
    return to.fill(0, gpu.stream());
  };
  Status ok = make(m * problem.n * size_of(problem.d), slot.d);
  if (ok && problem.sentry) ok = make(4, slot.sentry);
  if (!ok || !problem.bias) return ok;
  auto bias = random_values(gpu, *problem.bias, problem.n, seed, Values::kNormal);
  if (!bias) return tl::unexpected<Error>(bias.error());
  slot.bias = std::move(*bias);
  return {};
}

// D of the slot against FP64 on the slot's operands.
Result<GemmCheck> check_slot(const GpuSession& gpu, const GemmProblem& problem,
                             const GemmSlot& slot) {
  const auto a = download(gpu, slot.a);
  if (!a) return tl::unexpected<Error>(a.error());
  const auto b = download(gpu, slot.b);
  if (!b) return tl::unexpected<Error>(b.error());
  const auto d = download(gpu, slot.d);
  if (!d) return tl::unexpected<Error>(d.error());
  GemmAddends addends{nullptr, addend_of(problem)};
  if (!problem.bias) return check_gemm(problem, *a, *b, d->data(), addends);
  const auto bias = download(gpu, slot.bias);
  if (!bias) return tl::unexpected<Error>(bias.error());
  addends.bias = bias->data();
  return check_gemm(problem, *a, *b, d->data(), addends);
}

}  // namespace

float addend_of(const GemmProblem& problem) {
  return std::bit_cast<float>(problem.d == DType::kFP32 ? 0x40404040U : 0x40400000U);
}

std::int64_t bytes_moved(const GemmProblem& problem, std::int64_t tokens) {
  const auto [m, n, k] = shape_of(problem, tokens);
  return m * k + n * k + m * n * size_of(problem.d) * (problem.accumulate ? 2 : 1);
}

std::int64_t bytes_touched(const GemmProblem& problem, std::int64_t tokens) {
  const auto [m, n, k] = shape_of(problem, tokens);
  return m * k + n * k + m * n * size_of(problem.d);
}

GemmArguments args_of(const GemmSlot& slot) {
  GemmArguments args = gemm_args(slot.a, slot.b, slot.d.pointer());
  args.tokens = slot.tokens;
  args.bias = slot.bias.pointer();
  args.sentry = static_cast<std::uint32_t*>(slot.sentry.pointer());
  return args;
}

Result<std::vector<GemmSlot>> make_slots(const GpuSession& gpu, const GemmProblem& problem,
                                         std::int64_t tokens, int slots, std::uint64_t seed) {
  const auto [m, n, k] = shape_of(problem, tokens);
  std::vector<GemmSlot> made;
  for (int i = 0; i < slots; ++i) {
    auto a = i == 0 ? random_operand(gpu, problem.a, m, k, 2 * seed) : copy_of(gpu, made.front().a);
    if (!a) return tl::unexpected<Error>(a.error());
    auto b =
        i == 0 ? random_operand(gpu, problem.b, n, k, 2 * seed + 1) : copy_of(gpu, made.front().b);
    if (!b) return tl::unexpected<Error>(b.error());
    made.push_back({std::move(*a), std::move(*b), {}, tokens, {}, {}});
    if (Status ok = add_outputs(gpu, problem, m, seed, made.back()); !ok) {
      return tl::unexpected<Error>(ok.error());
    }
  }
  if (Status ok = gpu.synchronize(); !ok) return tl::unexpected<Error>(ok.error());
  return made;
}

Result<GemmCheck> run_and_check(const GpuSession& gpu, const GemmProblem& problem, GemmSlot& slot,
                                const std::function<Status()>& run) {
  Status ok = slot.d.fill(problem.accumulate ? kAddendByte : kPoison, gpu.stream());
  if (ok) ok = run();
  if (ok) ok = gpu.synchronize();
  if (!ok) return tl::unexpected<Error>(ok.error());
  return check_slot(gpu, problem, slot);
}

}  // namespace octile
