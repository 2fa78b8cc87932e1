// X, W or dY of one call: which FP8 copies the call makes, and the addresses of all copies.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "generator/core/error.h"
#include "generator/core/layout.h"
#include "octile/layers.h"
#include "runtime/layers/description.h"
#include "runtime/layers/plans.h"

namespace octile::layers {

std::string_view name_of(Role role);  // "x", "w", "dy"
bool is_current(const octile_layer_operand& operand);
bool is_codes(const octile_layer_operand& operand);

// Returns the layout of a copy of a tensor, of W that of one expert.
Result<QuantizedLayout> copy_layout(const Plans& plans, const Description& description, Role role,
                                    bool transposed, std::int64_t tokens);

// Memory of a call that is handed out from its beginning. With null memory it only counts.
class Workspace {
 public:
  explicit Workspace(void* memory) : memory_(static_cast<char*>(memory)) {}
  void* take(std::int64_t bytes);
  std::int64_t used() const { return used_; }

 private:
  static constexpr std::int64_t kAlign = 256;  // a part begins on a multiple, from the memory on
  static constexpr std::int64_t kMost = 0x7fffffffffffffff;

  char* memory_;
  std::int64_t used_ = 0;
};

struct Operand {
  // `given` by the caller; struct_size 0: null. The call quantises those copies that it needs and
  // those whose memory is given, unless they are current. From codes it makes the transposed copy.
  Operand(const Description& description, Role which, Copies reads,
          const octile_layer_operand& from_caller, std::int64_t tokens_of_call);

  Role role;
  Copies needed;  // that the call reads
  Copies made;    // that the call quantises
  octile_layer_operand given;
  std::int64_t tokens;

  // Where the copies are, and their bytes (of W those of one expert). Set by place.
  octile_layer_copy rowwise{}, transposed{};
  std::array<std::int64_t, 2> code_bytes{}, scale_bytes{};  // row-wise, transposed

  // Returns whether the call makes W^T of the codes of W.
  bool transposes() const { return is_codes(given) && needed.transposed; }
  std::int64_t rows(const Description& description) const {
    return role == Role::kW ? description.n : tokens;
  }

  // Checks what the caller gave, and completes the leading dimension.
  Status check(const Description& description);
  // Finds where the copies are: in memory that is given, else in the workspace.
  Status place(const Plans& plans, const Description& description, Workspace& workspace);

 private:
  Status check_copy(const octile_layer_copy& copy, bool transposed) const;
  Status check_current() const;
  Status check_codes(const Description& description) const;
  Status check_never_quantized(std::string_view state) const;
  Status check_source(const Description& description);
  Status check_skip() const;
  Status check_fingerprint() const;
  Status check_kept(std::string_view field) const;
  Status check_scale_stride(const Description& description);
  Status check_whole(const Description& description) const;
  Status place_copy(const Plans& plans, const Description& description, bool is_transposed,
                    Workspace& workspace);
};

}  // namespace octile::layers
