#include "runtime/tuner/quantize_bench.h"

#include <utility>

namespace octile::tuner {

Result<std::unique_ptr<QuantizeBench>> QuantizeBench::create(GpuWorkshop& shop,
                                                             const QuantizeProblem& problem,
                                                             std::int64_t rows,
                                                             std::vector<Ranked> shortlist,
                                                             std::uint64_t seed) {
  const GpuSession& gpu = shop.gpu;
  const int count = rotation_slots(gpu, bytes_touched(problem, rows));
  auto slots = make_quantize_slots(gpu, problem, rows, count, seed);
  if (!slots) return tl::unexpected<Error>(slots.error());
  auto replayer = Replayer::create(gpu);
  if (!replayer) return tl::unexpected<Error>(replayer.error());
  std::unique_ptr<QuantizeBench> bench(new QuantizeBench(shop, problem, std::move(shortlist),
                                                         std::move(*slots), std::move(*replayer)));
  auto gate = QuantizeGate::create(gpu, problem, bench->slots_.front(), seed);
  if (!gate) return tl::unexpected<Error>(gate.error());
  bench->gate_ = std::make_unique<QuantizeGate>(std::move(*gate));
  return bench;
}

// Here and not where it is compiled: loading may stop the device for a moment.
Result<const FixedQuantize*> QuantizeBench::load(int candidate) {
  const GpuSession& gpu = shop_.gpu;
  auto kernel =
      FixedQuantize::load(shop_.library, gpu.driver(), gpu.ordinal(), gpu.spec(), problem_,
                          std::get<QuantizeConfig>(config(candidate)), built(candidate));
  if (!kernel) return tl::unexpected<Error>(kernel.error());
  return &kernels_.insert_or_assign(candidate, std::move(*kernel)).first->second;
}

Result<Verdict> QuantizeBench::gate(int candidate) {
  const auto kernel = load(candidate);
  if (!kernel) return Verdict{false, kernel.error().message, {}};
  return gate_->check([&](const octile_quantize_args& args, CUstream stream) {
    return (*kernel)->run(args, stream);
  });
}

Contender QuantizeBench::contender(int candidate) const {
  return {name(candidate), [this, candidate](int slot, CUstream stream) {
            return kernel(candidate).run(args_of(slots_[static_cast<std::size_t>(slot)]), stream);
          }};
}

}  // namespace octile::tuner
