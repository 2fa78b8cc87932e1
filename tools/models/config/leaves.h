// The meaning of the name of a weight's module: how ranks divide the weight, which module serving
// engines fuse it into, which tensor it reads, and why it stays out of FP8. The rows of
// architectures, the headers of checkpoints and documents of shapes all ask here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tools/models/config/model.h"

namespace octile::tools {

// Parts that ranks divide a weight by: heads of queries, of keys and values, of all three in one
// weight, of a linear attention; any columns; the vocabulary.
enum class By { kNothing, kHeads, kKvHeads, kQkv, kLinearHeads, kWidth, kVocabulary };

inline constexpr std::string_view kTable = "a table: no GEMM";  // is read, not multiplied

struct Leaf {
  // Names of one meaning, the usual one first. A name may have the parts before the last one too.
  std::string_view names;
  Cut cut = Cut::kNone;
  By by = By::kNothing;
  std::string_view fused = {};  // the last part of the module that serving engines fuse it into
  std::string_view input = {};  // ".x" is the x of the module around it
  std::int64_t stacked = 1;     // weights that lie one behind the other in n
  std::string_view out = {};    // why it stays out
};

// Returns null for a name that says nothing. `role` is a weight's module within a layer.
const Leaf* find_leaf(std::string_view role);

// Returns the name with the usual words: "mlp.gate_proj" for "feed_forward.w1".
std::string usual_name(std::string_view role);

// Stands behind the input of a weight of an unknown model, whose norms and activations are unknown.
inline constexpr std::string_view kByName = ", by its name";

// Gives the weight what its name says, Cut::kUnknown if it says nothing. The caller divides it.
void name_weight(Weight& weight);

// The heads of a model; 0: unknown.
struct HeadCounts {
  std::int64_t heads = 0, kv_heads = 0, linear_heads = 0;
};

// Gives a named weight the parts that ranks share out, Cut::kUnknown if the heads are unknown or do
// not divide it.
void divide_by_name(Weight& weight, const HeadCounts& counts);

}  // namespace octile::tools
