// From a config.json of Hugging Face to a model.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "generator/core/error.h"
#include "tools/models/config/model.h"

namespace octile::tools {

// Returns true if the document describes a model by the keys of transformers.
bool is_config(const nlohmann::json& document);

// Returns true if a row describes the model's architecture.
bool knows_architecture(const nlohmann::json& config);

// Returns the tensors of the model. `origin` begins every error, `name` is the model's. Errors:
// kInvalidArgument, one sentence: an unknown model_type, or a key, its value and what is allowed.
Result<Model> model_of_config(const nlohmann::json& config, const std::string& origin,
                              const std::string& name);

}  // namespace octile::tools
