// The weights that `octile inspect` finds in files and folders.
#pragma once

#include <cstdint>
#include <map>
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
  // Its module within a layer, as `octile shapes` and --keep name it; empty for an array and for a
  // tensor without a name.
  std::string role;
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

// The tensors of the files that are not inspected.
struct Unread {
  std::int64_t scales = 0, without_elements = 0, not_matching = 0;
  std::map<std::string, std::int64_t> of_type;  // types that are not read, and their tensors
};

struct Subjects {
  std::vector<Subject> all;  // by name, weights that are quantised first
  // A sentence for each file that cannot be read, and for a config.json that cannot.
  std::vector<std::string> problems;
  std::vector<std::string> remarks;  // about tensors that are not read or not quantised
  std::string recipe;                // that of a config.json; empty: it states none
  std::string recipe_of;             // the file that states it
  std::string not_understood;        // a sentence about a config.json that says nothing of recipes
  bool states_pow2 = false;          // the config says that scales are powers of two
  std::size_t files = 0;             // that were read
  std::size_t unreadable_files = 0;
  std::uint64_t header_bytes = 0;  // of all files, and those that were read before
  Unread unread;
  std::map<std::string, std::string> why_unread;  // by the tensors' names, if they are asked for
};

struct FindOptions {
  const NamePatterns& filter;  // leaves only tensors with a matching name; if it is empty, all stay
  // Names the weights that are stored as [k, n]; if it is empty, every tensor is read as it is
  // stored. Without it, the checkpoint and its config.json say so (stored_shapes.h).
  const std::optional<NamePatterns>& transposed;
  bool says_why = false;                  // why_unread is asked for
  std::uint64_t header_bytes_before = 0;  // of other checkpoints, which count in the bound
};

// Opens .safetensors and .npy files. A folder stands for the files that its index names, else for
// its .safetensors files, else for its .npy files, whose arrays have the names of their files. A
// file that was cut gives the tensors that are whole. All headers together are bounded.
Subjects find_subjects(const std::vector<std::string>& paths, const FindOptions& options);

}  // namespace octile::tools
