// Measures what quantising a matrix loses, panel by panel, with the host quantiser: `octile
// inspect` reads panels from files, octile_measure_loss() from memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "generator/core/error.h"
#include "generator/core/types.h"
#include "runtime/reference/quantize/loss.h"

namespace octile::reference {

struct Panel {
  const void* x = nullptr;
  std::int64_t ld = 0;  // elements from one row to the next
};

struct PanelPlace {
  std::int64_t row = 0, col = 0, rows = 0, cols = 0;
};

// Where the panels of a matrix come from.
class MatrixSource {
 public:
  MatrixSource() = default;
  MatrixSource(const MatrixSource&) = delete;
  MatrixSource& operator=(const MatrixSource&) = delete;
  virtual ~MatrixSource() = default;

  virtual DType dtype() const = 0;  // BF16, FP16 or FP32
  virtual std::int64_t rows() const = 0;
  virtual std::int64_t cols() const = 0;
  // Returns true if columns of the matrix are contiguous: panels one below the other are then read
  // together.
  virtual bool has_contiguous_columns() const { return false; }
  // Returns the bytes of scratch that a panel of this number of elements needs.
  virtual std::size_t scratch_bytes(std::int64_t elements) const = 0;
  // Returns the panel's elements, in `scratch` or where the source has them. Called from several
  // threads at once, for a panel more than once.
  virtual Result<Panel> read(const PanelPlace& place, std::span<std::byte> scratch) const = 0;
};

struct InspectOptions {
  // The share of a matrix's panels that is measured, spread evenly, but at least one panel. A scale
  // of more elements than a panel has is then that of the measured panels.
  double sample = 1;
  int threads = 0;  // 0: one per core
};

struct Inspection {
  ValueCounts values;
  std::vector<Loss> losses;  // one for each type
};

// Returns what quantising the matrix to each of the types loses. The result does not depend on the
// number of threads. All panels in work take at most kPanelBytes, or those of one thread. Errors:
// those of the source and of quantize(); kInvalidArgument for an empty matrix.
Result<Inspection> inspect(const MatrixSource& source, std::span<const TensorType> types,
                           const InspectOptions& options = {});

inline constexpr std::size_t kPanelBytes = std::size_t{128} << 20;

}  // namespace octile::reference
