#include "tools/models/config/quantization.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "tools/models/document.h"

namespace octile::tools {
namespace {

// Returns null without the key.
const Json& value_at(const Json& object, const char* key) {
  static const Json null;
  const Json* value = object.find(key);
  return value == nullptr ? null : *value;
}

std::string text_at(const Json& object, const char* key) {
  const std::string* text = value_at(object, key).string();
  return text == nullptr ? std::string() : *text;
}

const Json* object_at(const Json& object, const char* key) {
  const Json& value = value_at(object, key);
  return value.is_object() ? &value : nullptr;
}

// Reads one quantization_config; every error begins with the file's name.
class QuantizationReader {
 public:
  QuantizationReader(const Json& config, std::string origin)
      : config_(config), origin_(std::move(origin)) {}

  Result<std::optional<Quantization>> read() {
    all_.method = text_at(config_, "quant_method");
    Status ok = read_left_out();
    if (ok) ok = read_groups();
    if (!ok) return tl::unexpected<Error>(ok.error());
    return std::optional(std::move(all_));
  }

 private:
  Status refuse(const std::string& key, const Json& value, const std::string& allowed) const {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: quantization_config.{} is {}; allowed: {}", origin_, key,
                            excerpt(value), allowed));
  }

  Status add_patterns(const Json& object, const char* key, std::vector<std::string>& to) const {
    const Json& list = value_at(object, key);
    if (list.is_null()) return {};
    const auto is_text = [](const Json& value) { return value.string() != nullptr; };
    if (!list.is_array() || !std::ranges::all_of(list, is_text)) {
      return refuse(key, list, "a list of names of modules");
    }
    for (const Json& name : list) to.push_back(*name.string());
    return {};
  }

  Result<NamePatterns> patterns(const std::vector<std::string>& names) const {
    auto read = NamePatterns::read(names);
    if (read) return read;
    return fail(read.error().code,
                fmt::format("{}: quantization_config: {}", origin_, read.error().message));
  }

  Status read_left_out() {
    std::vector<std::string> names;
    for (const char* key :
         {"modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"}) {
      if (Status ok = add_patterns(config_, key, names); !ok) return ok;
    }
    auto read = patterns(names);
    if (!read) return tl::unexpected<Error>(read.error());
    all_.left_out = std::move(*read);
    return {};
  }

  void add(std::string recipe, std::string format, NamePatterns modules = {}) {
    all_.groups.push_back({std::move(modules), std::move(recipe), std::move(format)});
  }

  Status read_groups() {
    const std::string& method = all_.method;
    if (method == "fp8") return read_fp8();
    if (method == "compressed-tensors") return read_compressed();
    if (method == "modelopt") return read_modelopt();
    if (method == "fbgemm_fp8") {
      add("rowwise:f32", method);
    } else if (method == "mxfp8") {
      add("mxfp8", method);
    } else if (method.empty()) {
      return refuse("quant_method", value_at(config_, "quant_method"), "a method such as fp8");
    } else {
      add("", method);
    }
    return {};
  }

  Status read_fp8() {
    if (text_at(config_, "expert_dtype") == "fp4") {
      auto experts = patterns({"experts"});
      if (!experts) return tl::unexpected<Error>(experts.error());
      add("", "fp4", std::move(*experts));
    }
    const std::string type = text_at(config_, "fmt");
    if (!type.empty() && type != "e4m3") {
      add("", "fp8 " + type);
      return {};
    }
    const Json& block = value_at(config_, "weight_block_size");
    if (block.is_null()) {
      if (text_at(config_, "activation_scheme") == "static") remark_static();
      add("tensorwise:f32", "fp8");
    } else if (block == Json::array({1, 32})) {
      add("mxfp8", "fp8");
    } else if (block == Json::array({128, 128})) {
      add(text_at(config_, "scale_fmt") == "ue8m0" ? "blockwise" : "blockwise:f32", "fp8");
    } else {
      return refuse("weight_block_size", block,
                    "[128, 128] or [1, 32], or none for a scale a tensor");
    }
    return {};
  }

  void remark_static() {
    remark(
        "the checkpoint gives the activations' scales (static): quantisers read them, GEMMs are "
        "those of tensorwise");
  }

  Status read_compressed() {
    const Json* groups = object_at(config_, "config_groups");
    if (groups == nullptr) {
      return refuse("config_groups", value_at(config_, "config_groups"), "an object of groups");
    }
    for (const auto& [name, group] : groups->items()) {
      const std::string at = "config_groups." + name;
      const Json* weights = object_at(group, "weights");
      if (weights == nullptr) return refuse(at, group, "an object with weights");
      std::vector<std::string> targets;
      if (Status ok = add_patterns(group, "targets", targets); !ok) return ok;
      std::erase(targets, "Linear");
      auto modules = patterns(targets);
      if (!modules) return tl::unexpected<Error>(modules.error());
      auto [recipe, format] = decision_of_group(*weights, group);
      add(std::move(recipe), std::move(format), std::move(*modules));
    }
    if (groups->empty()) {
      remark("config_groups is empty: the checkpoint's weights are not quantised");
    }
    // Rules of named modules come before the one of all others.
    // clang 14 has no std::ranges algorithm that returns a subrange of libstdc++'s.
    std::stable_partition(all_.groups.begin(), all_.groups.end(),
                          [](const QuantizedModules& group) { return !group.modules.is_empty(); });
    return {};
  }

