#include "tools/inspect/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

namespace octile::tools {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr std::size_t kVersionAt = 6, kLengthAt = 8;

struct NpyType {
  std::string_view descr, name;
  std::uint64_t bytes;
};
constexpr std::array kNpyTypes = std::to_array<NpyType>({
    {"<f2", "F16", 2},
    {"<f4", "F32", 4},
    {"<f8", "F64", 8},
    {"<V2", "BF16", 2},
    {"|V2", "BF16", 2},
});

tl::unexpected<Error> refuse_npy(const std::string& origin, const std::string& sentence) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", origin, sentence));
}

// Returns the text of a literal's value behind 'key': up to the comma or the brace that ends it.
std::optional<std::string_view> value_of(std::string_view header, std::string_view key) {
  for (const char quote : {'\'', '"'}) {
    const std::string quoted = fmt::format("{0}{1}{0}", quote, key);
    const std::size_t found = header.find(quoted);
    if (found == std::string_view::npos) continue;
    std::string_view rest = header.substr(found + quoted.size());
    const auto skip_spaces = [&] {
      rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    };
    skip_spaces();
    if (!rest.starts_with(':')) return std::nullopt;
    rest.remove_prefix(1);
    skip_spaces();
    const char end = rest.starts_with('(') ? ')' : rest.starts_with('\'') ? '\'' : ',';
    const std::size_t stop = rest.find(end, 1);
    if (stop == std::string_view::npos) return std::nullopt;
    return rest.substr(0, end == ',' ? stop : stop + 1);
  }
  return std::nullopt;
}

// Reads "(3, 4)", "(3,)" or "()".
std::optional<std::vector<std::int64_t>> shape_of(std::string_view text) {
  constexpr std::size_t kMostDimensions = 8;
  if (!text.starts_with('(') || !text.ends_with(')')) return std::nullopt;
  std::vector<std::int64_t> shape;
  text = text.substr(1, text.size() - 2);
  while (!text.empty()) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    if (text.empty()) break;
    std::int64_t extent = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), extent);
    if (error != std::errc() || extent < 0 || shape.size() == kMostDimensions) return std::nullopt;
    shape.push_back(extent);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (!text.empty() && text.front() != ',') return std::nullopt;
    text.remove_prefix(std::min<std::size_t>(1, text.size()));
  }
  return shape;
}

std::optional<std::uint64_t> bytes_of(const std::vector<std::int64_t>& shape, std::uint64_t each) {
  std::uint64_t bytes = each;
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes)) {
      return std::nullopt;
    }
  }
  return bytes;
}

}  // namespace

Result<std::uint64_t> npy_header_bytes(std::string_view first, std::uint64_t file_bytes,
                                       const std::string& origin) {
  if (!first.starts_with(kMagic) || first.size() < kNpyLengthBytes) {
    return refuse_npy(origin,
                      "it does not begin as a .npy file; allowed: an array of numpy.save()");
  }
  const int version = static_cast<unsigned char>(first[kVersionAt]);
  if (version < 1 || version > 3) {
    return refuse_npy(origin, fmt::format("its format has version {}; allowed: 1 to 3", version));
  }
  const std::size_t bytes_of_length = version == 1 ? 2 : 4;
  std::uint64_t length = 0;
  for (std::size_t i = bytes_of_length; i-- > 0;) {
    length = (length << 8U) | static_cast<unsigned char>(first[kLengthAt + i]);
  }
  const std::uint64_t before = kLengthAt + bytes_of_length;
  const std::uint64_t most =
      std::min<std::uint64_t>(kMostNpyHeaderBytes, file_bytes - std::min(file_bytes, before));
  if (length <= most) return before + length;
  return refuse_npy(origin,
                    fmt::format("its header has {} bytes; allowed: up to {}", length, most));
}

Result<NpyArray> parse_npy_header(std::string_view header, std::uint64_t file_bytes,
                                  const std::string& origin) {
  const auto descr = value_of(header, "descr"), order = value_of(header, "fortran_order"),
             extents = value_of(header, "shape");
  if (!descr || !order || !extents) {
    return refuse_npy(origin,
                      "its header has no descr, fortran_order and shape; allowed: all three");
  }
  const std::string_view type =
      descr->size() >= 2 ? descr->substr(1, descr->size() - 2) : std::string_view();
  const auto* const found = std::ranges::find(kNpyTypes, type, &NpyType::descr);
  if (found == kNpyTypes.end()) {
    return refuse_npy(origin, fmt::format("descr is {}; allowed: <f2, <f4, <f8, and <V2 or |V2, "
                                          "which is read as bfloat16",
                                          descr->substr(0, 60)));
  }
  const auto shape = shape_of(*extents);
  if (!shape) {
    return refuse_npy(origin, fmt::format("shape is {}; allowed: up to 8 integers from 0 on",
                                          extents->substr(0, 60)));
  }
  const bool is_by_columns = *order == "True" && shape->size() > 1;
  if ((*order != "False" && *order != "True") || (is_by_columns && shape->size() > 2)) {
    return refuse_npy(origin, fmt::format("fortran_order is {} of {} dimensions; allowed: False, "
                                          "and True of up to two",
                                          order->substr(0, 60), shape->size()));
  }
  const auto bytes = bytes_of(*shape, found->bytes);
  const std::uint64_t data = file_bytes - std::min<std::uint64_t>(file_bytes, header.size());
  if (!bytes || *bytes > data) {
    return refuse_npy(origin,
                      fmt::format("shape is {} of {}, and {} bytes follow; allowed: an array "
                                  "that is there",
                                  *extents, type, data));
  }
  return NpyArray{{std::string(found->name), *shape, header.size(), header.size() + *bytes},
                  is_by_columns};
}

Result<NpyArray> read_npy(const InputFile& file) {
  const std::string& path = file.name();
  std::vector<std::uint8_t> bytes(kNpyLengthBytes + kMostNpyHeaderBytes);
  std::size_t have = 0;
  while (have < bytes.size()) {
    const auto n = file.read_at(std::span(bytes).subspan(have), static_cast<std::int64_t>(have));
    if (!n) return tl::unexpected<Error>(n.error());
    if (*n == 0) break;
    have += *n;
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), have);
  const auto length = npy_header_bytes(text.substr(0, kNpyLengthBytes), file.bytes(), path);
  if (!length) return tl::unexpected<Error>(length.error());
  if (*length > have) {
    return refuse_npy(path, "it ends within its header");
  }
  return parse_npy_header(text.substr(0, *length), file.bytes(), path);
}

}  // namespace octile::tools
