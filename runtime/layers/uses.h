// Sets of octile_layer_use bits: the kernels that calls with them run, and their names in errors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "generator/core/error.h"
#include "octile/layers.h"
#include "runtime/layers/description.h"

namespace octile::layers {

inline constexpr std::uint32_t kAllUses = 1023;

constexpr bool has_use(std::uint32_t uses, octile_layer_use use) {
  return (uses & static_cast<std::uint32_t>(use)) != 0;
}

// Returns the bit, or 0.
constexpr std::uint32_t use_if(bool used, octile_layer_use use) {
  return used ? static_cast<std::uint32_t>(use) : 0;
}

// Refuses bits that are not an octile_layer_use, and those that do not fit each other or the layer.
// Errors: kInvalidArgument; kUnsupported for a W that the recipe does not let be held.
Status check_uses(const Description& description, std::uint32_t uses);

// The kinds of plans that calls run.
enum class Work { kQuantize, kTranspose, kMultiply, kUpdateScales };

// A plan that calls with some uses run, and what its token count is.
struct Step {
  Work work = Work::kQuantize;
  Role role = Role::kX;      // of kQuantize and kUpdateScales
  Copies copies{};           // of kQuantize
  bool extra = false;        // of kQuantize: as Plans::quantizer says
  Pass pass = Pass::kFprop;  // of kMultiply
  enum class Rows { kTokens, kWeight, kOne } rows = Rows::kTokens;
};
std::vector<Step> steps_of(const Description& description, std::uint32_t uses);

// The problem of such a plan, for every token count.
Problem problem_of(const Description& description, const Step& step);

// Returns "KEEP_X | INPUT_GRADIENT (0x5)", or "0 (inference)".
std::string text_of_uses(std::uint32_t uses);

// Returns uses with which the quantiser of these copies is prepared.
std::uint32_t uses_of_quantizer(Role role, Copies made);

}  // namespace octile::layers
