#include "tools/peers/cublaslt.h"

#include <utility>

#include "runtime/prove/gemm/operands.h"
#include "tools/peers/quantizing.h"

namespace octile::tools {

Result<Interoperation> check_interoperation(const LibraryHandle& library, const GpuSession& gpu,
                                            const std::shared_ptr<const CublasLt>& cublaslt,
                                            const GemmProblem& problem, std::int64_t tokens) {
  const auto [m, n, k] = shape_of(problem, tokens);
  auto a = quantize_random(library, gpu, problem.a, m, k, 1);
  if (!a) return tl::unexpected<Error>(a.error());
  auto b = quantize_random(library, gpu, problem.b, n, k, 2);
  if (!b) return tl::unexpected<Error>(b.error());
  auto d = gpu.allocate(static_cast<std::size_t>(m * n * size_of(problem.d.dtype)));
  if (!d) return tl::unexpected<Error>(d.error());
  GemmSlot slot;
  slot.a = std::move(*a);
  slot.b = std::move(*b);
  slot.d = std::move(*d);
  slot.tokens = tokens;
  const auto plan = PlanHandle::create(library, gpu.device(), Problem(problem));
  if (!plan) return tl::unexpected<Error>(plan.error());
  if (Status ok = plan->prepare(tokens, tokens); !ok) return tl::unexpected<Error>(ok.error());
  const auto peer = LtMatmul::scaled(cublaslt, gpu, problem, tokens);
  if (!peer) return tl::unexpected<Error>(peer.error());
  auto octile_check = run_and_check(gpu, problem, slot,
                                    [&] { return plan->run(args_of(slot).call(), gpu.stream()); });
  if (!octile_check) return tl::unexpected<Error>(octile_check.error());
  auto cublaslt_check = run_and_check(gpu, problem, slot, [&] {
    return peer->run(0, lt_operands(slot.a, slot.b, slot.d), gpu.stream());
  });
  if (!cublaslt_check) return tl::unexpected<Error>(cublaslt_check.error());
  return Interoperation{*octile_check, *cublaslt_check};
}

}  // namespace octile::tools
