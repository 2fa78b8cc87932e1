// A checkpoint's statement on its quantisation: quantization_config of a config.json.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cache/json.h"
#include "generator/core/error.h"
#include "tools/models/config/name_patterns.h"

namespace octile::tools {

// Modules that are stored in one way. `recipe` is empty for a format that has no kernel here, and
// `format` names it.
struct QuantizedModules {
  NamePatterns modules;  // empty: all others
  std::string recipe;
  std::string format;
};

struct Quantization {
  std::string method;                    // "fp8"
  std::vector<QuantizedModules> groups;  // the first that matches counts
  NamePatterns left_out;                 // modules that stay in BF16
  std::vector<std::string> remarks;
};

// Returns nothing for a checkpoint in BF16. `text` is the object of the language model within
// `config`. Errors: kInvalidArgument for a quantization_config that contradicts itself.
Result<std::optional<Quantization>> quantization_of(const Json& config, const Json& text,
                                                    const std::string& origin);

// Reads hf_quant_config.json, which lies beside the config.json of modelopt's checkpoints.
Result<std::optional<Quantization>> quantization_of_modelopt(const Json& document,
                                                             const std::string& origin);

}  // namespace octile::tools
