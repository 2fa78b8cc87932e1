#include "runtime/families/quantize/bench.h"

#include <utility>

namespace octile::tuner {

Result<std::unique_ptr<QuantizeBench>> QuantizeBench::create(TunerContext& shop,
                                                             const QuantizeProblem& problem,
                                                             std::int64_t rows,
                                                             std::vector<Ranked> candidates,
                                                             std::uint64_t seed) {
  const GpuSession& gpu = shop.gpu;
  const int count = rotation_slots(gpu, bytes_touched(problem, rows));
  auto slots = make_quantize_slots(gpu, problem, rows, count, seed);
  if (!slots) return tl::unexpected<Error>(slots.error());
  auto replayer = Replayer::create(gpu);
  if (!replayer) return tl::unexpected<Error>(replayer.error());
  std::unique_ptr<QuantizeBench> bench(new QuantizeBench(shop, problem, std::move(candidates),
                                                         std::move(*slots), std::move(*replayer)));
  auto gate = QuantizeVerifier::create(gpu, problem, bench->slots().front(), seed);
  if (!gate) return tl::unexpected<Error>(gate.error());
  bench->set_verifier(std::move(*gate));
  return bench;
}

}  // namespace octile::tuner
