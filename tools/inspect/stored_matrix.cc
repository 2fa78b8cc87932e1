#include "tools/inspect/stored_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/reference/cast.h"
#include "runtime/reference/quantize/loss_kernels.h"
#include "runtime/reference/quantize/reference_scale.h"

namespace octile::tools {
namespace {

using reference::Panel;
using reference::PanelPlace;

std::size_t bytes_of_type(std::string_view dtype) {
  if (dtype == "F64") return 8;
  if (dtype == "F32") return 4;
  return dtype.starts_with("F8_") || dtype == "U8" ? 1 : 2;
}

// Returns how many elements of an extent each of `parts` scales serves, 0 if no power of two does.
std::int64_t edge_of(std::int64_t extent, std::int64_t parts) {
  if (parts == 1) return extent;
  std::int64_t edge = 1;
  while (edge < extent && ceil_div(extent, edge) > parts) edge *= 2;
  return ceil_div(extent, edge) == parts ? edge : 0;
}

std::span<std::byte> bytes_of(std::span<float> floats) { return std::as_writable_bytes(floats); }

}  // namespace

bool is_readable_float(std::string_view dtype) {
  constexpr std::array<std::string_view, 6> kTypes{"BF16", "F16",     "F32",
                                                   "F64",  "F8_E4M3", "F8_E5M2"};
  return std::ranges::find(kTypes, dtype) != kTypes.end();
}

StoredMatrices matrices_of(TensorInFile stored) {
  const std::vector<std::int64_t>& shape = stored.tensor.shape;
  StoredMatrices all;
  all.rows = 1;
  all.cols = shape.empty() ? 1 : shape.back();
  if (shape.size() > 1) all.rows = shape[shape.size() - 2];
  for (std::size_t i = 0; i + 2 < shape.size(); ++i) all.count *= shape[i];
  all.stored = std::move(stored);
  return all;
}

std::optional<ScaleGrid> scale_grid(TensorInFile scales, const StoredMatrices& matrices) {
  std::vector<std::int64_t> shape = scales.tensor.shape;
  if (matrices.count > 1) {
    if (shape.empty() || shape.front() != matrices.count) return std::nullopt;
    shape.erase(shape.begin());
  }
  if (shape.size() == 1 && shape[0] == matrices.rows) shape.push_back(1);
  shape.insert(shape.begin(), shape.size() < 2 ? 2 - shape.size() : 0, 1);
  const std::string& dtype = scales.tensor.dtype;
  if (shape.size() != 2 || (dtype != "F8_E8M0" && dtype != "U8" && dtype != "F32" &&
                            dtype != "BF16" && dtype != "F16")) {
    return std::nullopt;
  }
  const std::int64_t rows = edge_of(matrices.rows, shape[0]);
  const std::int64_t cols = edge_of(matrices.cols, shape[1]);
  if (rows < 1 || cols < 1) return std::nullopt;
  return ScaleGrid{std::move(scales), shape[0], shape[1], rows, cols};
}

Status read_tensor(const TensorInFile& from, std::uint64_t offset, std::span<std::byte> into) {
  while (!into.empty()) {
    const std::span<std::uint8_t> rest(reinterpret_cast<std::uint8_t*>(into.data()), into.size());
    const auto n = from.file->read_at(rest, static_cast<std::int64_t>(from.tensor.begin + offset));
    if (!n) return tl::unexpected<Error>(n.error());
    if (*n == 0) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{}: it ends within '{}' at byte {}, and had {} bytes when it was "
                              "opened",
                              from.file->name(), from.name, from.tensor.begin + offset,
                              from.file->bytes()));
    }
    into = into.subspan(*n);
    offset += *n;
  }
  return {};
}

Status read_scales(const ScaleGrid& grid, std::int64_t matrix, std::int64_t row, std::int64_t rows,
                   std::int64_t col, std::int64_t cols, std::vector<float>& out) {
  const std::string& dtype = grid.stored.tensor.dtype;
  const std::size_t bytes = bytes_of_type(dtype);
  std::vector<std::byte> stored(static_cast<std::size_t>(cols) * bytes);
  out.clear();
  for (std::int64_t r = row; r < row + rows; ++r) {
    const auto offset = static_cast<std::uint64_t>((matrix * grid.rows + r) * grid.cols + col);
    if (Status ok = read_tensor(grid.stored, offset * bytes, stored); !ok) return ok;
    for (std::int64_t c = 0; c < cols; ++c) {
      if (bytes == 1) {
        out.push_back(reference::load_scale(stored.data(), ScaleFormat::kE8M0, c));
        continue;
      }
      const DType type = dtype == "BF16"  ? DType::kBF16
                         : dtype == "F16" ? DType::kFP16
                                          : DType::kFP32;
      out.push_back(reference::load_as_float(stored.data(), type, c));
    }
  }
  return {};
}

