// The weights of a checkpoint by the modules that have them: what its tensors' names and types say.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/models/checkpoint/safetensors.h"

namespace octile::tools {

// The scales of a weight: a scale for the tensor, for each row, for 128 x 128 elements, for 32 of a
// row as E8M0. kOther: of no recipe.
enum class StoredScales { kNone, kTensor, kRow, kBlock, kMx, kOther };

// A weight of one module in all layers that have it with one shape and one type.
struct StoredWeight {
  std::string role;                  // "self_attn.q_proj", "mlp.experts.gate_proj"
  std::vector<std::int32_t> layers;  // empty: not of a layer
  std::int64_t n = 0, k = 0;
  std::int64_t experts = 0;  // of a layer; 0: none
  bool is_stacked = false;   // the experts are one tensor, whose last two dimensions may be [k, n]
  bool bias = false;
  std::string dtype;
  StoredScales scales = StoredScales::kNone;
  std::string scales_text = {};  // of kOther: "blocks of 64 x 64", "scales [21, 56]"
  bool is_fp8() const { return dtype == "F8_E4M3" || dtype == "F8_E5M2"; }
  // A type with several elements in a word, whose shape says nothing of n and k.
  bool is_packed() const;
};

// Returns the matrices, and experts as one weight each. `elsewhere` receives the parameters of
// towers for images and sound, `vectors` those of tensors that are not matrices.
std::vector<StoredWeight> stored_weights(const StoredTensors& tensors, std::int64_t& elsewhere,
                                         std::int64_t& vectors);

}  // namespace octile::tools
