#include "tools/models/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "generator/core/text_fields.h"
#include "tools/models/checkpoint/stored_weights.h"
#include "tools/models/config/derive.h"
#include "tools/models/config/keys.h"
#include "tools/models/config/leaves.h"

namespace octile::tools {
namespace {

// Returns the recipe of an FP8 weight, or the name of another type. `stated` is the config's
// format, which tells whether scales are powers of two.
std::string stored_as(const StoredWeight& weight, std::string_view stated) {
  if (!weight.is_fp8()) return weight.dtype;
  // All recipes have weights in E4M3.
  if (weight.dtype != "F8_E4M3") return weight.dtype;
  const auto recipe = [&](std::string_view family) {
    if (weight.scales.is_e8m0) return std::string(family);
    return std::string(stated.starts_with(family) ? stated : std::string(family) + ":f32");
  };
  using enum StoredScales::Kind;
  switch (weight.scales.kind) {
    case kTensor:
      return recipe("tensorwise");
    case kRow:
      return recipe("rowwise");
    case kBlock:
      return recipe("blockwise");
    case kMx:
      return "mxfp8";
    case kOther:
      return weight.dtype + " with " + weight.scales.text;
    case kNone:
      break;
  }
  return weight.dtype + " without weight_scale or weight_scale_inv";
}

std::string stated_recipe(const std::optional<Quantization>& quantization) {
  if (!quantization) return "";
  for (const QuantizedModules& group : quantization->groups) {
    if (!group.recipe.empty()) return group.recipe;
  }
  return "";
}

std::string with_last_part(const std::string& role, std::string_view part) {
  return role.substr(0, role.rfind('.') + 1) + std::string(part);
}

using Layers = std::vector<std::int32_t>;

Layers without(const Layers& all, Layers some) {
  std::ranges::sort(some);
  Layers rest;
  std::ranges::set_difference(all, some, std::back_inserter(rest));
  return rest;
}

// "fc [512, 1536]", "8 x [512, 1536]" of experts; some layers of all are named by the first one.
std::string text_of(const std::string& role, std::int64_t experts, std::int64_t n, std::int64_t k,
                    const Layers& some, const Layers& all) {
  std::string text = experts > 0 ? fmt::format("{} {} x [{}, {}]", role, experts, n, k)
                                 : fmt::format("{} [{}, {}]", role, n, k);
  if (some.empty()) return text;
  return text + (some.size() == all.size() ? fmt::format(" of {} layers", all.size())
                                           : fmt::format(" of {} of {} layers, {} first",
                                                         some.size(), all.size(), some.front()));
}

// The weights of a model, which claim what a checkpoint has.
class Comparison {
 public:
  Comparison(Model& model, const std::vector<StoredWeight>& stored)
      : model_(model),
        stored_(stored),
        claims_(stored.size()),
        has_fp8_(std::ranges::any_of(stored, &StoredWeight::is_fp8)),
        stated_(stated_recipe(model.quantization)) {
    for (const StoredWeight& one : stored) names_.push_back(usual_name(one.role));
  }

  // Returns false if the checkpoint has no weight of any layer by its name.
  bool run() {
    std::vector<std::string> remarks;
    bool is_the_model = false;
    for (Weight& weight : model_.weights) {
      if (weight.is_vector()) continue;
      const Layers missing = claim(weight, is_the_model);
      if (!missing.empty() || !claimed_any_) {
        remarks.push_back(fmt::format("{} is not in the checkpoint: its size is the config's",
                                      text_of(weight.role, weight.groups, weight.n.value,
                                              weight.k.value, missing, weight.at)));
      }
    }
    for (std::size_t i = 0; i < stored_.size(); ++i) {
      const StoredWeight& one = stored_[i];
      const Layers rest = without(one.layers, claims_[i].layers);
      if (claims_[i].is_whole || (rest.empty() && !one.layers.empty())) continue;
      remarks.push_back(
          fmt::format("{} is in the checkpoint, and no weight of the config is it",
                      text_of(one.role, one.experts, one.n, one.k, rest, one.layers)));
    }
    std::ranges::move(remarks, std::back_inserter(model_.remarks));
    return is_the_model;
  }