DType FileMatrix::dtype() const {
  const std::string& dtype = matrices_.stored.tensor.dtype;
  if (dtype == "BF16") return DType::kBF16;
  return dtype == "F16" ? DType::kFP16 : DType::kFP32;
}

Result<Panel> FileMatrix::read(const PanelPlace& place, std::span<std::byte> scratch) const {
  const std::string& dtype = matrices_.stored.tensor.dtype;
  const auto elements = static_cast<std::size_t>(place.rows * place.cols);
  const std::span<float> floats(reinterpret_cast<float*>(scratch.data()), scratch.size() / 4);
  Status ok;
  if (dtype == "F64") {
    ok = read_doubles(place, floats.first(elements));
  } else if (matrices_.is_fp8()) {
    ok = read_codes(place, floats.first(elements));
  } else {
    const std::size_t each = bytes_of_type(dtype);
    ok = read_bytes(place, each, scratch.first(elements * each));
  }
  if (!ok) return tl::unexpected<Error>(ok.error());
  return Panel{scratch.data(), place.cols};
}

Status FileMatrix::read_bytes(const PanelPlace& place, std::size_t element_bytes,
                              std::span<std::byte> into) const {
  const auto offset_of = [&](std::int64_t row) {
    const std::int64_t element = (index_ * matrices_.rows + row) * matrices_.cols + place.col;
    return static_cast<std::uint64_t>(element) * element_bytes;
  };
  if (place.cols == matrices_.cols)
    return read_tensor(matrices_.stored, offset_of(place.row), into);
  const std::size_t row_bytes = static_cast<std::size_t>(place.cols) * element_bytes;
  for (std::int64_t row = 0; row < place.rows; ++row) {
    const Status ok =
        read_tensor(matrices_.stored, offset_of(place.row + row),
                    into.subspan(static_cast<std::size_t>(row) * row_bytes, row_bytes));
    if (!ok) return ok;
  }
  return {};
}

Status FileMatrix::read_doubles(const PanelPlace& place, std::span<float> into) const {
  std::vector<double> row(static_cast<std::size_t>(place.cols));
  for (std::int64_t r = 0; r < place.rows; ++r) {
    const PanelPlace one{place.row + r, place.col, 1, place.cols};
    if (Status ok = read_bytes(one, sizeof(double), std::as_writable_bytes(std::span(row))); !ok)
      return ok;
    std::ranges::transform(row, into.begin() + r * place.cols,
                           [](double x) { return static_cast<float>(x); });
  }
  return {};
}

// The codes are read into the last quarter of the memory, from where they are widened in order: a
// value is written behind the codes that are still to be read.
Status FileMatrix::read_codes(const PanelPlace& place, std::span<float> into) const {
  const std::span<std::byte> codes = bytes_of(into).last(into.size());
  if (Status ok = read_bytes(place, 1, codes); !ok) return ok;
  const DType fp8 = matrices_.stored.tensor.dtype == "F8_E4M3" ? DType::kE4M3 : DType::kE5M2;
  std::vector<std::uint8_t> row(static_cast<std::size_t>(place.cols));
  std::vector<float> scales;
  const std::optional<ScaleGrid>& grid = matrices_.scales;
  const std::int64_t width = grid ? grid->block_cols : place.cols;
  const std::int64_t first = grid ? place.col / width : 0;
  const std::int64_t across = grid ? ceil_div(place.col + place.cols, width) - first : 1;
  for (std::int64_t r = 0; r < place.rows; ++r) {
    const std::int64_t at = place.row + r;
    if (!grid) {
      scales.assign(1, 1.0F);
    } else if (r == 0 || at % grid->block_rows == 0) {
      const Status ok = read_scales(*grid, index_, at / grid->block_rows, 1, first, across, scales);
      if (!ok) return ok;
    }
    const auto* const begin = reinterpret_cast<const std::uint8_t*>(codes.data()) + r * place.cols;
    std::copy_n(begin, place.cols, row.begin());
    float* const out = into.data() + r * place.cols;
    for (std::int64_t col = 0; col < place.cols;) {
      const std::int64_t block = grid ? (place.col + col) / width - first : 0;
      const std::int64_t end =
          grid ? std::min(place.cols, (first + block + 1) * width - place.col) : place.cols;
      reference::dequantize_run(row.data() + col, fp8, scales[static_cast<std::size_t>(block)],
                                end - col, out + col);
      col = end;
    }
  }
  return {};
}

}  // namespace octile::tools
