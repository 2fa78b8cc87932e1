#include "tools/inspect/subjects.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "generator/core/recipe.h"
#include "tools/inspect/npy.h"
#include "tools/models/checkpoint/checkpoint.h"
#include "tools/models/checkpoint/safetensors.h"
#include "tools/models/checkpoint/stored_weights.h"
#include "tools/models/config/derive.h"
#include "tools/models/config/leaves.h"
#include "tools/models/config/quantization.h"
#include "tools/models/document.h"

namespace octile::tools {
namespace {

namespace fs = std::filesystem;
// Keep the command's memory below 256 MB: parsing a header takes nine times its bytes, and what is
// kept of all of them three times. Headers of shards have less than a megabyte.
constexpr std::uint64_t kMostHeader = 20'000'000;
constexpr std::uint64_t kMostHeaders = 32'000'000;
constexpr std::string_view kArray = ".npy";

// Returns the name with * for an expert's number.
std::string name_of_all_experts(const std::string& name) {
  std::string all;
  std::string_view before;
  for_words(name, '.', [&](std::string_view part) {
    const bool is_expert = before == "experts" && index_of_part(part);
    all.append(all.empty() ? "" : ".").append(is_expert ? "*" : part);
    before = part;
  });
  return all;
}

std::string counted_tensors(std::int64_t count) {
  return count == 1 ? "1 tensor" : fmt::format("{} tensors", count);
}

// The tensors of all paths.
class Collector {
 public:
  Collector(const FindOptions& options, Subjects& to) : options_(options), to_(to) {
    to_.header_bytes = options.header_bytes_before;
  }

  void add_path(const std::string& path) {
    std::error_code error;
    if (!fs::is_directory(path, error)) return add_file(path, array_name(path));
    read_config(path);
    const auto found = checkpoint_files(path, kMostHeader);
    if (!found) return problem(found.error());
    for (const std::string& file : found->files) add_file((fs::path(path) / file).string(), "");
    if (!found->index.empty()) check_index(path, *found);
    if (!found->files.empty()) return;
    std::vector<std::string> arrays;
    for (const auto& entry : fs::directory_iterator(path, error)) {
      if (entry.path().extension() == kArray) arrays.push_back(entry.path().filename().string());
    }
    std::ranges::sort(arrays);
    for (const std::string& array : arrays) {
      add_file((fs::path(path) / array).string(), array_name(array));
    }
    if (!arrays.empty()) return;
    to_.problems.push_back(
        fmt::format("{} has no .safetensors and no .npy file; allowed: a folder with some", path));
  }

  // Makes subjects of the tensors.
  void finish() {
    StoredTensors tensors;
    for (const auto& [name, one] : found_) tensors.emplace(name, one->tensor);
    const StoredShapes shapes(tensors, stated_);
    std::map<std::pair<std::string, std::string>, std::size_t> groups;
    for (const auto& [name, one] : found_) {
      if (!is_wanted(tensors, name, *one)) continue;
      const std::string all = name_of_all_experts(name);
      StoredMatrices matrices = matrices_of(one);
      lay_out(shapes, all, matrices);
      matrices.number = module_of(without_weight(name)).expert.value_or(0);
      std::vector<std::string> remarks;
      if (matrices.is_fp8()) add_scales(scales_of_tensor(tensors, name), matrices, remarks);
      const std::string kind = fmt::format("{} {} {} {} {}", one->tensor.dtype, matrices.count,
                                           matrices.rows, matrices.cols, matrices.is_transposed);
      const auto [group, is_new] = groups.emplace(std::pair(all, kind), to_.all.size());
      if (is_new) to_.all.push_back(subject_of(all, name, matrices));
      Subject& subject = to_.all[group->second];
      subject.parts.push_back(std::move(matrices));
      for (std::string& remark : remarks) subject.remarks.push_back(std::move(remark));
    }
    name_roles(tensors);
    add_remarks();
  }

 private:
  void problem(const Error& error) { to_.problems.push_back(error.message); }

  static std::string array_name(const std::string& path) {
    return path.ends_with(kArray) ? path.substr(0, path.size() - kArray.size()) : "";
  }