  static std::string type_of_group(const Json& part) {
    return fmt::format("{}{}", text_at(part, "type"), value_at(part, "num_bits").dump());
  }

  void remark(std::string text) {
    if (std::ranges::find(all_.remarks, text) == all_.remarks.end()) {
      all_.remarks.push_back(std::move(text));
    }
  }

  // Returns the recipe of a group, empty if there is none, and what the group is.
  std::pair<std::string, std::string> decision_of_group(const Json& weights, const Json& group) {
    const std::string type = type_of_group(weights);
    if (type != "float8") return {"", type};
    const Json* activations = object_at(group, "input_activations");
    if (activations == nullptr) return {"", "float8 weights for activations in BF16"};
    const std::string other = type_of_group(*activations);
    if (other != "float8") return {"", "float8 weights for activations in " + other};
    const std::string strategy = text_at(weights, "strategy");
    const std::string of_x = text_at(*activations, "strategy");
    const bool is_static = value_at(*activations, "dynamic") == false;
    if (strategy == "channel") {
      if (of_x == "tensor") {
        remark("the checkpoint has one scale for all activations, and rowwise one for each token");
      }
      return {"rowwise:f32", type};
    }
    if (strategy == "block") return of_blocks(weights);
    if (strategy == "group") return of_groups(weights);
    if (strategy != "tensor") return {"", "float8 with scales by " + strategy};
    if (of_x == "token") {
      remark("the checkpoint has a scale for each token, and tensorwise one for all activations");
    }
    if (is_static) remark_static();
    return {"tensorwise:f32", type};
  }

  static std::pair<std::string, std::string> of_blocks(const Json& weights) {
    const Json& block = value_at(weights, "block_structure");
    if (block.is_null() || block == Json::array({128, 128}) || block == "128x128") {
      return {"blockwise:f32", "float8"};
    }
    return {"", fmt::format("float8 in blocks of {}", excerpt(block))};
  }

  static std::pair<std::string, std::string> of_groups(const Json& weights) {
    const Json& size = value_at(weights, "group_size");
    const bool is_e8m0 = text_at(weights, "scale_dtype").ends_with("uint8");
    if (size == 32 && is_e8m0) return {"mxfp8", "float8"};
    return {"", fmt::format("float8 in groups of {}{}", excerpt(size),
                            size == 32 ? ", whose scales are not E8M0" : "")};
  }

  Status read_modelopt() {
    const std::string algorithm = text_at(config_, "quant_algo");
    if (algorithm != "MIXED_PRECISION") {
      add_modelopt(algorithm, {});
      return {};
    }
    const Json* layers = object_at(config_, "quantized_layers");
    if (layers == nullptr) {
      return refuse("quantized_layers", value_at(config_, "quantized_layers"),
                    "an object of modules with their quant_algo");
    }
    std::map<std::string, std::vector<std::string>> modules;  // by algorithm
    for (const auto& [name, layer] : layers->items()) {
      modules[text_at(layer, "quant_algo")].push_back(name);
    }
    for (const auto& [each, names] : modules) {
      auto read = patterns(names);
      if (!read) return tl::unexpected<Error>(read.error());
      add_modelopt(each, std::move(*read));
    }
    return {};
  }

  void add_modelopt(const std::string& algorithm, NamePatterns modules) {
    constexpr std::array kRecipes{
        std::pair("FP8", "tensorwise:f32"), std::pair("FP8_PER_CHANNEL_PER_TOKEN", "rowwise:f32"),
        std::pair("FP8_PB_WO", "blockwise:f32"), std::pair("MXFP8", "mxfp8")};
    const auto* const found = std::ranges::find(
        kRecipes, algorithm, [](const auto& one) { return std::string_view(one.first); });
    if (algorithm == "FP8") remark_static();
    add(found == kRecipes.end() ? "" : found->second, "modelopt " + algorithm, std::move(modules));
  }

  const Json& config_;
  std::string origin_;
  Quantization all_;
};

}  // namespace

Result<std::optional<Quantization>> quantization_of(const Json& config, const Json& text,
                                                    const std::string& origin) {
  for (const Json* object : {&config, &text}) {
    for (const char* key : {"quantization_config", "compression_config"}) {
      if (const Json* found = object_at(*object, key)) {
        return QuantizationReader(*found, origin).read();
      }
    }
  }
  return std::nullopt;
}

Result<std::optional<Quantization>> quantization_of_modelopt(const Json& document,
                                                             const std::string& origin) {
  const Json* found = object_at(document, "quantization");
  if (found == nullptr || text_at(*found, "quant_algo").empty()) return std::nullopt;
  Json config = *found;
  config.set("quant_method", "modelopt");
  return QuantizationReader(config, origin).read();
}

}  // namespace octile::tools
