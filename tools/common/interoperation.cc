#include "tools/common/cublaslt.h"
#include "tools/common/operands.h"

namespace octile::tools {

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
  return Interoperation{*ours, *theirs};
}

}  // namespace octile::tools
