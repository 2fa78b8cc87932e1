// The weights that `octile inspect` finds in files and folders.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "generator/core/error.h"
#include "tools/inspect/stored_matrix.h"
#include "tools/models/config/name_patterns.h"

namespace octile::tools {

// A weight: a tensor's matrices, or a tensor for each expert of a layer.
struct Subject {
  std::string name;  // of the tensor; of experts "layers.3.mlp.experts.*.up_proj.weight"
  std::string role;  // its module within a layer, as `octile shapes` and --keep name it
  std::vector<StoredMatrices> parts;
  bool is_quantised = false;  // else its values are counted and nothing more
  std::string out = {};       // why it is not; empty for a tensor that is not a matrix
  std::vector<std::string> remarks = {};

  const StoredMatrices& first() const { return parts.front(); }
  bool is_transposed() const { return first().is_transposed; }
  std::int64_t matrices() const;
  std::int64_t elements() const;
  std::uint64_t bytes() const;
};

struct Subjects {
  std::vector<Subject> all;  // by name, weights that are quantised first
  // A sentence for each file that cannot be read, and for a config.json that cannot.
  std::vector<std::string> problems;
  std::vector<std::string> remarks;  // about tensors that are not read
  std::string recipe;                // that of a config.json; empty: it states none
  std::string recipe_of;             // the file that states it
  bool states_pow2 = false;          // the config says that scales are powers of two
  std::size_t files = 0;             // that were read
};

// Opens .safetensors and .npy files. A folder stands for the files that its index names, else for
// its .safetensors files, else for its .npy files. `filter` leaves only tensors with a matching
// name; if it is empty, all stay. `transposed` names the weights that are stored as [k, n]; if it
// is empty, every tensor is read as it is stored. Without it, the checkpoint and its config.json
// say so (stored_shapes.h).
Subjects find_subjects(const std::vector<std::string>& paths, const NamePatterns& filter,
                       const std::optional<NamePatterns>& transposed);

}  // namespace octile::tools
