// Sets of octile_layer_use bits: which of them prepare a plan, and their names in sentences.
#pragma once

#include <cstdint>
#include <string>

#include "generator/core/error.h"
#include "runtime/layers/plans.h"

namespace octile::layers {

inline constexpr std::uint32_t kAllUses = 31;

constexpr bool has_use(std::uint32_t uses, octile_layer_use use) {
  return (uses & static_cast<std::uint32_t>(use)) != 0;
}

// Returns the bit, or 0.
constexpr std::uint32_t use_if(bool used, octile_layer_use use) {
  return used ? static_cast<std::uint32_t>(use) : 0;
}

// Refuses bits that are no octile_layer_use, and sums of columns where there is no linear layer.
Status check_uses(const Description& description, std::uint32_t uses);

// Returns "KEEP_X | INPUT_GRADIENT (0x5)", or "0 (inference)".
std::string text_of_uses(std::uint32_t uses);

// Returns uses with which the quantiser of these copies is prepared.
std::uint32_t uses_of_quantizer(Role role, Copies made);

}  // namespace octile::layers
