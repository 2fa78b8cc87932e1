// From a config.json of Hugging Face to a model.
#pragma once

#include <string>

#include "cache/json.h"
#include "generator/core/error.h"
#include "tools/models/config/model.h"

namespace octile::tools {

// Returns true if the document describes a model by the keys of transformers.
bool is_config(const Json& document);

// Returns the object that describes the language model: the config, or one within it.
const Json& language_of(const Json& config);

// Returns the model_type of the language model, else that of the config; empty without one.
std::string model_type_of(const Json& config);

// Returns true if a row describes the model's architecture.
bool knows_architecture(const Json& config);

// Returns the tensors of the model. `origin` begins every error, `name` is the model's. Errors:
// kInvalidArgument, one sentence: an unknown model_type, or a key, its value and what is allowed.
Result<Model> model_of_config(const Json& config, const std::string& origin,
                              const std::string& name);

}  // namespace octile::tools
