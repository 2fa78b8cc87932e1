#include "runtime/families/gemm/bench.h"

#include <utility>

namespace octile::tuner {

Result<std::unique_ptr<GemmBench>> GemmBench::create(TunerContext& shop, const GemmProblem& problem,
                                                     std::int64_t tokens,
                                                     std::vector<Ranked> candidates,
                                                     std::uint64_t seed) {
  const GpuSession& gpu = shop.gpu;
  const int count = rotation_slots(gpu, bytes_of_call(problem, tokens));
  auto slots = make_gemm_slots(gpu, problem, tokens, count, seed);
  if (!slots) return tl::unexpected<Error>(slots.error());
  auto replayer = Replayer::create(gpu);
  if (!replayer) return tl::unexpected<Error>(replayer.error());
  std::unique_ptr<GemmBench> bench(
      new GemmBench(shop, problem, std::move(candidates), std::move(*slots), std::move(*replayer)));
  const GemmSlot& first = bench->slots().front();
  auto gate = GemmVerifier::create(gpu, shop.inspect_bf16, problem, first.a, first.b, seed);
  if (!gate) return tl::unexpected<Error>(gate.error());
  bench->set_verifier(std::move(*gate));
  return bench;
}

}  // namespace octile::tuner
