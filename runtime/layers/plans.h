// The plans of a layer: a quantiser for each set of copies that a call may make, and a GEMM for
// each pass. All are made with the layer, so a call needs no lookup.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "octile/layers.h"
#include "runtime/engine/plan.h"
#include "runtime/layers/description.h"
#include "runtime/layers/uses.h"

namespace octile::layers {

// A plan, or why the support matrix refuses its problem.
struct Slot {
  std::shared_ptr<Plan> plan;
  Error refused;

  Status check() const { return plan != nullptr ? Status{} : tl::unexpected<Error>(refused); }
};

class Plans {
 public:
  // The library outlives the plans. Errors: kUnsupported if the forward pass is.
  static Result<Plans> create(Library& library, const Description& description,
                              const Target& target);

  // extra: of dY, with the sums of its columns, of a linear layer; of W, with a comparison.
  const Slot& quantizer(Role role, Copies copies, bool extra) const;
  // Makes W^T of a W that is held as codes.
  const Slot& transposer() const { return transposer_; }
  const Slot& gemm(Pass pass) const { return gemms_[static_cast<std::size_t>(pass)]; }
  // Returns the plan that updates scales of X's FP8 type, or of dY's. Only layers with delayed
  // scaling have them.
  const Slot& scale_update(Role role) const { return updates_[role == Role::kDy ? 1 : 0]; }

  // Returns the plan of a step of calls.
  const Slot& slot_of(const Step& step) const;
  // Says why calls with these uses (octile_layer_use bits) are not supported.
  Status check(std::uint32_t uses) const;

  // See octile_layer_prepare and octile_layer_problems. Returns the plans of these uses, and the
  // token counts that each is to be prepared for.
  Result<std::vector<Plan::Range>> ranges(std::int64_t lo, std::int64_t hi,
                                          std::uint32_t uses) const;
  Result<std::string> problems(std::uint32_t uses) const;

 private:
  Plans(Library& library, const Description& description)
      : library_(&library), description_(description) {}

  static constexpr std::size_t kOutputs = 3;
  static std::size_t index_of(Role role, QuantizeOutput output, bool extra);
  Status fill(Slot& slot, const Problem& problem, const Target& target) const;
  Status fill_quantizers(const Target& target);
  Status fill_gemms(const Target& target);

  Library* library_;
  Description description_;
  std::array<Slot, kRoles * kOutputs * 2> quantizers_;  // by index_of
  Slot transposer_;
  std::array<Slot, 3> gemms_;  // by pass
  std::array<Slot, 2> updates_;
};

}  // namespace octile::layers
