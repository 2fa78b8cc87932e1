#include "tools/models/recipes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "generator/core/nearest.h"
#include "generator/core/recipe.h"
#include "tools/models/config/leaves.h"
#include "tools/models/config/name_patterns.h"

namespace octile::tools {
namespace {

constexpr std::array<std::string_view, 3> kPresets{"deepseek-v3", "torchao", "all"};

// torchao's filters of layers that FP8 makes slower (_auto_filter_for_rowwise and _tensorwise).
bool torchao_keeps(const Weight& weight, std::string_view recipe) {
  const std::int64_t out = weight.n.value, in = weight.k.value;
  if (recipe.starts_with("tensorwise")) return out <= 4096 && in <= 1024;
  return in <= 2048 || out <= 1024 || (in <= 4096 && out <= 2048);
}

// The whole name of a module in one layer.
std::string name_in_layer(const Weight& weight, std::int32_t layer) {
  return weight.per_layer ? fmt::format("layers.{}.{}", layer, weight.role) : weight.role;
}

class Assigner {
 public:
  Assigner(Model& model, const RecipeOptions& options) : model_(model), options_(options) {}

  Status run() {
    Status ok = check();
    if (ok) ok = read_patterns();
    if (!ok) return ok;
    std::vector<Weight> weights;
    for (Weight& weight : model_.weights) {
      if (weight.is_vector()) {
        weights.push_back(std::move(weight));
      } else {
        assign(std::move(weight), weights);
      }
    }
    model_.weights = std::move(weights);
    if (model_.quantization && is_auto()) {
      std::ranges::copy(model_.quantization->remarks, std::back_inserter(model_.remarks));
    }
    return check_used();
  }

 private:
  bool is_auto() const { return options_.recipe == "auto"; }

  Status check() const {
    const auto refuse = [](std::string sentence) {
      return fail(ErrorCode::kInvalidArgument, std::move(sentence));
    };
    if (!is_auto() && find_recipe(options_.recipe) == nullptr) {
      return refuse(
          fmt::format("--recipe is '{}'; allowed: auto, {}", options_.recipe, recipe_names()));
    }
    const std::string& preset = options_.preset;
    if (preset.empty()) return {};
    if (std::ranges::find(kPresets, preset) == kPresets.end()) {
      return refuse(fmt::format("--preset is '{}'{}; allowed: {}", preset,
                                did_you_mean(preset, kPresets), fmt::join(kPresets, ", ")));
    }
    if (!model_.quantization) return {};
    return refuse(fmt::format(
        "--preset is {}, and the quantization_config of {} says which layers are FP8; allowed: "
        "with a checkpoint in BF16, or --convert and --keep",
        preset, model_.name));
  }

  Status read_patterns() {
    for (const auto& [names, to] :
         {std::pair(&options_.convert, &convert_), std::pair(&options_.keep, &keep_)}) {
      for (const std::string& name : *names) {
        auto pattern = NamePatterns::read({name});
        if (!pattern) return tl::unexpected<Error>(pattern.error());
        to->push_back({name, std::move(*pattern)});
      }
    }
    return {};
  }

  struct Named {
    std::string text;
    NamePatterns pattern;
    bool used = false;
  };

  static bool matches(std::vector<Named>& all, const std::string& role) {
    bool found = false;
    for (Named& one : all) {
      if (!one.pattern.match(role)) continue;
      one.used = found = true;
    }
    return found;
  }

