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

// The types and functions of a family for its bench, beside the functions that its operands.h
// declares:
//   Slot                                            the operands of one call
//   Verifier                                        checks the results of candidates
//   make_verifier(context, problem, slot, seed)
//   spot_check(verifier, config, run), verify(...)  what the verifier says of a candidate
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
    const int count = rotation_slots(gpu.spec(), bytes_touched(problem, tokens));
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

  Result<Verdict> spot_check(int candidate) override {
    if (Status ok = load(candidate); !ok) return Verdict{false, ok.error().message, {}};
    return BenchFamily<P>::spot_check(*verifier_, config_as<P>(config(candidate)),
                                      run_of(candidate));
  }
  Result<Verdict> verify(int candidate) override {
    if (Status ok = load(candidate); !ok) return Verdict{false, ok.error().message, {}};
    return BenchFamily<P>::verify(*verifier_, config_as<P>(config(candidate)), run_of(candidate));
  }
  bool has_kernel(int candidate) const override { return kernels_.contains(candidate); }
  Contender contender(int candidate) const override {
    return {name(candidate),
            [this, candidate](int slot, CUstream stream) {
              const Slot& operands = slots_[static_cast<std::size_t>(slot)];
              return kernel(candidate).run(args_of(operands), stream);
            },
            slot_count()};
  }
  int slot_count() const override { return static_cast<int>(slots_.size()); }

  // The kernel of a loaded candidate.
  const FixedKernel<P>& kernel(int candidate) const { return kernels_.at(candidate); }
  // The operands that calls rotate over, to time other implementations on the same.
  const std::vector<Slot>& slots() const { return slots_; }

 private:
  KernelBench(TunerContext& context, const P& problem, std::vector<Ranked> candidates,
              std::vector<Slot> slots, Replayer replayer)
      : GpuBench(context, problem, std::move(candidates), std::move(replayer)),
        problem_(problem),
        slots_(std::move(slots)) {}

  auto run_of(int candidate) const {
    return [&only = kernel(candidate)](const auto& args, CUstream stream) {
      return only.run(args, stream);
    };
  }

  // Loads a built candidate, once, in this thread, because loading may stop the device for a
  // moment.
  Status load(int candidate) {
    if (kernels_.contains(candidate)) return {};
    const GpuSession& gpu = context_.gpu;
    auto kernel = FixedKernel<P>::load(context_.library, gpu.driver(), gpu.ordinal(), gpu.spec(),
                                       problem_, config_as<P>(config(candidate)), built(candidate));
    if (!kernel) return tl::unexpected<Error>(kernel.error());
    kernels_.emplace(candidate, std::move(*kernel));
    return {};
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
