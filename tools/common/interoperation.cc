#include <utility>

#include "tools/common/cublaslt.h"
#include "tools/common/operands.h"

namespace octile::tools {
namespace {

// D of the slot against FP64 on the slot's operands.
Result<ProductCheck> check_slot(const GpuSession& gpu, const GemmProblem& problem,
                                const GemmSlot& slot) {
  const auto a = download(gpu, slot.a);
  if (!a) return tl::unexpected<Error>(a.error());
  const auto b = download(gpu, slot.b);
  if (!b) return tl::unexpected<Error>(b.error());
  const auto d = download(gpu, slot.d);
  if (!d) return tl::unexpected<Error>(d.error());
  return check_product(problem, *a, *b, d->data());
}

}  // namespace

Result<ProductCheck> run_and_check(const GpuSession& gpu, const GemmProblem& problem,
                                   GemmSlot& slot, const std::function<Status()>& run) {
  constexpr std::uint8_t kPoison = 0xFF;  // two of them are a bf16 NaN
  Status ok = slot.d.fill(kPoison, gpu.stream());
  if (ok) ok = run();
  if (ok) ok = gpu.synchronize();
  if (!ok) return tl::unexpected<Error>(ok.error());
  return check_slot(gpu, problem, slot);
}

Result<Interoperation> check_interoperation(const LibraryHandle& library, const GpuSession& gpu,
                                            const std::shared_ptr<const CublasLt>& cublaslt,
                                            const GemmProblem& problem, std::int64_t m) {
  auto slots = make_gemm_slots(library, gpu, problem, m, 1);
  if (!slots) return tl::unexpected<Error>(slots.error());
  GemmSlot& slot = slots->front();
  const auto plan = PlanHandle::create(library, gpu.device(), Problem(problem));
  if (!plan) return tl::unexpected<Error>(plan.error());
  if (Status ok = plan->prepare(m, m); !ok) return tl::unexpected<Error>(ok.error());
  const auto peer = BlockScaledMatmul::create(cublaslt, gpu, problem, m);
  if (!peer) return tl::unexpected<Error>(peer.error());
  auto ours = run_and_check(gpu, problem, slot, [&] {
    return plan->run(gemm_args(slot.a, slot.b, slot.d.pointer()), gpu.stream());
  });
  if (!ours) return tl::unexpected<Error>(ours.error());
  auto theirs = run_and_check(gpu, problem, slot,
                              [&] { return peer->run(0, slot.a, slot.b, slot.d, gpu.stream()); });
  if (!theirs) return tl::unexpected<Error>(theirs.error());
  return Interoperation{std::move(*ours), std::move(*theirs)};
}

}  // namespace octile::tools