  Status check_used() const {
    for (const auto& [option, all] :
         {std::pair("--convert", &convert_), std::pair("--keep", &keep_)}) {
      const auto idle = std::ranges::find(*all, false, &Named::used);
      if (idle == all->end()) continue;
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} has '{}', which no weight of {} matches; allowed: names of "
                              "modules as `octile shapes` prints them, with *",
                              option, idle->text, model_.name));
    }
    return {};
  }

  // The decision about one module.
  struct Decision {
    std::string recipe, out;
    friend bool operator==(const Decision&, const Decision&) = default;
  };

  std::string named_recipe() const { return is_auto() ? "blockwise" : options_.recipe; }

  Decision of_bf16(const Weight& weight) const {
    const std::string recipe = named_recipe();
    if (options_.preset == "all" && weight.out != kTable) return {recipe, ""};
    if (!weight.out.empty()) return {"", weight.out};
    if (options_.preset == "torchao" && weight.groups == 0 && torchao_keeps(weight, recipe)) {
      return {"", "too small by torchao's filter"};
    }
    return {recipe, ""};
  }

  Decision of_quantized(const Quantization& quantization, const Weight& weight,
                        const std::string& name) const {
    if (!weight.out.empty()) return {"", weight.out};
    const auto group = std::ranges::find_if(quantization.groups, [&](const QuantizedModules& one) {
      return one.modules.is_empty() || one.modules.match(name);
    });
    const bool is_bf16 = group == quantization.groups.end() || quantization.left_out.match(name);
    // A checkpoint without FP8 has layers in BF16 to be converted.
    const bool has_fp8 = std::ranges::any_of(
        quantization.groups, [](const QuantizedModules& one) { return !one.recipe.empty(); });
    if (is_bf16) return has_fp8 ? Decision{"", "BF16 by quantization_config"} : of_bf16(weight);
    if (group->recipe.empty()) {
      return {"", fmt::format("{} in the checkpoint: no kernel", group->format)};
    }
    return {is_auto() ? group->recipe : options_.recipe, ""};
  }

  Decision decide(const Weight& weight, const std::string& name) {
    const bool convert = matches(convert_, weight.role);
    if (matches(keep_, weight.role)) return {"", "by --keep"};
    if (!weight.stored.empty() && weight.out.empty() && is_auto() && !convert) {
      return of_stored(weight);
    }
    const auto& quantization = model_.quantization;
    Decision decision = quantization ? of_quantized(*quantization, weight, name) : of_bf16(weight);
    if (convert && decision.recipe.empty() && weight.out != kTable) decision = {fp8_recipe(), ""};
    return decision;
  }

  // The types and shapes in the checkpoint's headers.
  static Decision of_stored(const Weight& weight) {
    return find_recipe(weight.stored) != nullptr
               ? Decision{weight.stored, ""}
               : Decision{"", fmt::format("{} in the checkpoint", weight.stored)};
  }

  // The recipe of a module that --convert names.
  std::string fp8_recipe() const {
    if (!is_auto() || !model_.quantization) return named_recipe();
    for (const QuantizedModules& one : model_.quantization->groups) {
      if (!one.recipe.empty()) return one.recipe;
    }
    return named_recipe();
  }

  // Adds the weight, in two parts if some of its layers are left out.
  void assign(Weight weight, std::vector<Weight>& to) {
    const std::vector<std::int32_t> layers =
        weight.at.empty() ? std::vector<std::int32_t>{0} : weight.at;
    std::vector<std::pair<Decision, std::vector<std::int32_t>>> parts;
    for (const std::int32_t layer : layers) {
      const Decision decision = decide(weight, name_in_layer(weight, layer));
      auto part = std::ranges::find(parts, decision, [](const auto& one) { return one.first; });
      if (part == parts.end()) part = parts.insert(part, {decision, {}});
      part->second.push_back(layer);
    }
    for (auto& [decision, at] : parts) {
      Weight some = weight;
      if (parts.size() > 1) {
        some.layers = std::ssize(at);
        if (&decision != &parts.back().first) some.mtp = 0;
        some.at = std::move(at);
      }
      some.recipe = decision.recipe;
      some.out = decision.out;
      to.push_back(std::move(some));
    }
  }

  Model& model_;
  const RecipeOptions& options_;
  std::vector<Named> convert_, keep_;
};

}  // namespace

std::vector<std::string> preset_names() { return {kPresets.begin(), kPresets.end()}; }

Status assign_recipes(Model& model, const RecipeOptions& options) {
  Status ok = Assigner(model, options).run();
  model.is_block_fp8 =
      model.quantization && std::ranges::any_of(model.quantization->groups, [](const auto& group) {
        return group.recipe.starts_with("blockwise");
      });
  return ok;
}

}  // namespace octile::tools
