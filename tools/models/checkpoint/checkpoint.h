// Weights on disk decide: what the headers of a checkpoint say about a model.
#pragma once

#include <string>

#include "cache/json.h"
#include "generator/core/error.h"
#include "tools/models/checkpoint/safetensors.h"
#include "tools/models/config/model.h"

namespace octile::tools {

// Compares the model with its checkpoint. Dimensions of the checkpoint are taken, each with a
// remark; weights get the type that they are stored in. A matrix that only the model or only the
// checkpoint has is a remark. Returns false if the checkpoint has matrices, and none of a layer of
// the model: it is of another one.
bool compare_with_checkpoint(Model& model, const StoredTensors& tensors, const Json& config);

// Returns a model that is known by its weights alone: matrices by name, experts as groups. `config`
// says how many heads there are, and experts that a token goes to. Errors: kInvalidArgument if the
// checkpoint has no matrix, or one beyond 2^31; those of quantization_of().
Result<Model> model_of_checkpoint(const StoredTensors& tensors, const Json& config,
                                  const std::string& origin, const std::string& name);

// Returns the model's name of a stored module, which --keep and --convert take:
// "mlp.experts.gate_up_proj" for "block_sparse_moe.experts.w1". Returns `role` itself if the model
// has no such weight.
std::string role_in_model(const Model& model, const std::string& role, bool of_experts);

}  // namespace octile::tools
