// The weights that are one GEMM.
#pragma once

#include <string>

#include "generator/core/error.h"
#include "tools/models/config/model.h"

namespace octile::tools {

enum class Layout {
  kServing,   // as vLLM and SGLang fuse them: qkv, gate_up, q_a with kv_a, qkvz
  kSeparate,  // as transformers and octile.torch run them
  kBoth
};
// Errors: kInvalidArgument, naming --layout.
Result<Layout> layout_of_option(const std::string& name);

// Returns the model with its weights as the layout has them. Weights are fused only if they have
// one recipe.
Model laid_out(Model model, Layout layout);

}  // namespace octile::tools
