#include "tools/models/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "generator/core/text_fields.h"
#include "tools/models/checkpoint/stored_weights.h"
#include "tools/models/config/keys.h"

namespace octile::tools {
namespace {

// Returns the recipe of an FP8 weight, or the name of another type. `stated` is the config's
// format, which tells whether scales are powers of two.
std::string stored_as(const StoredWeight& weight, std::string_view stated) {
  if (!weight.is_fp8()) return weight.dtype;
  // All recipes have weights in E4M3.
  if (weight.dtype != "F8_E4M3") return weight.dtype;
  const auto recipe = [&](std::string_view family) {
    return std::string(stated.starts_with(family) ? stated : std::string(family) + ":f32");
  };
  switch (weight.scales) {
    case StoredScales::kTensor:
      return recipe("tensorwise");
    case StoredScales::kRow:
      return recipe("rowwise");
    case StoredScales::kBlock:
      return recipe("blockwise");
    case StoredScales::kMx:
      return "mxfp8";
    case StoredScales::kOther:
      return weight.dtype + " with " + weight.scales_text;
    case StoredScales::kNone:
      break;
  }
  return weight.dtype + " without weight_scale or weight_scale_inv";
}

std::string stated_recipe(const Model& model) {
  if (!model.quantization) return "";
  for (const QuantizedModules& group : model.quantization->groups) {
    if (!group.recipe.empty()) return group.recipe;
  }
  return "";
}

bool has_last_part(const std::string& role, std::string_view part) {
  return role == part || role.ends_with("." + std::string(part));
}

std::string with_last_part(const std::string& role, std::string_view part) {
  return role.substr(0, role.rfind('.') + 1) + std::string(part);
}

bool is_in_layer(const StoredWeight& stored, const Weight& weight) {
  if (weight.at.empty()) return stored.layers.empty();
  return std::ranges::binary_search(stored.layers, weight.at.front());
}

const StoredWeight* find_stored(const std::vector<StoredWeight>& all, const std::string& role,
                                const Weight& weight) {
  const auto found = std::ranges::find_if(all, [&](const StoredWeight& stored) {
    return stored.role == role && is_in_layer(stored, weight);
  });
  return found == all.end() ? nullptr : &*found;
}

// Returns the checkpoint's weight of a module. A checkpoint may have gate and up apart that are one
// tensor in transformers; `parts` receives how many tensors one stands for.
const StoredWeight* find_module(const std::vector<StoredWeight>& all, const Weight& weight,
                                std::int64_t& parts) {
  parts = 1;
  if (const StoredWeight* same = find_stored(all, weight.role, weight)) return same;
  if (!has_last_part(weight.role, "gate_up_proj")) return nullptr;
  parts = 2;
  return find_stored(all, with_last_part(weight.role, "gate_proj"), weight);
}

class Comparison {
 public:
  Comparison(Model& model, const std::vector<StoredWeight>& stored)
      : model_(model),
        stored_(stored),
        has_fp8_(std::ranges::any_of(stored, &StoredWeight::is_fp8)),
        stated_(stated_recipe(model)) {}

  void run() {
    std::int64_t missing = 0;
    for (Weight& weight : model_.weights) {
      if (weight.is_vector()) continue;
      std::int64_t parts = 1;
      const StoredWeight* stored = find_module(stored_, weight, parts);
      if (stored == nullptr) {
        missing += weight.out.empty() ? 1 : 0;
      } else {
        compare(weight, *stored, parts);
      }
    }
    if (missing > 0) {
      model_.remarks.push_back(fmt::format(
          "{} weights are not in the checkpoint by their names; they are those of the config",
          missing));
    }
  }

 private:
  void compare(Weight& weight, const StoredWeight& stored, std::int64_t parts) {
    // In a checkpoint without FP8, weights in BF16 are to be converted.
    if (stored.is_fp8() || (has_fp8_ && !stored.is_packed())) {
      weight.stored = stored_as(stored, stated_);
    } else if (stored.is_packed()) {
      weight.stored = stored.dtype;
      return;  // its shape is that of words
    }
    const std::int64_t n = parts * stored.n;
    const bool turned = weight.groups > 0 && n == weight.k.value && stored.k == weight.n.value;
    if (turned) return;
    take(weight, "n", weight.n, n);
    take(weight, "k", weight.k, stored.k);
    if (weight.groups > 0 && stored.experts > 0 && stored.experts != weight.groups) {
      remark(weight, "experts", weight.groups, stored.experts);
      weight.groups = stored.experts;
    }
  }

