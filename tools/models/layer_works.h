// The problems of one linear layer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "generator/core/recipe.h"
#include "tools/models/workload.h"

namespace octile::tools {

struct Layer {
  std::string name;
  std::int64_t n = 0, k = 0;
  std::int64_t experts = 0;  // 0: one weight for all tokens
};

// The works of layers for one user and one recipe.
struct LayerWorks {
  const Recipe& recipe;
  const std::vector<Pass>& passes;
  const std::vector<TokenRange>& tokens;
  std::vector<Work>& works;
};

// Adds the works of a layer; of experts, those of contiguous groups.
void add_layer(const Layer& layer, const LayerWorks& all, LayerUser user);

// Adds the forward pass of experts in masked groups, whose token counts are those of an expert.
// Returns false if there is no such kernel.
bool add_masked(const Layer& layer, const LayerWorks& all);

// Adds the forward pass of `batch` products [tokens, k] x [n, k]. Returns false if there is no such
// kernel.
bool add_batched(const Layer& layer, std::int64_t batch, const LayerWorks& all);

// Which operand of a layer the quantiser among its works makes.
enum class Operand { kActivation, kWeight, kGradient };
std::optional<Operand> operand_of(const Work& work);  // nothing for a GEMM

}  // namespace octile::tools
