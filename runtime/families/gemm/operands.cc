#include "runtime/families/gemm/operands.h"

#include <utility>

#include "runtime/families/gemm/tensor_arguments.h"
#include "runtime/measure/random_operands.h"

namespace octile {
namespace {

// D of the slot against FP64 on the slot's operands.
Result<GemmCheck> check_slot(const GpuSession& gpu, const GemmProblem& problem,
                             const GemmSlot& slot) {
  const auto a = download(gpu, slot.a);
  if (!a) return tl::unexpected<Error>(a.error());
  const auto b = download(gpu, slot.b);
  if (!b) return tl::unexpected<Error>(b.error());
  const auto d = download(gpu, slot.d);
  if (!d) return tl::unexpected<Error>(d.error());
  return check_gemm(problem, *a, *b, d->data());
}

}  // namespace

std::int64_t bytes_moved(const GemmProblem& problem, std::int64_t tokens) {
  const auto [m, n, k] = shape_of(problem, tokens);
  return m * k + n * k + m * n * size_of(problem.d);
}

std::int64_t bytes_touched(const GemmProblem& problem, std::int64_t tokens) {
  return bytes_moved(problem, tokens);
}

GemmArguments args_of(const GemmSlot& slot) {
  GemmArguments args = gemm_args(slot.a, slot.b, slot.d.pointer());
  args.tokens = slot.tokens;
  return args;
}

Result<std::vector<GemmSlot>> make_slots(const GpuSession& gpu, const GemmProblem& problem,
                                         std::int64_t tokens, int slots, std::uint64_t seed) {
  const auto [m, n, k] = shape_of(problem, tokens);
  std::vector<GemmSlot> made;
  for (int i = 0; i < slots; ++i) {
    auto a = i == 0 ? random_tensor(gpu, problem.a, m, k, 2 * seed) : copy_of(gpu, made.front().a);
    if (!a) return tl::unexpected<Error>(a.error());
    auto b =
        i == 0 ? random_tensor(gpu, problem.b, n, k, 2 * seed + 1) : copy_of(gpu, made.front().b);
    if (!b) return tl::unexpected<Error>(b.error());
    auto d = gpu.allocate(static_cast<std::size_t>(m * n * size_of(problem.d)));
    if (!d) return tl::unexpected<Error>(d.error());
    made.push_back({std::move(*a), std::move(*b), std::move(*d), tokens});
  }
  if (Status ok = gpu.synchronize(); !ok) return tl::unexpected<Error>(ok.error());
  return made;
}

Result<GemmCheck> run_and_check(const GpuSession& gpu, const GemmProblem& problem, GemmSlot& slot,
                                const std::function<Status()>& run) {
  constexpr std::uint8_t kPoison = 0xFF;  // two such bytes are a bf16 NaN
  Status ok = slot.d.fill(kPoison, gpu.stream());
  if (ok) ok = run();
  if (ok) ok = gpu.synchronize();
  if (!ok) return tl::unexpected<Error>(ok.error());
  return check_slot(gpu, problem, slot);
}

}  // namespace octile