 private:
  struct Claims {
    Layers layers;
    bool is_whole = false;  // of a weight that is not of a layer
  };

  // Returns the layers of the stored weight that are the weight's: further ones are those of
  // multi-token prediction.
  Layers common_layers(const Weight& weight, const StoredWeight& stored) const {
    Layers common;
    for (const std::int32_t layer : stored.layers) {
      const bool is_further = weight.mtp > 0 && layer >= model_.layers;
      if (is_further || std::ranges::binary_search(weight.at, layer)) common.push_back(layer);
    }
    return common;
  }

  // Claims the stored weights of this name; the first one is compared. `layers` receives the
  // layers.
  bool claim(Weight& weight, const std::string& name, std::int64_t parts, Layers& layers) {
    bool claimed = false;
    for (std::size_t i = 0; i < stored_.size(); ++i) {
      if (names_[i] != name || stored_[i].layers.empty() == weight.per_layer) continue;
      const Layers common = common_layers(weight, stored_[i]);
      if (weight.per_layer && common.empty()) continue;
      if (!claimed && parts > 0) compare(weight, stored_[i], parts);
      claimed = true;
      claims_[i].is_whole = !weight.per_layer;
      for (Layers* to : {&claims_[i].layers, &layers})
        to->insert(to->end(), common.begin(), common.end());
    }
    return claimed;
  }

  // Returns the layers that have no such weight. A checkpoint may have gate and up apart that are
  // one tensor in transformers.
  Layers claim(Weight& weight, bool& is_the_model) {
    const std::string name = usual_name(weight.role);
    Layers layers, ups;
    claimed_any_ = claim(weight, name, 1, layers);
    if (!claimed_any_ && name.ends_with("gate_up_proj")) {
      claimed_any_ = claim(weight, with_last_part(name, "up_proj"), 0, ups) &&
                     claim(weight, with_last_part(name, "gate_proj"), 2, layers);
    }
    is_the_model = is_the_model || (claimed_any_ && weight.per_layer);
    return claimed_any_ ? without(weight.at, layers) : weight.at;
  }

  void compare(Weight& weight, const StoredWeight& stored, std::int64_t parts) {
    // In a checkpoint without FP8, weights in BF16 are to be converted.
    if (stored.is_fp8() || (has_fp8_ && !stored.is_packed())) {
      weight.stored = stored_as(stored, stated_);
    } else if (stored.is_packed()) {
      // Its shape is that of words, and quantization_config may know the format.
      if (!model_.quantization || !stated_.empty()) weight.stored = stored.dtype;
      return;
    }
    take(weight, "n", weight.n, parts * stored.n);
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
    divide_by_name(weight, {weight.units.value, weight.kv_heads.value, weight.units.value});
  }

  void remark(const Weight& weight, const char* what, std::int64_t config, std::int64_t stored) {
    model_.remarks.push_back(
        fmt::format("{}: {} is {} by the config and {} in the checkpoint, which is taken",
                    weight.role, what, config, stored));
  }

