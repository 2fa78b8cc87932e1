// Decides when the FP8 copies of a weight are stale, even if other code may write it.
// octile/layers.h has the rules and documents the calls.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "generator/core/error.h"
#include "octile/layers.h"
#include "runtime/driver/context.h"
#include "runtime/engine/target.h"
#include "runtime/layers/description.h"
#include "runtime/layers/layer.h"

namespace octile::layers {

// The contents of a weight, as far as the caller knows, and the capture that copies were made in.
struct Moment {
  std::uint64_t stamp = 0, epoch = 0, capture = 0;

  friend bool operator==(const Moment&, const Moment&) = default;
};

// The fingerprint describes the copies of one set, and all of them are made together. Whoever makes
// one of them otherwise has it forgotten.
class CachedWeight {
 public:
  explicit CachedWeight(std::shared_ptr<const Layer> layer) : layer_(std::move(layer)) {}

  // See octile_weight_begin, octile_weight_end and octile_weight_is_current.
  Status begin(const octile_weight_call& call, octile_layer_operand& operand, CUstream stream);
  Status end(CUstream stream);
  // See octile_weight_forget.
  void forget_copies() { state_.current = state_.covered = {}; }
  Result<bool> is_current(const octile_weight_call& call, octile_layer_operand& operand) const;

 private:
  // The answer to a pass.
  struct Decision {
    Copies kept{};    // that it reads and that outlast it
    Copies making{};  // that it makes: all of them, or none if the device finds them current
    bool compares = false;
    bool forgets = false;  // what the fingerprint describes
    const std::uint32_t* skip = nullptr;
  };

  // Changes as passes begin and end; one that fails leaves it as it was.
  struct State {
    std::optional<Moment> made;  // the contents of the current copies
    Copies current;
    std::array<octile_layer_copy, 2> memory{};  // row-wise, transposed
    bool trusted = false;
    bool captured = false;  // replays use the copies

    Copies covered;              // by the fingerprint
    Copies captured_comparison;  // what replays that compare make; no other set is covered then
    bool never_compares = false;

    std::int64_t forwards = 0;  // with the contents of today
    bool used_once = false;     // so were those before

    Copies memory_given() const {
      return {.rowwise = memory[0].codes != nullptr, .transposed = memory[1].codes != nullptr};
    }
    void follow_trust(bool now_trusted);
    void follow_memory(const octile_layer_operand& operand);
    void note_forward(bool changed);
    bool compares(const octile_weight_call& call, bool has_fingerprint, bool changed) const;
    const std::uint32_t* skip_of(const octile_weight_call& call, Copies making) const;

    Decision decide(const octile_weight_call& call, const octile_layer_operand& operand);
    Decision decide_trusted(const octile_weight_call& call, Copies kept);
    Decision decide_untrusted(const octile_weight_call& call, Copies kept, bool has_fingerprint);
  };

  // A pass between begin and end.
  struct Pass {
    Copies making;
    Moment moment;
    bool compares = false;
    std::uint32_t* words = nullptr;
  };

  Status check(const octile_weight_call& call, const octile_layer_operand& operand) const;
  const Target& target() const;
  template <typename Enqueue>
  Status on_device(const Enqueue& enqueue);
  Status forget(octile_fingerprint* fingerprints, CUstream stream);
  Status set_words(const Pass& pass, CUstream stream);

  std::shared_ptr<const Layer> layer_;
  std::optional<PrimaryContext> context_;  // of the device, once it is needed
  State state_;
  std::optional<Pass> pass_;
};

}  // namespace octile::layers
