#include "tools/models/checkpoint/stored_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "tools/models/checkpoint/stored_weights.h"

namespace octile::tools {
namespace {

// Models of transformers with layers of Conv1D, whose weights are [k, n], and those layers' names.
constexpr std::array<std::string_view, 4> kConv1dModels{"gpt2", "openai-gpt", "imagegpt",
                                                        "decision_transformer"};
constexpr std::array<std::string_view, 4> kConv1dNames{"c_attn", "q_attn", "c_fc", "c_proj"};

constexpr std::string_view kGateUp = "gate_up_proj", kDown = "down_proj";

bool contains(std::span<const std::string_view> words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

bool is_of_experts(std::string_view role) {
  return role.starts_with("experts.") || role.find(".experts.") != std::string_view::npos;
}

std::string_view last_part(std::string_view role) { return role.substr(role.rfind('.') + 1); }

}  // namespace

bool is_packed_type(std::string_view dtype) {
  constexpr std::array<std::string_view, 6> kPacked{"U8", "I8", "I32", "U32", "F4", "I64"};
  return contains(kPacked, dtype);
}

std::string module_of_matrix(const std::string& name, const StoredTensor& tensor) {
  const bool experts = name.find("experts.") != std::string::npos;
  for (const char* end : {".weight", ".qweight", ".weight_packed", "_blocks", "_packed", ""}) {
    const std::string_view ending(end);
    if (!name.ends_with(ending)) continue;
    std::string bare = name.substr(0, name.size() - ending.size());
    const std::size_t rank = tensor.shape.size();
    const bool is_linear = rank == 3 && ending == ".weight" && bare.ends_with("put_linear");
    const bool is_one = (rank == 2 && (ending.starts_with('.') || experts)) ||
                        (rank == 3 && experts) || is_linear ||
                        (rank == 4 && experts && ending == "_blocks");
    return is_one ? bare : "";
  }
  return "";
}

const StoredTensor* bias_of_module(const StoredTensors& tensors, const std::string& module) {
  for (const char* end : {".bias", "_bias"}) {
    const auto bias = tensors.find(module + end);
    if (bias == tensors.end()) continue;
    return bias->second.shape.empty() ? nullptr : &bias->second;
  }
  return nullptr;
}

StoredShape StoredShapes::operator[](const std::string& name) const {
  const Matrix matrix = matrix_of(name);
  StoredShape shape{.experts = matrix.experts, .n = matrix.rows, .k = matrix.cols};
  shape.is_transposed = !matrix.module.empty() && is_transposed(name, matrix);
  if (shape.is_transposed) std::swap(shape.n, shape.k);
  return shape;
}

// Experts without a number may be one tensor, or lie one behind the other in a matrix.
StoredShapes::Matrix StoredShapes::matrix_of(const std::string& name) const {
  const StoredTensor& tensor = tensors_.at(name);
  const std::size_t rank = tensor.shape.size();
  Matrix matrix{.module = module_of_matrix(name, tensor),
                .role = {},
                .experts = rank > 2 ? tensor.shape[0] : 0,
                .rows = tensor.shape[rank == 4 ? 1 : rank - 2],
                .cols = tensor.shape[rank - 1]};
  const ModuleName module = module_of(matrix.module);
  matrix.role = module.role;
  const bool are_stacked = rank == 2 && !module.expert && stated_.experts > 0 &&
                           is_of_experts(matrix.role) && matrix.rows % stated_.experts == 0;
  if (are_stacked) {
    matrix.rows /= stated_.experts;
    matrix.experts = stated_.experts;
  }
  return matrix;
}

bool StoredShapes::is_transposed(const std::string& name, const Matrix& matrix) const {
  if (const auto said = by_sizes(name, matrix)) return *said;
  if (matrix.rows == matrix.cols) {
    if (const auto said = by_layer(name)) return *said;
  }
  return contains(kConv1dModels, stated_.model_type) &&
         contains(kConv1dNames, last_part(matrix.role));
}

std::optional<bool> StoredShapes::by_sizes(const std::string& name, const Matrix& matrix) const {
  const StoredTensor* const bias = bias_of_module(tensors_, matrix.module);
  if (bias != nullptr && matrix.rows != matrix.cols) {
    const std::int64_t n = bias->shape.back();
    if (n == matrix.rows || n == matrix.cols) return n == matrix.cols;
  }
  if (matrix.experts == 0 || is_packed_type(tensors_.at(name).dtype)) return std::nullopt;
  const auto said = by_hidden_size(matrix);
  return said ? said : by_pair(name);
}

// Experts that read the hidden size have it in k, those that write it in n.
std::optional<bool> StoredShapes::by_hidden_size(const Matrix& matrix) const {
  const Leaf* const leaf = find_leaf(matrix.role);
  if (leaf == nullptr || leaf->cut == Cut::kNone || matrix.rows == matrix.cols) return std::nullopt;
  const bool writes = leaf->cut == Cut::kK;
  if ((writes ? matrix.rows : matrix.cols) == stated_.hidden) return false;
  if ((writes ? matrix.cols : matrix.rows) == stated_.hidden) return true;
  return std::nullopt;
}

// With a hidden size h and a width w, gate_up_proj is [2w, h] and down_proj [h, w]. _is_transposed
// in runtime/python/octile/torch/inspection.py has this rule for models in memory.
std::optional<bool> StoredShapes::by_pair(const std::string& name) const {
  std::string up = name, down = name;
  if (const std::size_t at = name.rfind(kGateUp); at != std::string::npos) {
    down.replace(at, kGateUp.size(), kDown);
  } else if (const std::size_t from = name.rfind(kDown); from != std::string::npos) {
    up.replace(from, kDown.size(), kGateUp);
  }
  const auto is_one = [&](const std::string& each) {
    const auto found = tensors_.find(each);
    return found != tensors_.end() && found->second.shape.size() == 3;
  };
  if (up == down || !is_one(up) || !is_one(down)) return std::nullopt;
  const Matrix a = matrix_of(up), b = matrix_of(down);
  if (a.cols == b.rows && a.rows == 2 * b.cols) return false;
  if (a.rows == b.cols && a.cols == 2 * b.rows) return true;
  return std::nullopt;
}

// Returns what all weights of the layer say that have as many dimensions and say anything.
std::optional<bool> StoredShapes::by_layer(const std::string& name) const {
  const ModuleName place = module_of(name);
  if (!place.layer) return std::nullopt;
  const std::size_t rank = tensors_.at(name).shape.size();
  const auto [known, is_new] =
      layers_.try_emplace({fmt::format("{}.{}.", place.before, *place.layer), rank});
  if (!is_new) return known->second;
  const std::string& layer = known->first.first;
  std::optional<bool> all;
  for (auto at = tensors_.lower_bound(layer); at != tensors_.end(); ++at) {
    const auto& [other, tensor] = *at;
    if (!other.starts_with(layer)) break;
    if (tensor.shape.size() != rank) continue;
    const Matrix matrix = matrix_of(other);
    const auto said = matrix.module.empty() ? std::nullopt : by_sizes(other, matrix);
    if (said && all && *said != *all) return std::nullopt;
    if (said) all = said;
  }
  return known->second = all;
}

}  // namespace octile::tools
