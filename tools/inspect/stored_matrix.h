// A matrix in a file, read panel by panel with pread. Nothing of it is kept.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "generator/core/error.h"
#include "generator/core/types.h"
#include "runtime/reference/quantize/inspect.h"
#include "tools/common/input_file.h"
#include "tools/models/checkpoint/safetensors.h"

namespace octile::tools {

// A tensor of a file that is open.
struct TensorInFile {
  std::shared_ptr<const InputFile> file;
  std::string name;
  StoredTensor tensor;
  bool is_by_columns = false;  // column behind column, as fortran_order of .npy
};

// A checkpoint has hundreds of thousands of tensors, of which there is one copy.
using SharedTensor = std::shared_ptr<const TensorInFile>;

// The decode scales of FP8 codes: [rows][cols] scales, each of block_rows x block_cols codes.
struct ScaleGrid {
  SharedTensor stored;
  std::int64_t rows = 1, cols = 1, block_rows = 1, block_cols = 1;
};

// Matrices of one shape, one behind the other in a tensor: one, or those of experts.
struct StoredMatrices {
  SharedTensor stored;
  std::int64_t count = 1, rows = 0, cols = 0;  // as the tensor's shape has them
  bool is_transposed = false;  // a weight [n, k] has the shape [k, n]: blocks run down columns
  bool is_by_columns = false;  // the file has column behind column
  std::int64_t number = 0;     // of the first matrix: an expert's, if it has a tensor of its own
  std::optional<ScaleGrid> scales;  // of FP8; without them codes are values

  const StoredTensor& tensor() const { return stored->tensor; }
  bool is_fp8() const { return tensor().dtype == "F8_E4M3" || tensor().dtype == "F8_E5M2"; }
  // Rows that are contiguous in the file, and their elements.
  std::int64_t file_rows() const { return is_by_columns ? cols : rows; }
  std::int64_t file_cols() const { return is_by_columns ? rows : cols; }
};

// Returns true for the types whose values are read: BF16, F16, F32, F64, F8_E4M3, F8_E5M2.
bool is_readable_float(std::string_view dtype);

// Returns a tensor's matrices: its last two dimensions, of which there are as many as the others
// say. A vector is one row.
StoredMatrices matrices_of(SharedTensor stored);

// Returns the grid of a tensor of scales, or nothing if it fits no blocks of the matrices: one
// scale, one a row, or blocks whose edges are powers of two.
std::optional<ScaleGrid> scale_grid(SharedTensor scales, const StoredMatrices& matrices);

// Reads bytes of a tensor. Errors: kInvalidArgument, a sentence that names the file, for one that
// cannot be read or that ends before, because it was cut while it was read.
Status read_tensor(const TensorInFile& from, std::uint64_t offset, std::span<std::byte> into);

// Reads scales [row, row + rows) x [col, col + cols) of a matrix as fp32, row by row.
Status read_scales(const ScaleGrid& grid, std::int64_t matrix, std::int64_t row, std::int64_t rows,
                   std::int64_t col, std::int64_t cols, std::vector<float>& out);

// The kinds of infinite values in panels of F64.
struct InfiniteValues {
  std::atomic<bool> are_stored{false};       // infinities that the file has
  std::atomic<bool> are_beyond_fp32{false};  // finite values, which rounding makes infinite
};

// One of the matrices, as the measuring reads it: a weight [n, k], whichever way the file has it.
// F64 is rounded to fp32; FP8 is code times scale, rounded to fp32 as dequantising does.
class FileMatrix : public reference::MatrixSource {
 public:
  // `infinite` receives what the panels have; null: nobody asks.
  FileMatrix(const StoredMatrices& matrices, std::int64_t index, InfiniteValues* infinite = nullptr)
      : matrices_(matrices), index_(index), infinite_(infinite) {}

  DType dtype() const override;
  std::int64_t rows() const override {
    return matrices_.is_transposed ? matrices_.cols : matrices_.rows;
  }
  std::int64_t cols() const override {
    return matrices_.is_transposed ? matrices_.rows : matrices_.cols;
  }
  bool has_contiguous_columns() const override {
    return matrices_.is_transposed != matrices_.is_by_columns;
  }
  std::size_t scratch_bytes(std::int64_t elements) const override;
  Result<reference::Panel> read(const reference::PanelPlace& place,
                                std::span<std::byte> scratch) const override;
  // Reads a panel without rounding what the file has in F64.
  Status read_exact(const reference::PanelPlace& place, std::vector<double>& out) const;

 private:
  std::size_t element_bytes() const { return dtype() == DType::kFP32 ? 4 : 2; }
  Status read_transposed(const reference::PanelPlace& place, std::span<std::byte> scratch) const;
  // The others take places and give elements as the file has them.
  Status read_stored(const reference::PanelPlace& place, std::span<std::byte> into) const;
  Status read_bytes(const reference::PanelPlace& place, std::size_t element_bytes,
                    std::span<std::byte> into) const;
  Status read_doubles(const reference::PanelPlace& place, std::span<float> into) const;
  Status read_codes(const reference::PanelPlace& place, std::span<float> into) const;

  const StoredMatrices& matrices_;
  std::int64_t index_;
  InfiniteValues* infinite_;
};

}  // namespace octile::tools
