#include "tools/models/checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <tuple>
#include <utility>

#include "cache/json.h"
#include "tools/models/document.h"

namespace octile::tools {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t kLengthBytes = 8;
constexpr const char* kIndexName = "model.safetensors.index.json";

struct ElementType {
  std::string_view name;
  std::uint64_t bits;
};
constexpr std::array kElementTypes = std::to_array<ElementType>({
    {"BOOL", 8},    {"U8", 8},          {"I8", 8},          {"F8_E4M3", 8}, {"F8_E5M2", 8},
    {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F4", 4},      {"F6_E2M3", 6},
    {"F6_E3M2", 6}, {"I16", 16},        {"U16", 16},        {"F16", 16},    {"BF16", 16},
    {"I32", 32},    {"U32", 32},        {"F32", 32},        {"F64", 64},    {"I64", 64},
    {"U64", 64},    {"C64", 64},
});

struct Range {
  std::uint64_t begin = 0, end = 0;
  std::string name;
};

// Reads one header; every error begins with the file's name.
class HeaderReader {
 public:
  HeaderReader(std::uint64_t data_bytes, const std::string& origin)
      : data_bytes_(data_bytes), origin_(origin) {}

  Result<StoredTensors> read(const Json& root) {
    if (!root.is_object())
      return refuse("the header is not an object; allowed: an object of tensors");
    for (const auto& [name, value] : root.items()) {
      if (name == "__metadata__") continue;
      if (Status ok = add(name, value); !ok) return tl::unexpected<Error>(ok.error());
    }
    std::ranges::sort(ranges_, {}, &Range::begin);
    for (std::size_t i = 1; i < ranges_.size(); ++i) {
      const Range &before = ranges_[i - 1], &range = ranges_[i];
      if (range.begin < before.end) {
        return refuse(fmt::format("'{}' and '{}' overlap; allowed: tensors that follow each other",
                                  before.name, range.name));
      }
    }
    return std::move(tensors_);
  }

 private:
  tl::unexpected<Error> refuse(const std::string& sentence) const {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", origin_, sentence));
  }
  tl::unexpected<Error> refuse_tensor(const std::string& name, const char* field, const Json& value,
                                      const std::string& allowed) const {
    return refuse(fmt::format("{} of '{}' is {}; allowed: {}", field, name.substr(0, 200),
                              excerpt(value), allowed));
  }

  Status add(const std::string& name, const Json& value) {
    if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") ||
        !value.contains("data_offsets")) {
      return refuse(fmt::format("'{}' is not a tensor; allowed: dtype, shape and data_offsets",
                                name.substr(0, 200)));
    }
    const auto* const dtype = value.at("dtype").string();
    const auto* const type = std::ranges::find(
        kElementTypes, std::string_view(dtype == nullptr ? "" : *dtype), &ElementType::name);
    if (type == kElementTypes.end()) {
      return refuse_tensor(name, "dtype", value.at("dtype"), "a type such as BF16 or F8_E4M3");
    }
    StoredTensor tensor{.dtype = std::string(type->name), .shape = {}};
    const auto elements = read_shape(value.at("shape"), tensor.shape);
    if (!elements) {
      return refuse_tensor(name, "shape", value.at("shape"),
                           "a list of up to 8 integers from 0 on, below 2^56 elements in all");
    }
    const auto range = read_range(value.at("data_offsets"));
    if (!range) {
      return refuse_tensor(
          name, "data_offsets", value.at("data_offsets"),
          fmt::format("two ascending integers from 0 to {}, the bytes of data", data_bytes_));
    }
    const std::uint64_t bytes = (*elements * type->bits + 7) / 8;
    if (range->second - range->first != bytes) {
      return refuse_tensor(name, "data_offsets", value.at("data_offsets"),
                           fmt::format("a range of {} bytes, for its shape and dtype", bytes));
    }
    std::tie(tensor.begin, tensor.end) = *range;
    if (bytes > 0) ranges_.push_back({range->first, range->second, name});
    tensors_.emplace(name, std::move(tensor));
    return {};
  }

  static std::optional<std::uint64_t> read_shape(const Json& value,
                                                 std::vector<std::int64_t>& shape) {
    constexpr std::size_t kMostDimensions = 8;
    constexpr std::uint64_t kMostElements = std::uint64_t{1} << 56;
    if (!value.is_array() || value.size() > kMostDimensions) return std::nullopt;
    std::uint64_t elements = 1;
    for (const Json& size : value) {
      const auto read = size.integer();
      if (!read || *read < 0) return std::nullopt;
      const auto extent = static_cast<std::uint64_t>(*read);
      if (extent >= kMostElements) return std::nullopt;
      if (extent != 0 && elements > kMostElements / extent) return std::nullopt;
      elements *= extent;
      shape.push_back(static_cast<std::int64_t>(extent));
    }
    return elements;
  }

  std::optional<std::pair<std::uint64_t, std::uint64_t>> read_range(const Json& value) const {
    if (!value.is_array() || value.size() != 2) return std::nullopt;
    const auto begin = value.at(0).integer(), end = value.at(1).integer();
    if (!begin || !end || *begin < 0 || *begin > *end) return std::nullopt;
    if (static_cast<std::uint64_t>(*end) > data_bytes_) return std::nullopt;
    return std::pair(static_cast<std::uint64_t>(*begin), static_cast<std::uint64_t>(*end));
  }

  std::uint64_t data_bytes_;
  const std::string& origin_;
  StoredTensors tensors_;
  std::vector<Range> ranges_;
};

// Returns the files that the index lists. Errors if there is none, or one is elsewhere.
Result<CheckpointFiles> files_of_index(const Json& index, const std::string& path) {
  const auto refuse = [&](const std::string& sentence) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", path, sentence));
  };
  const Json* map = index.find("weight_map");
  if (map == nullptr || !map->is_object()) {
    return refuse("it has no weight_map; allowed: an object of tensors with their files");
  }
  CheckpointFiles all{.files = {}, .index = path, .file_of = {}};
  for (const auto& [name, file] : map->items()) {
    const std::string text = file.string() == nullptr ? "" : *file.string();
    if (!text.ends_with(".safetensors") || text.find('/') != std::string::npos) {
      const std::string quoted =
          file.string() == nullptr ? excerpt(file) : fmt::format("'{}'", text.substr(0, 100));
      return refuse(
          fmt::format("weight_map has {} for '{}'; allowed: names of .safetensors files "
                      "in the same folder",
                      quoted, name.substr(0, 100)));
    }
    all.files.push_back(text);
  }
  if (all.files.empty()) {
    return refuse("its weight_map is empty; allowed: tensors with their files");
  }
  std::ranges::sort(all.files);
  all.files.erase(std::ranges::unique(all.files).begin(), all.files.end());
  for (const auto& [name, file] : map->items()) {
    const auto at = std::ranges::lower_bound(all.files, *file.string());
    all.file_of.emplace(name, static_cast<std::size_t>(at - all.files.begin()));
  }
  return all;
}

}  // namespace

