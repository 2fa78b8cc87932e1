#include "tools/inspect/subjects.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "generator/core/recipe.h"
#include "tools/inspect/npy.h"
#include "tools/models/checkpoint/safetensors.h"
#include "tools/models/checkpoint/stored_weights.h"
#include "tools/models/config/derive.h"
#include "tools/models/config/leaves.h"
#include "tools/models/config/quantization.h"
#include "tools/models/document.h"

namespace octile::tools {
namespace {

namespace fs = std::filesystem;
// Keeps the command's memory below 256 MB. Headers of shards have less than a megabyte.
constexpr std::uint64_t kMostInspectedHeader = 20'000'000;

// Returns the name with * for an expert's number.
std::string name_of_all_experts(const std::string& name) {
  std::string all;
  std::string_view before;
  for_words(name, '.', [&](std::string_view part) {
    const bool is_number =
        !part.empty() && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    all.append(all.empty() ? "" : ".").append(is_number && before == "experts" ? "*" : part);
    before = part;
  });
  return all;
}

// The tensors of all paths.
class Collector {
 public:
  Collector(const NamePatterns& filter, const std::optional<NamePatterns>& transposed, Subjects& to)
      : filter_(filter), transposed_(transposed), to_(to) {}

  void add_path(const std::string& path) {
    std::error_code error;
    if (!fs::is_directory(path, error)) return add_file(path);
    read_config(path);
    const auto files = checkpoint_files(path);
    if (!files) return problem(files.error());
    for (const std::string& file : *files) add_file((fs::path(path) / file).string());
    if (!files->empty()) return;
    std::vector<std::string> arrays;
    for (const auto& entry : fs::directory_iterator(path, error)) {
      if (entry.path().extension() == ".npy") arrays.push_back(entry.path().string());
    }
    std::ranges::sort(arrays);
    for (const std::string& array : arrays) add_file(array);
    if (!arrays.empty()) return;
    to_.problems.push_back(
        fmt::format("{} has no .safetensors and no .npy file; allowed: a folder with some", path));
  }

  // Makes subjects of the tensors.
  void finish() {
    StoredTensors tensors;
    for (const auto& [name, one] : found_) tensors.emplace(name, one.tensor);
    const StoredShapes shapes(tensors, stated_);
    std::map<std::pair<std::string, std::string>, std::size_t> groups;
    std::map<std::string, int> unread;  // by type
    for (const auto& [name, one] : found_) {
      const std::string scales = scales_of_tensor(tensors, name);
      if (is_scale(tensors, name)) continue;
      if (!is_readable_float(one.tensor.dtype)) {
        if (one.tensor.dtype.starts_with('F')) ++unread[one.tensor.dtype];
        continue;
      }
      const std::string all = name_of_all_experts(name);
      if (!filter_.is_empty() && !filter_.match(std::string(without_weight(all)))) continue;
      StoredMatrices matrices = matrices_of(one);
      if (matrices.count * matrices.rows * matrices.cols == 0) continue;
      lay_out(shapes, all, matrices);
      matrices.number = module_of(without_weight(name)).expert.value_or(0);
      std::vector<std::string> remarks;
      if (matrices.is_fp8()) add_scales(scales, matrices, remarks);
      const std::string kind = fmt::format("{} {} {} {} {}", one.tensor.dtype, matrices.count,
                                           matrices.rows, matrices.cols, matrices.is_transposed);
      const auto [group, is_new] = groups.emplace(std::pair(all, kind), to_.all.size());
      if (is_new) to_.all.push_back(subject_of(all, name, matrices));
      Subject& subject = to_.all[group->second];
      subject.parts.push_back(std::move(matrices));
      for (std::string& remark : remarks) subject.remarks.push_back(std::move(remark));
    }
    for (const auto& [dtype, count] : unread) {
      to_.remarks.push_back(
          fmt::format("{} of type {}, which no recipe has: not read",
                      count == 1 ? "1 tensor is" : fmt::format("{} tensors are", count), dtype));
    }
  }

 private:
  void problem(const Error& error) { to_.problems.push_back(error.message); }

  void add_file(const std::string& path) {
    if (path.ends_with(".npz")) {
      to_.problems.push_back(
          fmt::format("{} is an archive of arrays; allowed: .safetensors and .npy, or "
                      "octile.numpy.inspect() of its arrays",
                      path));
      return;
    }
    auto file = InputFile::open_regular(path);
    if (!file) return problem(file.error());
    auto tensors = read_header(*file);
    if (!tensors) return problem(tensors.error());
    const auto shared = std::make_shared<const InputFile>(std::move(*file));
    ++to_.files;
    for (auto& [name, tensor] : *tensors) {
      const auto [place, is_new] = found_.emplace(name, TensorInFile{shared, name, tensor});
      if (is_new) continue;
      to_.problems.push_back(fmt::format("{}: '{}' is in {} too; allowed: once", path, name,
                                         place->second.file->name()));
    }
  }

  static Result<StoredTensors> read_header(const InputFile& file) {
    constexpr std::string_view kArray = ".npy";
    const std::string& path = file.name();
    if (!path.ends_with(kArray)) return read_safetensors(file, kMostInspectedHeader);
    auto array = read_npy(file);
    if (!array) return tl::unexpected<Error>(array.error());
    StoredTensors tensors;
    tensors.emplace(path.substr(0, path.size() - kArray.size()), std::move(*array));
    return tensors;
  }

