// The bench of one family: kernels of stated configurations, verified and timed on slots of
// operands.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/prove/fixed_kernel.h"
#include "runtime/prove/gpu_bench.h"

namespace octile::tuner {

// What a family gives for its bench, beside the functions that its operands.h declares:
//   Slot                                            the operands of one call
//   Verifier                                        checks what candidates compute
//   make_verifier(context, problem, slot, seed)
//   check(verifier, config, run)                    what the verifier says of a candidate
//   bytes_touched(problem, tokens)                  what one call touches
//   make_slots(gpu, problem, tokens, count, seed)   slots of the same random values
//   args_of(slot)                                   the arguments of a call on it
template <typename P>
struct BenchFamily;

template <typename P>
class KernelBench final : public GpuBench {
 public:
  using Slot = typename BenchFamily<P>::Slot;
  using Verifier = typename BenchFamily<P>::Verifier;

  // Makes operands by `seed`. Errors: as make_slots.
  static Result<std::unique_ptr<KernelBench>> create(TunerContext& context, const P& problem,
                                                     std::int64_t tokens,
                                                     std::vector<Ranked> candidates,
                                                     std::uint64_t seed) {
    const GpuSession& gpu = context.gpu;
    const int count = rotation_slots(gpu, bytes_touched(problem, tokens));
    auto slots = make_slots(gpu, problem, tokens, count, seed);
    if (!slots) return tl::unexpected<Error>(slots.error());
    auto replayer = Replayer::create(gpu);
    if (!replayer) return tl::unexpected<Error>(replayer.error());
    std::unique_ptr<KernelBench> bench(new KernelBench(context, problem, std::move(candidates),
                                                       std::move(*slots), std::move(*replayer)));
    auto verifier = BenchFamily<P>::make_verifier(context, problem, bench->slots_.front(), seed);
    if (!verifier) return tl::unexpected<Error>(verifier.error());
    bench->verifier_ = std::make_unique<Verifier>(std::move(*verifier));
    return bench;
  }

  Result<Verdict> verify(int candidate) override {
    const auto kernel = load(candidate);
    if (!kernel) return Verdict{false, kernel.error().message, {}};
    return BenchFamily<P>::check(
        *verifier_, config_as<P>(config(candidate)),
        [&](const auto& args, CUstream stream) { return (*kernel)->run(args, stream); });
  }
  bool has_kernel(int candidate) const override { return kernels_.contains(candidate); }
  Contender contender(int candidate) const override {
    return {name(candidate), [this, candidate](int slot, CUstream stream) {
              const Slot& operands = slots_[static_cast<std::size_t>(slot) % slots_.size()];
              return kernel(candidate).run(args_of(operands), stream);
            }};
  }
  int slot_count() const override { return static_cast<int>(slots_.size()); }

  // The kernel of a verified candidate.
  const FixedKernel<P>& kernel(int candidate) const { return kernels_.at(candidate); }
  // The operands that calls rotate over, to time other implementations on the same.
  const std::vector<Slot>& slots() const { return slots_; }

 private:
  KernelBench(TunerContext& context, const P& problem, std::vector<Ranked> candidates,
              std::vector<Slot> slots, Replayer replayer)
      : GpuBench(context, problem, std::move(candidates), std::move(replayer)),
        problem_(problem),
        slots_(std::move(slots)) {}

  // Loads a built candidate in this thread, because loading may stop the device for a moment.
  Result<const FixedKernel<P>*> load(int candidate) {
    const GpuSession& gpu = context_.gpu;
    auto kernel = FixedKernel<P>::load(context_.library, gpu.driver(), gpu.ordinal(), gpu.spec(),
                                       problem_, config_as<P>(config(candidate)), built(candidate));
    if (!kernel) return tl::unexpected<Error>(kernel.error());
    return &kernels_.insert_or_assign(candidate, std::move(*kernel)).first->second;
  }

  const P problem_;
  const std::vector<Slot> slots_;
  std::unique_ptr<Verifier> verifier_;  // refers to a slot
  std::map<int, FixedKernel<P>> kernels_;
};

// Returns the bench of a problem that is known to be of the family.
template <typename P>
const KernelBench<P>& bench_as(const GpuBench& bench) {
  return dynamic_cast<const KernelBench<P>&>(bench);
}

}  // namespace octile::tuner