  // Returns false for scales, for tensors that are not read, and for those that --filter leaves
  // out.
  bool is_wanted(const StoredTensors& tensors, const std::string& name, const TensorInFile& one) {
    Unread& unread = to_.unread;
    const auto not_read = [&](std::int64_t& count, std::string why) {
      ++count;
      if (options_.says_why) to_.why_unread.emplace(name_of_all_experts(name), std::move(why));
      return false;
    };
    const std::string& dtype = one.tensor.dtype;
    if (is_scale(tensors, name)) return not_read(unread.scales, "scales of another tensor");
    if (!is_readable_float(dtype)) {
      return not_read(unread.of_type[dtype], fmt::format("of type {}, which is not read", dtype));
    }
    if (one.tensor.begin == one.tensor.end) {
      return not_read(unread.without_elements, "without elements");
    }
    const std::string all = name_of_all_experts(name);
    if (options_.filter.is_empty() || options_.filter.match(std::string(without_weight(all)))) {
      return true;
    }
    ++unread.not_matching;
    return false;
  }

  // Opens the file, which has one array if that has a name.
  void add_file(const std::string& path, const std::string& array) {
    if (path.ends_with(".npz")) {
      to_.problems.push_back(
          fmt::format("{} is an archive of arrays; allowed: .safetensors and .npy, or "
                      "octile.numpy.inspect() of its arrays",
                      path));
      return;
    }
    auto file = InputFile::open_regular(path);
    auto tensors = file ? read_header(*file, array)
                        : Result<std::vector<TensorInFile>>(tl::unexpected(file.error()));
    if (!tensors) {
      ++to_.unreadable_files;
      return problem(tensors.error());
    }
    const auto shared = std::make_shared<const InputFile>(std::move(*file));
    ++to_.files;
    read_files_.insert(path);
    add_tensors(shared, *tensors);
  }

  // Keeps the tensors that are whole. One sentence says of how many this is not so, and one how
  // many are in another file.
  void add_tensors(const std::shared_ptr<const InputFile>& file,
                   std::vector<TensorInFile>& tensors) {
    std::size_t cut = 0, twice = 0;
    std::uint64_t end = 0;
    std::string first;
    const std::size_t count = tensors.size();
    for (TensorInFile& one : tensors) {
      end = std::max(end, one.tensor.end);
      if (one.tensor.end > file->bytes()) {
        ++cut;
        continue;
      }
      one.file = file;
      std::string name = one.name;
      const auto shared = std::make_shared<const TensorInFile>(std::move(one));
      const auto [place, is_new] = found_.emplace(std::move(name), shared);
      if (is_new) continue;
      if (twice++ == 0) {
        first = fmt::format("'{}' in {}", shared->name, place->second->file->name());
      }
    }
    const std::string& path = file->name();
    if (cut > 0) {
      cut_files_.insert(path);
      ++to_.unreadable_files;
      to_.problems.push_back(
          fmt::format("{}: it has {} of the {} bytes that its header tells of: {} of its {} {} not "
                      "whole and not inspected",
                      path, file->bytes(), end, cut, counted_tensors(std::ssize(tensors)),
                      cut == 1 ? "is" : "are"));
    }
    if (twice > 0) {
      to_.problems.push_back(fmt::format(
          "{}: {} of its {} {} in another file too, {} first; "
          "allowed: once",
          path, twice, counted_tensors(std::int64_t(count)), twice == 1 ? "is" : "are", first));
    }
  }

  Result<std::vector<TensorInFile>> read_header(const InputFile& file, const std::string& array) {
    std::vector<TensorInFile> all;
    if (!array.empty()) {
      auto one = read_npy(file);
      if (!one) return tl::unexpected<Error>(one.error());
      all.push_back({nullptr, array, std::move(one->tensor), one->is_by_columns});
      return all;
    }
    const std::uint64_t most = kMostHeader - to_.header_bytes * kMostHeader / kMostHeaders;
    auto tensors = read_safetensors(file, {.most_bytes = most, .may_be_cut = true});
    if (!tensors) return tl::unexpected<Error>(tensors.error());
    std::uint64_t begin = file.bytes();
    for (auto& [name, tensor] : *tensors) {
      begin = std::min(begin, tensor.begin);
      all.push_back({nullptr, name, std::move(tensor)});
    }
    to_.header_bytes = std::min(kMostHeaders, to_.header_bytes + (all.empty() ? 0 : begin));
    return all;
  }

