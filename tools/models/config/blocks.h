// Blocks: what a layer of a published model is made of. A block is one function from the keys of a
// config.json to the tensors of one layer. docs/models.md has the table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/models/config/keys.h"
#include "tools/models/config/model.h"

namespace octile::tools {

struct Architecture;

// The tensors of a block, as they are added. Errors are kept in `keys`.
class Block {
 public:
  Block(Keys& of_keys, const Architecture& of_row) : keys(of_keys), row(of_row) {}

  // Add a weight [n, k], of a linear layer or of experts, with the meaning of its name (leaves.h).
  // Ranks that divide it share out `units`.
  Weight& add(std::string role, const Extent& n, const Extent& k, const Extent& units = {});
  Weight& add_experts(std::string role, const Extent& n, const Extent& k, const Extent& units);
  void add_vector(std::string role, const Extent& n, std::string why);

  Keys& keys;
  const Architecture& row;
  std::vector<Weight> weights;
};

using BlockFunction = void (*)(Block&);

// Attention. GQA is grouped-query attention; the gated one has a query twice as wide.
void gqa(Block& block);
void gated_gqa(Block& block);
void sliding_gqa(Block& block);  // with heads of its own: swa_num_key_value_heads, ...
void mla(Block& block);
void mla_gated(Block& block);  // with a gate for each head
void mla_twice(Block& block);  // two of them in a layer: LongCat-Flash
void indexer(Block& block);
void block_indexer(Block& block);      // MiniMax-M3
void gated_delta(Block& block);        // Qwen3.5: in_proj_qkv, in_proj_z
void gated_delta_fused(Block& block);  // Qwen3-Next: in_proj_qkvz
void lightning(Block& block);
void kda(Block& block);        // Kimi-Linear: gates of low rank
void kda_whole(Block& block);  // Ling: gates as wide as the queries
void mamba2(Block& block);

// The part of a layer that follows attention.
void mlp(Block& block);
void mlp_twice(Block& block);   // two of them in a layer
void linear_mlp(Block& block);  // Granite: input_linear, output_linear
void experts(Block& block);
void shared_experts(Block& block);

// The projection that a layer of multi-token prediction has beside those of a usual layer.
void mtp(Block& block);

// Parts of the model: embeddings, output layer.
void embeddings(Block& block);

}  // namespace octile::tools