  Model& model_;
  const std::vector<StoredWeight>& stored_;
  std::vector<std::string> names_;
  std::vector<Claims> claims_;
  bool claimed_any_ = false;  // by the last weight
  const bool has_fp8_;
  const std::string stated_;
};

// --- a model that no row describes ---

Weight weight_of_stored(const StoredWeight& stored, const StatedSizes& stated, bool has_fp8,
                        std::string_view recipe) {
  const std::int64_t per_token = std::max<std::int64_t>(1, stated.experts_per_token);
  Weight weight{.role = stored.role,
                .layers = stored.layers.empty() ? 1 : std::ssize(stored.layers),
                .at = stored.layers,
                .n = {stored.n, "n"},
                .k = {stored.k, "k"},
                .bias = stored.bias,
                .per_layer = !stored.layers.empty(),
                .groups = stored.experts,
                .per_token = stored.experts > 0 ? std::min(per_token, stored.experts) : 0};
  name_weight(weight);
  weight.input += kByName;
  divide_by_name(weight, stated.heads);
  // A weight that is divided in k writes the hidden state, or its name misleads.
  if (weight.cut == Cut::kK && stated.hidden > 0 && stored.n != stated.hidden) {
    weight.cut = Cut::kUnknown;
  }
  if (stored.is_packed() || (has_fp8 && weight.out.empty())) {
    weight.stored = stored_as(stored, recipe);
  }
  return weight;
}

// Makes gate_proj and up_proj of experts one grouped weight.
void stack_experts(std::vector<Weight>& weights) {
  for (auto gate = weights.begin(); gate != weights.end(); ++gate) {
    if (gate->groups == 0 || !gate->role.ends_with(".gate_proj")) continue;
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

}  // namespace

std::string role_in_model(const Model& model, const std::string& role, bool of_experts) {
  const auto find = [&](const std::string& name) -> const Weight* {
    const auto found = std::ranges::find_if(model.weights, [&](const Weight& weight) {
      return !weight.is_vector() && usual_name(weight.role) == name;
    });
    return found == model.weights.end() ? nullptr : &*found;
  };
  StoredWeight stored{.role = role, .dtype = {}};
  complete_experts(stored, of_experts ? 1 : 0);
  for (const std::string& name : {usual_name(role), stored.role}) {
    if (const Weight* weight = find(name)) return weight->role;
    if (!name.ends_with("gate_proj") && !name.ends_with("up_proj")) continue;
    if (const Weight* weight = find(with_last_part(name, "gate_up_proj"))) return weight->role;
  }
  return role;
}

bool compare_with_checkpoint(Model& model, const StoredTensors& tensors, const Json& config) {
  const StoredModel stored = stored_model(tensors, stated_sizes(config));
  return stored.weights.empty() || Comparison(model, stored.weights).run();
}

Result<Model> model_of_checkpoint(const StoredTensors& tensors, const Json& config,
                                  const std::string& origin, const std::string& name) {
  const StatedSizes stated = stated_sizes(config);
  const StoredModel stored = stored_model(tensors, stated);
  const bool has_fp8 = std::ranges::any_of(stored.weights, &StoredWeight::is_fp8);
  Model model{.name = name, .origin = origin};
  auto quantization = quantization_of(config, language_of(config), origin);
  if (!quantization) return tl::unexpected<Error>(quantization.error());
  const std::string recipe = stated_recipe(*quantization);
  if (!recipe.empty()) model.quantization = std::move(*quantization);  // else types say it
  for (const StoredWeight& one : stored.weights) {
    if (one.n < 1 || one.k < 1 || one.n > kMostCount || one.k > kMostCount) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{}: {} is [{}, {}]; allowed: 1 to {} each", origin, one.role, one.n,
                              one.k, kMostCount));
    }
    model.weights.push_back(weight_of_stored(one, stated, has_fp8, recipe));
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
  if (stated.experts_per_token == 0 &&
      std::ranges::any_of(model.weights, [](const Weight& w) { return w.groups > 0; })) {
    model.remarks.emplace_back(
        "the config does not say how many experts a token goes to: 1 is taken");
  }
  if (stored.elsewhere > 0) {
    model.remarks.push_back(
        fmt::format("{} parameters of towers for images and sound stay as they are: not listed",
                    stored.elsewhere));
  }
  if (stored.vectors > 0) {
    model.weights.push_back({.role = "vectors and convolutions",
                             .layers = 1,
                             .n = {std::min<std::int64_t>(stored.vectors, kSaturated), ""},
                             .per_layer = false,
                             .out = "no GEMM"});
  }
  return model;
}

}  // namespace octile::tools
