// A model as a list of its tensors: what the linear layers of `octile tune`, `compile`, `bench`,
// `explain` and `shapes` are derived from. It comes from a config.json (derive.h), from the headers
// of a checkpoint, or from a list of shapes (tools/models/shape_list.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/models/config/extent.h"
#include "tools/models/config/quantization.h"

namespace octile::tools {

// The dimension of a weight that tensor parallelism divides; kUnknown: nothing says which, and one
// rank holds it.
enum class Cut { kNone, kN, kK, kUnknown };
const char* name_of(Cut cut);

// kv_b_proj of multi-head latent attention. In decode its two halves are absorbed into the products
// around the attention: of each head [nope, kv_lora] and [v, kv_lora].
struct Absorbed {
  Extent heads, nope, v;
};

// A tensor of a layer, or of the model if `layers` is 1 and `per_layer` is false.
struct Weight {
  std::string role = {};              // its module within a layer: "self_attn.q_proj"
  std::int64_t layers = 0;            // how many layers have it
  std::int64_t mtp = 0;               // further layers for multi-token prediction that have it
  std::vector<std::int32_t> at = {};  // the indices of the layers, if it is one of a layer
  Extent n = {}, k = {};              // [out, in]; a vector has n elements and k = 0
  bool bias = false;
  bool per_layer = true;

  std::int64_t groups = 0;     // experts of a layer, each with an [n, k]; 0: no experts
  std::int64_t per_token = 0;  // experts that a token goes to
  std::int64_t stacked = 1;  // weights of a checkpoint that lie one behind the other in n: gate, up

  Cut cut = Cut::kNone;
  Extent units = {};  // whole parts of the cut dimension, such as heads; a rank holds some of them
  // The heads of keys and values, of which further ranks hold copies, and their columns in n.
  Extent kv_heads = {};
  std::int64_t kv_n = 0;
  // A rank holds a multiple of this in the cut dimension, and all ranks as much, the last ones with
  // padding: the vocabulary. 0: the units are divided.
  std::int64_t padded = 0;
  bool is_attention = false, is_shared = false;  // whole under attention data parallelism

  std::string input = {};  // what it reads; weights of a layer with one input share its FP8 copy
  std::string fused = {};  // the module that serving engines fuse it into; empty: none
  std::optional<Absorbed> absorbed = {};

  std::string stored =
      {};                // the recipe or the type that a checkpoint's headers show; empty: unknown
  std::string out = {};  // why no FP8 kernel multiplies by it; empty: one does
  std::string recipe = {};  // of its GEMMs; empty if it stays out

  bool is_vector() const { return k.value == 0; }
  // Parameters of one layer, its bias included.
  std::int64_t parameters() const;
};

struct Model {
  std::string name;             // "deepseek-v3", or a file's name
  std::string origin;           // what errors about its layers begin with
  std::string model_type = {};  // of its config.json; empty for a list of shapes
  std::int64_t layers = 0;
  std::vector<Weight> weights = {};
  std::optional<Quantization> quantization = {};
  bool is_block_fp8 = false;              // its checkpoint has a scale for 128 x 128 weights
  std::vector<std::int64_t> tokens = {};  // the counts that a list of shapes states
  std::vector<std::string> remarks = {};
};

// Return the parameters of the model without and of the layers of multi-token prediction.
std::int64_t parameters_of(const Model& model);
std::int64_t mtp_parameters_of(const Model& model);

}  // namespace octile::tools
