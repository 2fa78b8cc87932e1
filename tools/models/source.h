// The places where --model finds a model: shipped configs, the local cache of the Hugging Face Hub,
// files and folders. Nothing here uses the network.
#pragma once

#include <string>
#include <vector>

#include "generator/core/error.h"
#include "tools/models/config/model.h"

namespace octile::tools {

// Return the names of the models shipped with the command; as text: "deepseek-v3, ...".
std::vector<std::string> shipped_model_names();
std::vector<std::string> shipped_models_with_experts();
// Returns the ids of the Hub that a shipped model has.
std::vector<std::string> hub_ids_of(const std::string& shipped_name);

// `word` is the name of a shipped model; a path of a config.json, of a folder with one, of a
// document of `octile shapes --json`, or of a list of shapes; "-" for standard input; or an id of
// the Hub, "deepseek-ai/DeepSeek-V3": in the local cache, or that of a shipped model. Errors:
// kInvalidArgument, one sentence.
Result<Model> find_model(const std::string& word);

}  // namespace octile::tools
