#include "tools/inspect/stored_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "runtime/reference/cast.h"
#include "runtime/reference/quantize/loss_kernels.h"
#include "runtime/reference/quantize/reference_kernels.h"
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

// Number of elements of a panel that are read and turned at once, which stay in a core's second
// cache: of at least kTurnedRows rows of the file.
constexpr std::int64_t kTurnedRows = 64, kTurnedElements = kTurnedRows * 512;

// Writes from[rows][cols] as columns of `to`, whose rows are `ld` apart.
template <typename T>
void turn(const std::byte* from, std::int64_t rows, std::int64_t cols, std::byte* to,
          std::int64_t ld) {
  constexpr std::int64_t kEdge = 16;
  const T* const x = reinterpret_cast<const T*>(from);
  T* const out = reinterpret_cast<T*>(to);
  for (std::int64_t row = 0; row < rows; row += kEdge) {
    const std::int64_t end = std::min(rows, row + kEdge);
    for (std::int64_t col = 0; col < cols; ++col) {
      for (std::int64_t r = row; r < end; ++r) out[col * ld + r] = x[r * cols + col];
    }
  }
}

}  // namespace

bool is_readable_float(std::string_view dtype) {
  constexpr std::array<std::string_view, 6> kTypes{"BF16", "F16",     "F32",
                                                   "F64",  "F8_E4M3", "F8_E5M2"};
  return std::ranges::find(kTypes, dtype) != kTypes.end();
}

StoredMatrices matrices_of(SharedTensor stored) {
  const std::vector<std::int64_t>& shape = stored->tensor.shape;
  StoredMatrices all;
  all.rows = 1;
  all.cols = shape.empty() ? 1 : shape.back();
  if (shape.size() > 1) all.rows = shape[shape.size() - 2];
  for (std::size_t i = 0; i + 2 < shape.size(); ++i) all.count *= shape[i];
  all.is_by_columns = stored->is_by_columns;
  all.stored = std::move(stored);
  return all;
}

std::optional<ScaleGrid> scale_grid(SharedTensor scales, const StoredMatrices& matrices) {
  std::vector<std::int64_t> shape = scales->tensor.shape;
  if (matrices.count > 1) {
    if (shape.empty() || shape.front() != matrices.count) return std::nullopt;
    shape.erase(shape.begin());
  }
  if (shape.size() == 1 && shape[0] == matrices.rows) shape.push_back(1);
  shape.insert(shape.begin(), shape.size() < 2 ? 2 - shape.size() : 0, 1);
  const std::string& dtype = scales->tensor.dtype;
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
                  fmt::format("{}: it has {} bytes, and had {} when it was opened: tensors that "
                              "are not whole are not inspected",
                              from.file->name(), from.file->bytes_now(), from.file->bytes()));
    }
    into = into.subspan(*n);
    offset += *n;
  }
  return {};
}

