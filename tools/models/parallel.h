// The part of a model that one rank holds.
#pragma once

#include <cstdint>
#include <optional>

#include "generator/core/error.h"
#include "tools/models/config/model.h"

namespace octile::tools {

// Ranks that share a model. Experts are divided by `ep` first, and each of them by `moe_tp`; the
// default of that is the rest of tp: tp / ep, at least 1.
struct Parallel {
  std::int64_t tp = 1;
  std::int64_t ep = 1;
  std::optional<std::int64_t> moe_tp = std::nullopt;
  // Every rank has tokens of its own, and attention and shared experts whole.
  bool dp_attention = false;

  std::int64_t expert_tp() const { return moe_tp ? *moe_tp : tp > ep ? tp / ep : 1; }
  // Groups of ranks that each have tokens of their own, and send rows to one set of experts.
  std::int64_t token_owners() const;
};

// Returns the model of one rank: weights with the dimensions, experts and heads that it holds, and
// remarks about cuts that a checkpoint cannot follow and about options that divide nothing. Errors:
// kInvalidArgument, with the key, its value and its divisors, for a size that does not divide.
Result<Model> shard(Model model, const Parallel& parallel);

// Returns the rows that a rank's experts receive in all for these tokens of an owner. Errors:
// kInvalidArgument for --tokens below 1, or if these are 2^31 rows or more.
Result<std::int64_t> expert_rows(const Parallel& parallel, std::int64_t per_token,
                                 std::int64_t tokens);

}  // namespace octile::tools