  // Takes recipe and layers left out from a folder's config.json, if there is one.
  void read_config(const std::string& folder) {
    const std::string path = (fs::path(folder) / "config.json").string();
    std::error_code error;
    if (!fs::exists(path, error)) return;
    const auto config = read_document(path);
    if (!config) return problem(config.error());
    auto quantization = quantization_of(*config, language_of(*config), path);
    const std::string beside = (fs::path(folder) / "hf_quant_config.json").string();
    if (quantization && !*quantization && fs::exists(beside, error)) {
      quantization = read_document(beside).and_then(
          [&](const Json& document) { return quantization_of_modelopt(document, beside); });
    }
    stated_ = stated_sizes(*config);
    if (!quantization) return problem(quantization.error());
    quantization_ = std::move(*quantization);
    if (!quantization_) return;
    for (const QuantizedModules& group : quantization_->groups) {
      if (group.recipe.empty() || !to_.recipe.empty()) continue;
      to_.recipe = group.recipe;
      to_.recipe_of = path;
      const Recipe* const recipe = find_recipe(group.recipe);
      to_.states_pow2 = recipe != nullptr && recipe->weight.scale != ScaleFormat::kF32;
    }
  }

  // Says which matrices a tensor has. `all` is its name, with * for an expert's number.
  void lay_out(const StoredShapes& shapes, const std::string& all, StoredMatrices& matrices) const {
    const std::size_t rank = matrices.stored.tensor.shape.size();
    const bool is_as_stored = transposed_ && transposed_->is_empty();
    if (rank < 2 || rank > 3 || is_as_stored) return;
    const StoredShape shape = shapes[matrices.stored.name];
    matrices.is_transposed =
        transposed_ ? transposed_->match(std::string(without_weight(all))) : shape.is_transposed;
    if (rank == 3 || shape.experts == 0 || matrices.is_fp8()) return;
    matrices.count = shape.experts;  // they lie one behind the other in a matrix
    matrices.rows /= shape.experts;
  }

  void add_scales(const std::string& name, StoredMatrices& matrices,
                  std::vector<std::string>& remarks) {
    if (name.empty()) {
      remarks.push_back(
          fmt::format("'{}' has no scales; its codes are taken as values", matrices.stored.name));
      return;
    }
    const TensorInFile& scales = found_.at(name);
    matrices.scales = scale_grid(scales, matrices);
    if (matrices.scales) return;
    remarks.push_back(
        fmt::format("'{}' are {} [{}], which fit no blocks of [{}]; its codes are taken as values",
                    name, scales.tensor.dtype, fmt::join(scales.tensor.shape, ", "),
                    fmt::join(matrices.stored.tensor.shape, ", ")));
  }

  Subject subject_of(const std::string& all, const std::string& name,
                     const StoredMatrices& matrices) const {
    const ModuleName module = module_of(without_weight(name));
    Subject subject{.name = all, .role = module.role, .parts = {}};
    const std::size_t rank = matrices.stored.tensor.shape.size();
    const bool is_vector = matrices.rows == 1 || matrices.cols == 1;
    if (rank < 2 || rank > 3 || is_vector || name.ends_with("bias")) return subject;
    subject.out = reason_to_stay_out(subject.role, name, matrices);
    subject.is_quantised = subject.out.empty();
    return subject;
  }

  std::string reason_to_stay_out(const std::string& role, const std::string& name,
                                 const StoredMatrices& matrices) const {
    if (matrices.is_fp8()) return {};
    const Leaf* leaf = find_leaf(role);
    if (leaf != nullptr && !leaf->out.empty()) return std::string(leaf->out);
    if (quantization_ && quantization_->left_out.match(std::string(without_weight(name)))) {
      return "left out by quantization_config";
    }
    return {};
  }

  const NamePatterns& filter_;
  const std::optional<NamePatterns>& transposed_;
  Subjects& to_;
  StatedSizes stated_;
  std::optional<Quantization> quantization_;
  std::map<std::string, TensorInFile> found_;
};

}  // namespace

std::int64_t Subject::matrices() const {
  std::int64_t count = 0;
  for (const StoredMatrices& part : parts) count += part.count;
  return count;
}

std::int64_t Subject::elements() const { return matrices() * first().rows * first().cols; }

std::uint64_t Subject::bytes() const {
  std::uint64_t bytes = 0;
  for (const StoredMatrices& part : parts)
    bytes += part.stored.tensor.end - part.stored.tensor.begin;
  return bytes;
}

Subjects find_subjects(const std::vector<std::string>& paths, const NamePatterns& filter,
                       const std::optional<NamePatterns>& transposed) {
  Subjects subjects;
  Collector collector(filter, transposed, subjects);
  for (const std::string& path : paths) collector.add_path(path);
  collector.finish();
  std::ranges::stable_sort(subjects.all, [](const Subject& a, const Subject& b) {
    return a.is_quantised != b.is_quantised ? a.is_quantised : a.name < b.name;
  });
  return subjects;
}

}  // namespace octile::tools