  void take(Weight& weight, const char* what, Extent& extent, std::int64_t stored) {
    if (extent.value == stored || stored > kMostCount) return;
    remark(weight, what, extent.value, stored);
    extent = {stored, fmt::format("{} in the checkpoint", what)};
    weight.units = extent;
  }

  void remark(const Weight& weight, const char* what, std::int64_t config, std::int64_t stored) {
    model_.remarks.push_back(
        fmt::format("{}: {} is {} by the config and {} in the checkpoint, which is taken",
                    weight.role, what, config, stored));
  }

  Model& model_;
  const std::vector<StoredWeight>& stored_;
  const bool has_fp8_;
  const std::string stated_;
};

// --- a model that no row describes ---

struct NamedReason {
  std::string_view part, why;
};
constexpr std::array kReasons = std::to_array<NamedReason>({
    {"embed_tokens", "a table: no GEMM"},
    {"wte", "a table: no GEMM"},
    {"embeddings", "a table: no GEMM"},
    {"lm_head", "the output layer, kept in BF16"},
    {"output", "the output layer, kept in BF16"},
    {"gate", "the router, kept in BF16"},
    {"router", "the router, kept in BF16"},
    {"shared_expert_gate", "one output, kept in BF16"},
    {"in_proj_ba", "gates of a head each, which stay in BF16"},
    {"in_proj_a", "gates of a head each, which stay in BF16"},
    {"in_proj_b", "gates of a head each, which stay in BF16"},
    {"weights_proj", "weights of the indexer's heads, kept in BF16"},
    {"eh_proj", "serving engines keep it in BF16"},
});

std::string reason_of(const StoredWeight& stored) {
  const auto* const found = std::ranges::find_if(
      kReasons, [&](const NamedReason& one) { return has_last_part(stored.role, one.part); });
  return found == kReasons.end() ? "" : std::string(found->why);
}

// The module into which serving engines fuse the weight.
std::string fused_name(const std::string& role) {
  for (const char* part : {"q_proj", "k_proj", "v_proj"}) {
    if (has_last_part(role, part)) return with_last_part(role, "qkv_proj");
  }
  for (const char* part : {"gate_proj", "up_proj"}) {
    if (has_last_part(role, part)) return with_last_part(role, "gate_up_proj");
  }
  return "";
}

Weight weight_of_stored(const StoredWeight& stored, std::int64_t per_token, bool has_fp8) {
  Weight weight{.role = stored.role,
                .layers = stored.layers.empty() ? 1 : std::ssize(stored.layers),
                .at = stored.layers,
                .n = {stored.n, "n"},
                .k = {stored.k, "k"},
                .bias = stored.bias,
                .per_layer = !stored.layers.empty(),
                .groups = stored.experts,
                .per_token = stored.experts > 0 ? std::min(per_token, stored.experts) : 0,
                .input = stored.role,
                .fused = stored.experts > 0 ? "" : fused_name(stored.role),
                .out = reason_of(stored)};
  if (stored.is_packed() || (has_fp8 && weight.out.empty())) {
    weight.stored = stored_as(stored, "");
  }
  return weight;
}

// Makes gate_proj and up_proj of experts one grouped weight.
void stack_experts(std::vector<Weight>& weights) {
  for (auto gate = weights.begin(); gate != weights.end(); ++gate) {
    if (gate->groups == 0 || !has_last_part(gate->role, "gate_proj")) continue;
    const auto up = std::ranges::find_if(weights, [&](const Weight& other) {
      return other.role == with_last_part(gate->role, "up_proj") &&
             other.n.value == gate->n.value && other.at == gate->at;
    });
    if (up == weights.end()) continue;
    gate->role = with_last_part(gate->role, "gate_up_proj");
    gate->n = 2 * gate->n;
    gate->stacked = 2;
    up->layers = 0;
  }
  std::erase_if(weights, [](const Weight& weight) { return weight.layers == 0; });
}

// The fields of a config that any architecture has. 0: nothing.
struct StatedCounts {
  std::int64_t hidden = 0, experts_per_token = 0;
};

StatedCounts stated_counts(const Json& config) {
  const Json* text = &config;
  for (const char* key : {"text_config", "llm_config", "language_config"}) {
    const Json* inner = config.find(key);
    if (inner != nullptr && inner->is_object()) text = inner;
  }
  const auto count = [&](Keys::Names names) {
    Keys keys(*text, "", "");
    const std::int64_t value = keys.count_or(names, {0, ""}).value;
    return keys.status() ? value : 0;
  };
  return {count({"hidden_size"}),
          count({"num_experts_per_tok", "moe_topk", "moe_k", "num_experts_per_token",
                 "experts_per_token", "top_k_experts"})};
}

// Turns a tensor of experts that is [k, n]: those that go up read the hidden size, those that go
// down write it.
void orient(std::int64_t hidden, StoredWeight& stored) {
  const bool down = has_last_part(stored.role, "down_proj");
  const bool up = has_last_part(stored.role, "gate_up_proj") ||
                  has_last_part(stored.role, "gate_proj") || has_last_part(stored.role, "up_proj");
  const std::int64_t one = down ? stored.n : stored.k, other = down ? stored.k : stored.n;
  if (stored.is_stacked && (up || down) && one != hidden && other == hidden) {
    std::swap(stored.n, stored.k);
  }
}

}  // namespace

void compare_with_checkpoint(Model& model, const StoredTensors& tensors) {
  std::int64_t elsewhere = 0, vectors = 0;
  const std::vector<StoredWeight> stored = stored_weights(tensors, elsewhere, vectors);
  if (!stored.empty()) Comparison(model, stored).run();
}

Result<Model> model_of_checkpoint(const StoredTensors& tensors, const Json& config,
                                  const std::string& origin, const std::string& name) {
  std::int64_t elsewhere = 0, vectors = 0;
  std::vector<StoredWeight> stored = stored_weights(tensors, elsewhere, vectors);
  const bool has_fp8 = std::ranges::any_of(stored, &StoredWeight::is_fp8);
  const auto [hidden, per_token] = stated_counts(config);
  Model model{.name = name, .origin = origin, .by_weights = true};
  for (StoredWeight& one : stored) {
    orient(hidden, one);
    if (one.n < 1 || one.k < 1 || one.n > kMostCount || one.k > kMostCount) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{}: {} is [{}, {}]; allowed: 1 to {} each", origin, one.role, one.n,
                              one.k, kMostCount));
    }
    model.weights.push_back(weight_of_stored(one, std::max<std::int64_t>(1, per_token), has_fp8));
    if (!one.layers.empty()) {
      model.layers = std::max<std::int64_t>(model.layers, one.layers.back() + 1);
    }
  }
  if (model.weights.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: its .safetensors files have no matrix; allowed: weights [n, k] "
                            "whose names end with .weight",
                            origin));
  }
  stack_experts(model.weights);
  model.remarks.emplace_back(
      "no row describes this architecture: its weights are those of the "
      ".safetensors headers, by name");
  if (per_token == 0 &&
      std::ranges::any_of(model.weights, [](const Weight& w) { return w.groups > 0; })) {
    model.remarks.emplace_back(
        "the config does not say how many experts a token goes to: 1 is taken");
  }
  if (elsewhere > 0) {
    model.remarks.push_back(fmt::format(
        "{} parameters of towers for images and sound stay as they are: not listed", elsewhere));
  }
  if (vectors > 0) {
    model.weights.push_back({.role = "vectors and convolutions",
                             .layers = 1,
                             .n = {std::min<std::int64_t>(vectors, kSaturated), ""},
                             .per_layer = false,
                             .out = "no GEMM"});
  }
  return model;
}

}  // namespace octile::tools
