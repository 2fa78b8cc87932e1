// What the Benches of one family and another have in common: kernels of stated configurations,
// verified and timed on slots of operands. A family is its `Problem`, its `Config`, the `Fixed` kernel
// that both make, the `Slot` one call works on (args_of gives its arguments) and the `Verifier`.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/tuner/gpu_bench.h"

namespace octile::tuner {

template <typename Problem, typename Config, typename Fixed, typename Slot, typename Verifier>
class KernelBench : public GpuBench {
 public:
  Result<Verdict> verify(int candidate) override {
    const auto kernel = load(candidate);
    if (!kernel) return Verdict{false, kernel.error().message, {}};
    return verifier_->check(
        [&](const auto& args, CUstream stream) { return (*kernel)->run(args, stream); });
  }
  bool has_kernel(int candidate) const override { return kernels_.contains(candidate); }
  Contender contender(int candidate) const override {
    return {name(candidate), [this, candidate](int slot, CUstream stream) {
              return kernel(candidate).run(args_of(slots_[static_cast<std::size_t>(slot)]), stream);
            }};
  }
  int slot_count() const override { return static_cast<int>(slots_.size()); }

  // One that was verified.
  const Fixed& kernel(int candidate) const { return kernels_.at(candidate); }
  // What calls rotate over, to time something else on the same.
  const std::vector<Slot>& slots() const { return slots_; }

 protected:
  KernelBench(TunerContext& shop, const Problem& problem, std::vector<Ranked> candidates,
              std::vector<Slot> slots, Replayer replayer)
      : GpuBench(shop, problem, std::move(candidates), std::move(replayer)),
        problem_(problem),
        slots_(std::move(slots)) {}
  void set_verifier(Verifier gate) { verifier_ = std::make_unique<Verifier>(std::move(gate)); }

 private:
  // Here and not where it is compiled: loading may stop the device for a moment.
  Result<const Fixed*> load(int candidate) {
    const GpuSession& gpu = shop_.gpu;
    auto kernel = Fixed::load(shop_.library, gpu.driver(), gpu.ordinal(), gpu.spec(), problem_,
                              std::get<Config>(config(candidate)), built(candidate));
    if (!kernel) return tl::unexpected<Error>(kernel.error());
    return &kernels_.insert_or_assign(candidate, std::move(*kernel)).first->second;
  }

  const Problem problem_;
  const std::vector<Slot> slots_;
  std::unique_ptr<Verifier> verifier_;  // looks at a slot
  std::map<int, Fixed> kernels_;
};

}  // namespace octile::tuner
