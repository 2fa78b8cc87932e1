// How the tensors of a checkpoint hold weights [n, k]: one by one or those of all experts, each as
// [n, k] or as [k, n].
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tools/models/checkpoint/safetensors.h"
#include "tools/models/config/leaves.h"

namespace octile::tools {

// Sizes that a config states by keys of any architecture. 0: none.
struct StatedSizes {
  std::int64_t hidden = 0, experts = 0, experts_per_token = 0;
  HeadCounts heads = {};
  std::string model_type = {};
};

// The matrices [n, k] of a tensor.
struct StoredShape {
  std::int64_t experts = 0;  // whose matrices lie one behind the other; 0: one matrix
  std::int64_t n = 0, k = 0;
  bool is_transposed = false;  // stored as [k, n]
};

// Returns true for types with several elements in a word, whose shape says nothing of n and k.
bool is_packed_type(std::string_view dtype);

// Returns the module of a tensor that is multiplied: a matrix, or those of all experts. Empty: it
// is none. Packed formats have names of their own.
std::string module_of_matrix(const std::string& name, const StoredTensor& tensor);
// Returns the tensor of a module's bias, null if there is none.
const StoredTensor* bias_of_module(const StoredTensors& tensors, const std::string& module);

// Says of each matrix of a checkpoint how it is stored. The tensors and sizes must outlive this,
// which is of one thread.
class StoredShapes {
 public:
  StoredShapes(const StoredTensors& tensors, const StatedSizes& stated)
      : tensors_(tensors), stated_(stated) {}

  // Returns the shape of a tensor of two dimensions or more. A weight is [k, n] if one of these
  // says so, in this order: its bias, which has n elements; of experts the hidden size of the
  // config, and that gate_up_proj is twice as wide as down_proj; the others of its layer, if it is
  // square; the name of a Conv1D of transformers in a model that has some.
  StoredShape operator[](const std::string& name) const;

 private:
  // A tensor by its shape, which may be [n, k] or [k, n].
  struct Matrix {
    std::string module, role;
    std::int64_t experts = 0, rows = 0, cols = 0;
  };
  Matrix matrix_of(const std::string& name) const;
  bool is_transposed(const std::string& name, const Matrix& matrix) const;
  // Return nothing if they do not know.
  std::optional<bool> by_sizes(const std::string& name, const Matrix& matrix) const;
  std::optional<bool> by_hidden_size(const Matrix& matrix) const;
  std::optional<bool> by_pair(const std::string& name) const;
  std::optional<bool> by_layer(const std::string& name) const;

  const StoredTensors& tensors_;
  const StatedSizes& stated_;
  // Answers of by_layer, by the beginning of the names and the number of dimensions.
  mutable std::map<std::pair<std::string, std::size_t>, std::optional<bool>> layers_;
};

}  // namespace octile::tools