  // Says which tensors are not in the files that the index names. Files that cannot be
  // read, or were cut, have a sentence already.
  void check_index(const std::string& folder, const CheckpointFiles& index) {
    std::int64_t missing = 0, elsewhere = 0;
    std::string first_missing, first_elsewhere;
    for (const auto& [name, at] : index.file_of) {
      const std::string& file = index.files[at];
      const std::string path = (fs::path(folder) / file).string();
      if (!read_files_.contains(path) || cut_files_.contains(path)) continue;
      const auto found = found_.find(name);
      if (found == found_.end()) {
        if (missing++ == 0) first_missing = fmt::format("'{}' of {}", name, file);
      } else if (found->second->file->name() != path) {
        if (elsewhere++ == 0) first_elsewhere = fmt::format("'{}' of {}", name, file);
      }
    }
    const auto say = [&](std::int64_t count, const char* where, const std::string& first) {
      if (count == 0) return;
      to_.problems.push_back(fmt::format("{}: weight_map lists {} {}, {} first", index.index,
                                         counted_tensors(count), where, first));
    };
    say(missing, "that the file it names lacks", first_missing);
    say(elsewhere, "that another file has than it names", first_elsewhere);
  }

  // Takes recipe and layers left out from a folder's config.json, if there is one.
  void read_config(const std::string& folder) {
    const std::string path = (fs::path(folder) / "config.json").string();
    std::error_code error;
    if (!fs::exists(path, error)) return;
    auto config = read_document(path);
    if (!config) return problem(config.error());
    const auto not_understood = [&](const char* what) {
      to_.not_understood = fmt::format("{} {}: blockwise is taken", path, what);
    };
    if (!config->is_object()) return not_understood("is not an object");
    auto quantization = quantization_of(*config, language_of(*config), path);
    const std::string beside = (fs::path(folder) / "hf_quant_config.json").string();
    if (quantization && !*quantization && fs::exists(beside, error)) {
      quantization = read_document(beside).and_then(
          [&](const Json& document) { return quantization_of_modelopt(document, beside); });
    }
    stated_ = stated_sizes(*config);
    config_path_ = path;
    config_ = std::move(*config);
    if (!quantization) return problem(quantization.error());
    quantization_ = std::move(*quantization);
    for (const QuantizedModules& group : quantization_ ? quantization_->groups : no_groups_) {
      if (group.recipe.empty() || !to_.recipe.empty()) continue;
      to_.recipe = group.recipe;
      to_.recipe_of = path;
      const Recipe* const recipe = find_recipe(group.recipe);
      to_.states_pow2 = recipe != nullptr && recipe->weight.scale != ScaleFormat::kF32;
    }
    const Json* const stated = config_->find("quantization_config");
    if (to_.recipe.empty() && stated != nullptr && !stated->is_null()) {
      not_understood("has a quantization_config that states no recipe of Octile");
    }
  }

  // Says which matrices a tensor has. `all` is its name, with * for an expert's number.
  void lay_out(const StoredShapes& shapes, const std::string& all, StoredMatrices& matrices) const {
    const std::optional<NamePatterns>& transposed = options_.transposed;
    const std::size_t rank = matrices.tensor().shape.size();
    const bool is_as_stored = transposed && transposed->is_empty();
    if (rank < 2 || rank > 3 || is_as_stored) return;
    const StoredShape shape = shapes[matrices.stored->name];
    matrices.is_transposed =
        transposed ? transposed->match(std::string(without_weight(all))) : shape.is_transposed;
    if (rank == 3 || shape.experts == 0 || matrices.is_fp8()) return;
    matrices.count = shape.experts;  // they lie one behind the other in a matrix
    matrices.rows /= shape.experts;
  }

