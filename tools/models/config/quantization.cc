#include "tools/models/config/quantization.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "tools/models/document.h"

namespace octile::tools {
namespace {

using Json = nlohmann::json;

std::string text_at(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) && object.at(key).is_string()
             ? object.at(key).get<std::string>()
             : std::string();
}

const Json* object_at(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) && object.at(key).is_object() ? &object.at(key)
                                                                                  : nullptr;
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
    if (!object.contains(key) || object.at(key).is_null()) return {};
    const Json& list = object.at(key);
    const auto is_text = [](const Json& value) { return value.is_string(); };
    if (!list.is_array() || !std::ranges::all_of(list, is_text)) {
      return refuse(key, list, "a list of names of modules");
    }
    for (const Json& name : list) to.push_back(name.get<std::string>());
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
      return refuse("quant_method", config_.value("quant_method", Json()), "a method such as fp8");
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
    const Json block = config_.value("weight_block_size", Json());
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
    all_.remarks.emplace_back(
        "the checkpoint gives the activations' scales (static): quantisers read them, GEMMs are "
        "those of tensorwise");
  }

  Status read_compressed() {
    const Json* groups = object_at(config_, "config_groups");
    if (groups == nullptr || groups->empty()) {
      return refuse("config_groups", config_.value("config_groups", Json()), "an object of groups");
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
      add(recipe_of_group(*weights, group), format_of_group(*weights), std::move(*modules));
    }
    // Rules of named modules come before the one of all others.
    // clang 14 has no std::ranges algorithm that returns a subrange of libstdc++'s.
    std::stable_partition(all_.groups.begin(), all_.groups.end(),
                          [](const QuantizedModules& group) { return !group.modules.is_empty(); });
    return {};
  }

  std::string format_of_group(const Json& weights) const {
    return fmt::format("{}{}", text_at(weights, "type"), weights.value("num_bits", Json()).dump());
  }

  std::string recipe_of_group(const Json& weights, const Json& group) {
    const Json* activations = object_at(group, "input_activations");
    const bool fp8 = format_of_group(weights) == "float8" && activations != nullptr &&
                     format_of_group(*activations) == "float8";
    if (!fp8) return "";
    const std::string strategy = text_at(weights, "strategy");
    if (strategy == "channel") return "rowwise:f32";
    if (strategy == "block") return "blockwise:f32";
    if (strategy != "tensor") return "";
    if (activations->value("dynamic", Json()) == false) remark_static();
    return "tensorwise:f32";
  }

  Status read_modelopt() {
    const std::string algorithm = text_at(config_, "quant_algo");
    constexpr std::array kRecipes{
        std::pair("FP8", "tensorwise:f32"), std::pair("FP8_PER_CHANNEL_PER_TOKEN", "rowwise:f32"),
        std::pair("FP8_PB_WO", "blockwise:f32"), std::pair("MXFP8", "mxfp8")};
    const auto* const found = std::ranges::find(
        kRecipes, algorithm, [](const auto& one) { return std::string_view(one.first); });
    if (algorithm == "FP8") remark_static();
    add(found == kRecipes.end() ? "" : found->second, "modelopt " + algorithm);
    return {};
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
  config["quant_method"] = "modelopt";
  return QuantizationReader(config, origin).read();
}

}  // namespace octile::tools