Status read_scales(const ScaleGrid& grid, std::int64_t matrix, std::int64_t row, std::int64_t rows,
                   std::int64_t col, std::int64_t cols, std::vector<float>& out) {
  const std::string& dtype = grid.stored->tensor.dtype;
  const std::size_t bytes = bytes_of_type(dtype);
  std::vector<std::byte> stored(static_cast<std::size_t>(cols) * bytes);
  out.clear();
  for (std::int64_t r = row; r < row + rows; ++r) {
    const auto offset = static_cast<std::uint64_t>((matrix * grid.rows + r) * grid.cols + col);
    if (Status ok = read_tensor(*grid.stored, offset * bytes, stored); !ok) return ok;
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
  const std::string& dtype = matrices_.tensor().dtype;
  if (dtype == "BF16") return DType::kBF16;
  return dtype == "F16" ? DType::kFP16 : DType::kFP32;
}

std::size_t FileMatrix::scratch_bytes(std::int64_t elements) const {
  const std::int64_t turned = has_contiguous_columns() ? kTurnedElements : 0;
  return static_cast<std::size_t>(elements + turned) * element_bytes();
}

Result<Panel> FileMatrix::read(const PanelPlace& place, std::span<std::byte> scratch) const {
  const auto bytes = static_cast<std::size_t>(place.rows * place.cols) * element_bytes();
  const Status ok = has_contiguous_columns() ? read_transposed(place, scratch)
                                             : read_stored(place, scratch.first(bytes));
  if (!ok) return tl::unexpected<Error>(ok.error());
  return Panel{scratch.data(), place.cols};
}

// Reads rows of the file as far as the panel's rows reach along them, and turns those.
Status FileMatrix::read_transposed(const PanelPlace& place, std::span<std::byte> scratch) const {
  const std::size_t each = element_bytes();
  const std::span<std::byte> pieces =
      scratch.last(static_cast<std::size_t>(kTurnedElements) * each);
  const std::int64_t width = std::min(place.rows, kTurnedElements / kTurnedRows);
  const std::int64_t height = kTurnedElements / width;
  for (std::int64_t row = 0; row < place.rows; row += width) {
    for (std::int64_t col = 0; col < place.cols; col += height) {
      const PanelPlace stored{place.col + col, place.row + row, std::min(height, place.cols - col),
                              std::min(width, place.rows - row)};
      const auto bytes = static_cast<std::size_t>(stored.rows * stored.cols) * each;
      if (Status ok = read_stored(stored, pieces.first(bytes)); !ok) return ok;
      std::byte* const to =
          scratch.data() + static_cast<std::size_t>(row * place.cols + col) * each;
      if (each == sizeof(std::uint16_t)) {
        turn<std::uint16_t>(pieces.data(), stored.rows, stored.cols, to, place.cols);
      } else {
        turn<std::uint32_t>(pieces.data(), stored.rows, stored.cols, to, place.cols);
      }
    }
  }
  return {};
}

Status FileMatrix::read_stored(const PanelPlace& place, std::span<std::byte> into) const {
  const std::string& dtype = matrices_.tensor().dtype;
  const std::span<float> floats(reinterpret_cast<float*>(into.data()), into.size() / 4);
  if (dtype == "F64") return read_doubles(place, floats);
  return matrices_.is_fp8() ? read_codes(place, floats)
                            : read_bytes(place, bytes_of_type(dtype), into);
}

Status FileMatrix::read_bytes(const PanelPlace& place, std::size_t element_bytes,
                              std::span<std::byte> into) const {
  const auto offset_of = [&](std::int64_t row) {
    const std::int64_t element =
        (index_ * matrices_.file_rows() + row) * matrices_.file_cols() + place.col;
    return static_cast<std::uint64_t>(element) * element_bytes;
  };
  if (place.cols == matrices_.file_cols())
    return read_tensor(*matrices_.stored, offset_of(place.row), into);
  const std::size_t row_bytes = static_cast<std::size_t>(place.cols) * element_bytes;
  for (std::int64_t row = 0; row < place.rows; ++row) {
    const Status ok =
        read_tensor(*matrices_.stored, offset_of(place.row + row),
                    into.subspan(static_cast<std::size_t>(row) * row_bytes, row_bytes));
    if (!ok) return ok;
  }
  return {};
}

Status FileMatrix::read_doubles(const PanelPlace& place, std::span<float> into) const {
  std::vector<double> row(static_cast<std::size_t>(place.cols));
  bool are_stored = false, are_beyond = false;
  for (std::int64_t r = 0; r < place.rows; ++r) {
    const PanelPlace one{place.row + r, place.col, 1, place.cols};
    if (Status ok = read_bytes(one, sizeof(double), std::as_writable_bytes(std::span(row))); !ok)
      return ok;
    std::ranges::transform(row, into.begin() + r * place.cols, [&](double x) {
      const auto rounded = static_cast<float>(x);
      if (std::isinf(rounded)) (std::isinf(x) ? are_stored : are_beyond) = true;
      return rounded;
    });
  }
  if (infinite_ != nullptr && are_stored) infinite_->are_stored = true;
  if (infinite_ != nullptr && are_beyond) infinite_->are_beyond_fp32 = true;
  return {};
}

Status FileMatrix::read_exact(const PanelPlace& place, std::vector<double>& out) const {
  const auto count = static_cast<std::size_t>(place.rows * place.cols);
  out.resize(count);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(out));
  if (matrices_.tensor().dtype == "F64") {
    if (!has_contiguous_columns()) return read_bytes(place, sizeof(double), bytes);
    std::vector<double> stored(count);
    const PanelPlace turned{place.col, place.row, place.cols, place.rows};
    const std::span<std::byte> from = std::as_writable_bytes(std::span(stored));
    if (Status ok = read_bytes(turned, sizeof(double), from); !ok) return ok;
    turn<double>(from.data(), turned.rows, turned.cols, bytes.data(), place.cols);
    return {};
  }
  std::vector<std::byte> scratch(scratch_bytes(place.rows * place.cols));
  const auto panel = read(place, scratch);
  if (!panel) return tl::unexpected<Error>(panel.error());
  std::vector<float> wide(count);
  reference::widen(panel->x, dtype(), 0, place.rows * place.cols, wide.data());
  std::ranges::copy(wide, out.begin());
  return {};
}

// The codes are read into the last quarter of the memory, from where they are widened in order: a
// value is written behind the codes that are still to be read.
Status FileMatrix::read_codes(const PanelPlace& place, std::span<float> into) const {
  const std::span<std::byte> codes = bytes_of(into).last(into.size());
  if (Status ok = read_bytes(place, 1, codes); !ok) return ok;
  const DType fp8 = matrices_.tensor().dtype == "F8_E4M3" ? DType::kE4M3 : DType::kE5M2;
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
