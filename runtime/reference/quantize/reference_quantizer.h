// Quantises one tensor after another on the host, with memory that is allocated once. A whole
// tensor is one of them; of groups each one is.
#pragma once

#include <cstdint>
#include <vector>

#include "generator/core/error.h"
#include "generator/quantize/problem.h"
#include "runtime/reference/parallel.h"
#include "runtime/reference/quantize/reference.h"
#include "runtime/reference/quantize/reference_source.h"
#include "runtime/reference/scale_index.h"

namespace octile::reference {

class Quantizer {
 public:
  // The problem has neither groups nor a range, and must outlive this. Allocates all that tensors
  // of up to `most_rows` rows need. Throws std::bad_alloc.
  Quantizer(const QuantizeProblem& problem, std::int64_t most_rows, int threads);

  // Quantises a tensor as reference::quantize() says. It allocates nothing, and writes nothing
  // unless it succeeds.
  Status run(const QuantizeCall& args);

 private:
  static constexpr std::int64_t kBlock = 128;

  // One output (row-wise or transposed) with everything needed to write it.
  struct Output {
    std::uint8_t* data = nullptr;  // null: not requested
    std::int64_t ld = 0;
    bool transposed = false;
    void* scales = nullptr;
    ScaleIndex index;
  };
  // The arguments of an output.
  struct Memory {
    void* data;
    std::int64_t ld;
    void* scales;
    std::int64_t scale_ld;
  };
  // One 128x128 tile of rows x cols elements; both are smaller at the tensor's end.
  struct Tile {
    std::int64_t row0, col0, rows, cols;
    alignas(64) float x[kBlock][kBlock];
  };
  // The encode scales of a tile's elements: line r / rows_a_line holds those of row r.
  struct Encodes {
    std::int64_t rows_a_line;
    alignas(64) float line[kBlock][kBlock];
    const float* of_row(std::int64_t r) const { return line[r / rows_a_line]; }
  };
  struct Work {
    Tile tile;
    Encodes encodes;
    std::uint8_t codes[kBlock][kBlock];  // of the tile, before they are transposed
  };

  Status open(Output& output, const Memory& to, bool transposed) const;
  void measure_long_blocks();
  void measure_columns();
  void quantize_tile(std::int64_t row0, std::int64_t col0, Work& work);
  void load(Tile& tile, std::int64_t row0, std::int64_t col0) const;
  void count(const Tile& tile) const;
  void write_tap(const Tile& tile) const;
  void sum_columns(const Tile& tile);
  void add_bias_sums() const;
  void find_encodes(const Tile& tile, const Output& output, Encodes& encodes) const;
  // Blocks longer than a tile: a row, a column or the tensor.
  bool has_long_blocks() const;
  std::uint32_t amax_of_long_block(const Output& output, std::int64_t row, std::int64_t col) const;
  static bool is_first_tile_of_block(const Output& output, const Tile& tile);
  void write_rows(const Tile& tile, const Encodes& encodes) const;
  void write_transposed(Work& work) const;

  const QuantizeProblem& problem_;
  QuantizeSource source_;
  std::int64_t cols_;
  Workspaces<Work> works_;
  std::vector<float> bias_sums_;  // one sum for each column of every 128 rows
  std::vector<std::uint32_t> row_amax_, col_amax_;

  // The arguments of the tensor at hand.
  QuantizeCall args_;
  Output rowwise_, transposed_;
  std::uint32_t tensor_amax_ = 0;
};

}  // namespace octile::reference
