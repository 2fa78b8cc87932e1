#include "runtime/tuner/gemm_bench.h"

#include <utility>

namespace octile::tuner {

Result<std::unique_ptr<GemmBench>> GemmBench::create(GpuWorkshop& shop, const GemmProblem& problem,
                                                     std::int64_t tokens,
                                                     std::vector<Ranked> shortlist,
                                                     std::uint64_t seed) {
  const GpuSession& gpu = shop.gpu;
  const int count = rotation_slots(gpu, bytes_of_call(problem, tokens));
  auto slots = make_gemm_slots(gpu, problem, tokens, count, seed);
  if (!slots) return tl::unexpected<Error>(slots.error());
  auto replayer = Replayer::create(gpu);
  if (!replayer) return tl::unexpected<Error>(replayer.error());
  const GemmSlot& first = slots->front();
  // Slots move as a whole: their buffers stay where they are on the device.
  auto gate = GemmGate::create(gpu, shop.inspect_bf16, problem, first.a, first.b, seed);
  if (!gate) return tl::unexpected<Error>(gate.error());
  return std::unique_ptr<GemmBench>(new GemmBench(shop, problem, std::move(shortlist),
                                                  std::move(*slots), std::move(*gate),
                                                  std::move(*replayer)));
}

// Here and not where it is compiled: loading may stop the device for a moment.
Result<const FixedGemm*> GemmBench::load(int candidate) {
  const GpuSession& gpu = shop_.gpu;
  auto kernel = FixedGemm::load(shop_.library, gpu.driver(), gpu.ordinal(), gpu.spec(), problem_,
                                std::get<GemmConfig>(config(candidate)), built(candidate));
  if (!kernel) return tl::unexpected<Error>(kernel.error());
  return &kernels_.insert_or_assign(candidate, std::move(*kernel)).first->second;
}

Result<Verdict> GemmBench::gate(int candidate) {
  const auto kernel = load(candidate);
  if (!kernel) return Verdict{false, kernel.error().message, {}};
  return gate_.check(
      [&](const octile_gemm_args& args, CUstream stream) { return (*kernel)->run(args, stream); });
}

Contender GemmBench::contender(int candidate) const {
  return {name(candidate), [this, candidate](int slot, CUstream stream) {
            const GemmSlot& s = slots_[static_cast<std::size_t>(slot)];
            return kernel(candidate).run(gemm_args(s.a, s.b, s.d.pointer()), stream);
          }};
}

}  // namespace octile::tuner