Result<std::uint64_t> safetensors_header_bytes(std::string_view first, std::uint64_t file_bytes,
                                               const std::string& origin, std::uint64_t most) {
  const auto refuse = [&](const std::string& sentence) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", origin, sentence));
  };
  if (first.size() < kLengthBytes || file_bytes < kLengthBytes) {
    return refuse(
        fmt::format("it has {} bytes; allowed: 8 and more, the length of the header "
                    "first",
                    file_bytes));
  }
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) {
    length = (length << 8U) | static_cast<unsigned char>(first[i]);
  }
  most = std::min(most, file_bytes - kLengthBytes);
  if (length <= most) return length;
  return refuse(fmt::format("its header has {} bytes; allowed: up to {}", length, most));
}

Result<StoredTensors> parse_safetensors_header(std::string_view header, std::uint64_t data_bytes,
                                               const std::string& origin) {
  return parse_document(header, origin).and_then([&](const Json& root) {
    return HeaderReader(data_bytes, origin).read(root);
  });
}

Result<StoredTensors> read_safetensors(const InputFile& file, const HeaderBounds& bounds) {
  const std::string& path = file.name();
  const std::uint64_t file_bytes = file.bytes();
  std::array<std::uint8_t, kLengthBytes> first{};
  const auto got = file.read_at(first, 0);
  if (!got) return tl::unexpected<Error>(got.error());
  const std::string_view text(reinterpret_cast<const char*>(first.data()), *got);
  const auto length = safetensors_header_bytes(text, file_bytes, path, bounds.most_bytes);
  if (!length) return tl::unexpected<Error>(length.error());
  std::vector<std::uint8_t> header(*length);
  for (std::size_t at = 0; at < header.size();) {
    const auto n =
        file.read_at(std::span(header).subspan(at), static_cast<std::int64_t>(kLengthBytes + at));
    if (!n) return tl::unexpected<Error>(n.error());
    if (*n == 0) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("{}: it ends within its header", path));
    }
    at += *n;
  }
  constexpr std::uint64_t kMostDataBytes = std::uint64_t{1} << 60;
  auto tensors = parse_safetensors_header(
      {reinterpret_cast<const char*>(header.data()), header.size()},
      bounds.may_be_cut ? kMostDataBytes : file_bytes - kLengthBytes - *length, path);
  if (!tensors) return tensors;
  for (auto& [name, tensor] : *tensors) {
    tensor.begin += kLengthBytes + *length;
    tensor.end += kLengthBytes + *length;
  }
  return tensors;
}

Result<CheckpointFiles> checkpoint_files(const std::string& folder,
                                         std::uint64_t most_index_bytes) {
  const fs::path index = fs::path(folder) / kIndexName;
  std::error_code error;
  if (fs::exists(index, error)) {
    return read_document(index.string(), most_index_bytes).and_then([&](const Json& document) {
      return files_of_index(document, index.string());
    });
  }
  CheckpointFiles all;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".safetensors") continue;
    all.files.push_back(entry.path().filename().string());
  }
  std::ranges::sort(all.files);
  return all;
}

Result<StoredCheckpoint> read_checkpoint(const std::string& folder) {
  const auto found = checkpoint_files(folder);
  if (!found) return tl::unexpected<Error>(found.error());
  const std::vector<std::string>* const files = &found->files;
  std::error_code ignored;
  const auto path_of = [&](const std::string& file) { return (fs::path(folder) / file).string(); };
  StoredCheckpoint all;
  const auto is_missing = [&](const std::string& file) {
    return !fs::exists(path_of(file), ignored);
  };
  if (const auto missing = std::ranges::count_if(*files, is_missing); missing > 0) {
    all.remark = fmt::format(
        "{} of the {} files that {} names are missing, {} first, so the headers of the others "
        "decide nothing",
        missing, files->size(), kIndexName, *std::ranges::find_if(*files, is_missing));
    return all;
  }
  for (const std::string& file : *files) {
    auto tensors = InputFile::open_regular(path_of(file)).and_then([](const InputFile& opened) {
      return read_safetensors(opened);
    });
    if (!tensors) return tl::unexpected<Error>(tensors.error());
    all.tensors.merge(*tensors);
    if (!tensors->empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{}: '{}' is in another file too; allowed: once", path_of(file),
                              tensors->begin()->first));
    }
  }
  return all;
}

}  // namespace octile::tools