  void add_scales(const std::string& name, StoredMatrices& matrices,
                  std::vector<std::string>& remarks) {
    if (name.empty()) {
      remarks.push_back(
          fmt::format("'{}' has no scales; its codes are taken as values", matrices.stored->name));
      return;
    }
    const SharedTensor& scales = found_.at(name);
    matrices.scales = scale_grid(scales, matrices);
    if (matrices.scales) return;
    remarks.push_back(
        fmt::format("'{}' are {} [{}], which fit no blocks of [{}]; its codes are taken as values",
                    name, scales->tensor.dtype, fmt::join(scales->tensor.shape, ", "),
                    fmt::join(matrices.tensor().shape, ", ")));
  }

  Subject subject_of(const std::string& all, const std::string& name,
                     const StoredMatrices& matrices) {
    const bool is_array = matrices.stored->file->name().ends_with(kArray);
    Subject subject{.name = all, .role = {}, .parts = {}};
    const std::vector<std::int64_t>& shape = matrices.tensor().shape;
    if (shape.size() < 2) return subject;
    if (is_array) {
      subject.is_quantised = true;
      return subject;
    }
    subject.role = module_of(without_weight(name)).role;
    if (name.ends_with("bias")) return subject;
    const bool is_kernel = shape.size() == 3 && (shape[1] == 1 || shape[2] == 1) &&
                           name.find("experts") == std::string::npos;
    if (shape.size() > 3 || is_kernel) {
      if (kernels_++ == 0) first_kernel_ = fmt::format("'{}' [{}]", name, fmt::join(shape, ", "));
      return subject;
    }
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

  // Gives subjects the names that the model of the config.json has for them.
  void name_roles(const StoredTensors& tensors) {
    if (!config_) return;
    auto model = model_of_config(*config_, config_path_, "");
    if (!model || !compare_with_checkpoint(*model, tensors, *config_)) {
      model = model_of_checkpoint(tensors, *config_, config_path_, "");
    }
    if (!model) return;
    for (Subject& subject : to_.all) {
      if (!subject.is_quantised || subject.role.empty()) continue;
      const bool of_experts = subject.matrices() > 1 || subject.name.find('*') != std::string::npos;
      subject.role = role_in_model(*model, subject.role, of_experts);
    }
  }

  void add_remarks() {
    if (kernels_ > 0) {
      to_.remarks.push_back(
          fmt::format("{} another shape than a weight of a layer, {} first: only values that are "
                      "not finite are counted",
                      kernels_ == 1 ? "1 tensor has" : fmt::format("{} tensors have", kernels_),
                      first_kernel_));
    }
    for (const auto& [dtype, count] : to_.unread.of_type) {
      if (!dtype.starts_with('F')) continue;
      to_.remarks.push_back(
          fmt::format("{} of type {}, which no recipe has: not read",
                      count == 1 ? "1 tensor is" : fmt::format("{} tensors are", count), dtype));
    }
  }

  const FindOptions& options_;
  Subjects& to_;
  StatedSizes stated_;
  std::optional<Json> config_;
  std::string config_path_;
  std::optional<Quantization> quantization_;
  const std::vector<QuantizedModules> no_groups_;
  std::map<std::string, SharedTensor> found_;
  std::set<std::string> read_files_, cut_files_;
  std::int64_t kernels_ = 0;  // tensors that are convolutions or of more than three dimensions
  std::string first_kernel_;
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
  for (const StoredMatrices& part : parts) bytes += part.tensor().end - part.tensor().begin;
  return bytes;
}

Subjects find_subjects(const std::vector<std::string>& paths, const FindOptions& options) {
  Subjects subjects;
  Collector collector(options, subjects);
  for (const std::string& path : paths) collector.add_path(path);
  collector.finish();
  std::ranges::stable_sort(subjects.all, [](const Subject& a, const Subject& b) {
    return a.is_quantised != b.is_quantised ? a.is_quantised : a.name < b.name;
  });
  return subjects;
}

}  // namespace octile::tools
