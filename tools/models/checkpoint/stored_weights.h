// The weights of a checkpoint by the modules that have them: what its tensors' names and types say.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/json.h"
#include "tools/models/checkpoint/safetensors.h"
#include "tools/models/checkpoint/stored_shapes.h"
#include "tools/models/config/leaves.h"

namespace octile::tools {

// The scales of a weight: a scale for the tensor, for each row, for 128 x 128 elements, for 32 of a
// row as E8M0. kOther: of no recipe.
struct StoredScales {
  enum class Kind { kNone, kTensor, kRow, kBlock, kMx, kOther };
  Kind kind = Kind::kNone;
  std::string text = {};  // of kOther: "blocks of 64 x 64", "scales [21, 56]"
  bool is_e8m0 = false;
  friend auto operator<=>(const StoredScales&, const StoredScales&) = default;
};

// A weight of one module in all layers that have it with one shape and one type.
struct StoredWeight {
  std::string role;  // "self_attn.q_proj", "mlp.experts.gate_proj"
  std::int64_t n = 0, k = 0;
  std::int64_t experts = 0;  // of a layer; 0: none
  bool bias = false;
  std::string dtype;
  StoredScales scales = {};
  // Layers of an encoder, a decoder and multi-token prediction, whose names differ before the
  // number, are different layers: those of the longest list come first. Empty: not of a layer.
  std::vector<std::int32_t> layers = {};
  friend auto operator<=>(const StoredWeight&, const StoredWeight&) = default;
  bool is_fp8() const { return dtype == "F8_E4M3" || dtype == "F8_E5M2"; }
  bool is_packed() const;
};

// Returns true for scales and zero points of other tensors, by the name.
bool is_scale(const StoredTensors& tensors, const std::string& name);
// Returns the name of the scales of an FP8 tensor, empty if there are none.
std::string scales_of_tensor(const StoredTensors& tensors, const std::string& name);

// Gives experts that are a tensor each their number, and all experts the names of experts.
void complete_experts(StoredWeight& weight, std::int64_t numbered);

// A tensor's name, taken apart.
struct ModuleName {
  std::string before;  // the layer's number: "model.decoder.layers"
  std::string role;    // "mlp.experts.gate_proj"
  std::optional<std::int32_t> layer, expert;
};
// Returns the number of a layer or an expert; nothing for other parts, and beyond a million.
std::optional<std::int32_t> index_of_part(std::string_view part);
// `name` is that of a module, without ".weight".
ModuleName module_of(std::string_view name);
// Returns the module of a tensor: its name without ".weight".
std::string_view without_weight(std::string_view name);

// Returns the sizes that a config states.
StatedSizes stated_sizes(const Json& config);

struct StoredModel {
  std::vector<StoredWeight> weights;  // matrices, and experts as one weight each
  std::int64_t elsewhere = 0;         // parameters of towers for images and sound
  std::int64_t vectors = 0;           // those of tensors that are not matrices
};
StoredModel stored_model(const StoredTensors& tensors, const StatedSizes& stated);

}  // namespace octile::tools
