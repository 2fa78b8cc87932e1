#include "generator/quantize/cost.h"

#include <algorithm>

#include "generator/core/layout.h"
#include "generator/quantize/fused_source.h"
#include "generator/quantize/grid.h"
#include "generator/quantize/register_limits.h"
#include "generator/quantize/resources.h"
#include "generator/quantize/units.h"

namespace octile {
namespace {

// Resident warps that an SM should find in the whole launch. 16 warps with 2 KB each keep 33 KB in
// flight, which 4.3 TB/s over 132 SMs need at about 1 us of loaded latency.
constexpr std::int64_t kWarpsPerSm = 16;

// Returns the type of the 16 bytes of a lane: the values', or, dequantising, the output's.
DType held_type(const QuantizeProblem& p) {
  return p.operation == QuantizeOperation::kDequantize ? p.q.dtype : source_type(p);
}

// Returns the tiles of the tensor. If warps work alone, each has one.
std::int64_t tiles_of(const QuantizeConfig& c, const QuantizeProblem& p, std::int64_t rows) {
  return ceil_div(rows, c.tile_rows) * ceil_div(p.cols, c.tile_cols);
}

// Halves the tile's rows, down to `least`, until the tensor has `enough` tiles.
void shorten_tile(QuantizeConfig& c, const QuantizeProblem& p, std::int64_t rows, int least,
                  std::int64_t enough) {
  while (c.tile_rows > least && tiles_of(c, p, rows) < enough) c.tile_rows /= 2;
}

// ---- warp_tile: computed sources

// Shortens a tile whose rows stream. A launch of few waves ends with SMs that idle, so tiles have
// four rows, a step, until there are ten waves of them. They have fewer if warps would be missing,
// but one, which does not stream, only if all tiles are resident at once. Measured on an H100 with
// SwiGLU of 7168 columns, 64 to 4096 rows.
void shorten_streamed_tile(QuantizeConfig& c, const QuantizeProblem& p, std::int64_t rows,
                           const DeviceSpec& d) {
  constexpr int kStep = 4;
  constexpr std::int64_t kWaves = 10;
  const std::int64_t resident = std::int64_t{c.blocks_per_sm} * (c.threads / kWarp) * d.sm_count;
  shorten_tile(c, p, rows, kStep, kWaves * resident);
  shorten_tile(c, p, rows, 2, kWarpsPerSm * d.sm_count);
  const bool fits = ceil_div(p.cols, c.tile_cols) * rows <= resident;
  if (c.tile_rows == 2 && fits) shorten_tile(c, p, rows, 1, kWarpsPerSm * d.sm_count);
}

// A thread holds one step of values; the inputs of the next two steps lie in shared memory.
QuantizeConfig streamed_config(const QuantizeProblem& p, std::int64_t rows, const DeviceSpec& d) {
  QuantizeConfig c;
  c.tile_cols = streamed_columns(p);
  c.tile_rows = takes_both_halves(p) ? 8 : 16;
  c.threads = 64;
  c.blocks_per_sm = 10;  // 96 registers: groups and rows need some of their own
  if (p.grouping == Grouping::kMasked) {
    // Most rows of a group may not exist, so blocks without a tile should be few.
    c.threads = 256;
    c.blocks_per_sm = 2;
  }
  // A group's first row and the addresses of six loads a row need more than 96 registers together.
  const bool many_loads = source_shape(p.source).inputs > 2 && p.x.dtype == DType::kFP32;
  if (many_loads && p.grouping != Grouping::kNone) c.blocks_per_sm = c.blocks_per_sm * 3 / 4;
  while (ring_bytes(p, c) > kMaxStaticSmem) {
    c.threads /= 2;
    c.blocks_per_sm *= 2;
  }
  if (rows == kDynamic) return c;
  if (p.grouping == Grouping::kNone && !takes_both_halves(p)) {
    shorten_streamed_tile(c, p, rows, d);
  } else {
    shorten_tile(c, p, rows, 1, kWarpsPerSm * d.sm_count);
  }
  return c;
}

// Returns whether the tensor is large enough for a table: a thread fills some 14 of its places
// before it starts. The bound is chosen; tensors from 4096 x 7168 on were measured.
bool takes_table(const QuantizeProblem& p, std::int64_t rows, const DeviceSpec& d) {
  constexpr std::int64_t kEnough = std::int64_t{64} * 1024;  // elements for each SM
  return rows != kDynamic && rows * p.cols >= kEnough * d.sm_count && lookup_of(p) != nullptr;
}

// One block for each SM: 16 warps have 64 KB on their way, and more warps spill.
QuantizeConfig looked_up_config(const QuantizeProblem& p, std::int64_t rows, const DeviceSpec& d) {
  constexpr int kWarps = 16;
  constexpr std::int64_t kTilesOfWarp = 6;
  QuantizeConfig c;
  c.tile_cols = streamed_columns(p);
  c.tile_rows = 32;
  c.threads = kWarps * kWarp;
  c.blocks_per_sm = 1;
  c.looks_up = true;
  shorten_tile(c, p, rows, 8, kTilesOfWarp * kWarps * d.sm_count);
  return c;
}

// ---- warp_tile: x itself; dequantize

constexpr int kColumnsOfASector = 1024;  // their 1x32 scales fill a sector of 32 bytes

// Returns whether a row's scales are bytes that lie behind each other.
bool fills_sectors_along_rows(const QuantizeProblem& p) {
  return p.operation == QuantizeOperation::kQuantize && p.q.granularity == Granularity::k1x32 &&
         p.q.scale == ScaleFormat::kE8M0 && p.scale_layout == ScaleLayout::kLinear &&
         p.grouping == Grouping::kNone && !is_fp8(p.x.dtype);
}

int warp_tile_blocks_per_sm(const QuantizeProblem& p) {
  const bool groups_of_codes = p.grouping != Grouping::kNone && is_fp8(p.x.dtype);
  if (p.scale_layout == ScaleLayout::kSwizzled || groups_of_codes) return 10;
  // fp32 vectors hold four elements and need more addresses for each: 64 registers would spill.
  const bool more_registers = p.grouping == Grouping::kMasked || held_type(p) == DType::kFP32 ||
                              p.q.granularity == Granularity::kPerTensor ||
                              p.q.scale == ScaleFormat::kUe8m0x4 || p.q.scale == ScaleFormat::kE8M0;
  return more_registers ? 12 : 16;
}

// Most rows of a group may not exist, so blocks without a tile should be few. `rows` does not say
// how many tiles there are.
QuantizeConfig masked_warp_tile(QuantizeConfig c) {
  c.tile_rows = 32;
  c.threads = 128;
  c.blocks_per_sm = 5;  // 96 registers: a group's place needs some of them
  return c;
}

// A tile of one row. A warp of few rows has as many loads as four rows would have, and the
// addresses of one. A row of 1024 columns fills a sector with its 1x32 scales, and storing a sector
// takes as long as storing the 8 scales of 256 columns. The tile is narrower if half of it has all
// columns, or if more than an eighth of all tiles lies behind the last column.
QuantizeConfig one_row_warp_tile(QuantizeConfig c, const QuantizeProblem& p, std::int64_t rows,
                                 bool few_rows, const DeviceSpec& d) {
  constexpr std::int64_t kFewWarps = 4;  // of an SM
  const int warp_cols = c.tile_cols;
  const bool whole_sectors = fills_sectors_along_rows(p);
  c.tile_rows = 1;
  c.tile_cols = whole_sectors ? kColumnsOfASector : 4 * warp_cols;
  c.threads = few_rows ? 64 : 128;
  c.blocks_per_sm = (held_type(p) == DType::kFP32 ? 768 : 1024) / c.threads;
  const auto is_too_wide = [&] {
    const std::int64_t behind = ceil_div(p.cols, c.tile_cols) * c.tile_cols - p.cols;
    return c.tile_cols / 2 >= p.cols || (!whole_sectors && 8 * behind > p.cols) ||
           tiles_of(c, p, rows) < kFewWarps * d.sm_count;
  };
  while (c.tile_cols > warp_cols && is_too_wide()) c.tile_cols /= 2;
  return c;
}

// Returns whether 48 warps an SM, 42 registers a thread, hold tiles of 2 rows.
bool fits_48_warps(const QuantizeProblem& p) {
  return p.operation == QuantizeOperation::kQuantize && p.q.granularity == Granularity::k1x128 &&
         warp_tile_blocks_per_sm(p) == 16;
}

// Tiles of 2 rows, for tensors whose tiles of 8 rows would all be resident at once: these load all
// of x before they store a code.
QuantizeConfig two_row_warp_tile(QuantizeConfig c) {
  c.tile_rows = 2;
  c.threads = 128;
  c.blocks_per_sm = 12;
  return c;
}

// A tensor of up to so many units (whole_tensor.cu) is quantised sooner by one thread block than by
// a cluster, and by a cluster than by two kernels (measured on an H100).
constexpr std::int64_t kUnitsOfBlock = 64;
constexpr std::int64_t kUnitsOfCluster = 256;

std::int64_t units_of(const QuantizeProblem& p, std::int64_t rows) {
  return rows * ceil_div(p.cols, warp_columns(p));
}

// Returns whether the thread blocks of a cluster are to hold the whole tensor.
bool pays_to_hold_tensor(const QuantizeProblem& p, std::int64_t rows) {
  return may_hold_tensor(p) && rows != kDynamic && units_of(p, rows) <= kUnitsOfCluster;
}

// The smallest cluster, in as few loads of a thread as it takes.
QuantizeConfig whole_tensor_config(const QuantizeProblem& p, std::int64_t rows) {
  const std::int64_t units = units_of(p, rows);
  const bool one_block = units <= kUnitsOfBlock;
  const int most_threads = one_block ? 1024 : 512;
  QuantizeConfig c;
  c.tile_rows = 1;
  c.tile_cols = warp_columns(p);
  c.threads = one_block ? 128 : 256;
  c.blocks_per_sm = 1;
  c.cluster = one_block ? 1 : 8;
  const auto held = [&] { return std::int64_t{c.tile_rows} * c.cluster * (c.threads / kWarp); };
  while (held() < units) {
    const bool more_loads = c.tile_rows < 2 || c.threads == most_threads;
    (more_loads ? c.tile_rows : c.threads) *= 2;
  }
  return c;
}

QuantizeConfig warp_tile_config(const QuantizeProblem& p, std::int64_t rows, const DeviceSpec& d) {
  if (pays_to_hold_tensor(p, rows)) return whole_tensor_config(p, rows);
  if (takes_table(p, rows, d)) return looked_up_config(p, rows, d);
  if (streams_rows(p)) return streamed_config(p, rows, d);
  QuantizeConfig c;
  c.tile_cols = kWarp * kVectorBytes / size_of(held_type(p));  // one load of a warp
  c.tile_rows = 8;  // 8 loads of a thread in flight; 8 scales fill a 32-byte sector
  // Two warps a block: a slot is refilled as soon as a pair of warps is done. On an H200 this is
  // 1 % faster than blocks of 8 warps at 32768x4096 and equal elsewhere.
  c.threads = 64;
  c.blocks_per_sm = warp_tile_blocks_per_sm(p);
  if (p.grouping == Grouping::kMasked) return masked_warp_tile(c);
  if (rows == kDynamic) return c;
  const QuantizeConfig of_two_rows = two_row_warp_tile(c);
  const std::int64_t resident = std::int64_t{c.blocks_per_sm} * (c.threads / kWarp) * d.sm_count;
  if (fits_48_warps(p) && tiles_of(c, p, rows) <= resident &&
      tiles_of(of_two_rows, p, rows) >= kWarpsPerSm * d.sm_count) {
    return of_two_rows;
  }
  shorten_tile(c, p, rows, 1, kWarpsPerSm * d.sm_count);
  const bool quantizes = p.operation == QuantizeOperation::kQuantize;
  const bool few_rows = c.tile_rows < 4 && quantizes;
  const bool whole_sectors = fills_sectors_along_rows(p) && p.cols >= kColumnsOfASector;
  if (few_rows || whole_sectors) return one_row_warp_tile(c, p, rows, few_rows, d);
  if (c.tile_rows < 4 && p.operation == QuantizeOperation::kDequantize) {
    return {.tile_rows = 2, .tile_cols = c.tile_cols, .threads = 128, .blocks_per_sm = 6};
  }
  if (c.tile_rows < 8) {
    // The unit of scheduling shrinks with the tile, so that the warps spread over the SMs.
    c.threads = 128;
    c.blocks_per_sm = 8;
  }
  return c;
}

// ---- cta_tile

// Returns the type whose vectors have as many elements as a thread's: codes are held by eights.
DType held_by_tile(const QuantizeProblem& p) {
  return holds_codes(p) ? DType::kBF16 : held_type(p);
}

bool is_block_scaled(Granularity g) {
  return g != Granularity::kPerTensor && g != Granularity::kPerRow;
}

// Returns whether ordering the scales of both copies saves more time than the additional kernel
// takes: memory must be the limit. The stride of the row-wise scales is known here; order_blocks
// tests that of the transposed ones at each launch.
bool pays_to_order_scales(const QuantizeProblem& p, std::int64_t rows) {
  constexpr std::int64_t kEnough = std::int64_t{1} << 24;  // elements
  return rows != kDynamic && rows * p.cols >= kEnough && may_order_scales(p) &&
         p.output == QuantizeOutput::kBoth && p.source.empty() && !holds_codes(p) &&
         packed_scale_ld(p.q, rows, p.cols, false) % kOrderAlign == 0;
}

// Tiles of 64 columns, for tensors that give an SM one tile of 128 columns at most: there are twice
// as many, and a thread with half as many rows is done sooner. A thread has as many registers as
// let all tiles be resident.
QuantizeConfig half_width_config(QuantizeConfig c, const QuantizeProblem& p, int tiles_per_sm,
                                 bool most_sms_have_two) {
  const bool only_transposed = p.output == QuantizeOutput::kTransposed;
  const bool wide_elements = held_by_tile(p) == DType::kFP32;
  c.tile_cols = kScaleBlock / 2;
  // The transposed copy of 16-bit elements alone is faster with fewer threads, the row-wise one
  // with more, if most SMs have two tiles.
  const bool plain = !wide_elements && !holds_codes(p) && p.q.granularity != Granularity::k32x32;
  c.threads = 256;
  if (plain && only_transposed) c.threads = 128;
  if (plain && !has_transposed(p.output) && most_sms_have_two) c.threads = 512;
  c.blocks_per_sm = std::max(1, tiles_per_sm * 256 / c.threads);
  c.rows_fastest = only_transposed;
  return c;
}

// Returns the residency of tiles with a transposed copy of 16-bit elements or codes.
int staged_blocks_per_sm(const QuantizeProblem& p) {
  const bool both = p.output == QuantizeOutput::kBoth;
  const bool grouped = p.grouping != Grouping::kNone;
  // These need registers beside a patch: maxima of another kernel, a group's first row, the
  // swizzled address of a scale, the sums of the columns.
  const bool plain = is_block_scaled(p.q.granularity) && !grouped &&
                     p.scale_layout == ScaleLayout::kLinear && !p.bias_gradient;
  const bool strips_of_groups = p.grouping == Grouping::kContiguous &&
                                p.q.granularity == Granularity::k1x128 &&
                                p.q.scale != ScaleFormat::kUe8m0x4 && !p.bias_gradient;
  const bool short_codes_of_groups =
      holds_codes(p) && p.q.granularity == Granularity::k1x32 && grouped;
  if (!both) return plain || (strips_of_groups && !holds_codes(p)) ? 4 : 3;
  return p.scale_layout == ScaleLayout::kSwizzled || short_codes_of_groups ? 2 : 3;
}

// Chooses the residency of fp32 tiles with a transposed copy, and whether they take both halves.
void settle_fp32_tiles(QuantizeConfig& c, const QuantizeProblem& p, bool many_tiles) {
  const bool fits = fits_64_registers(p);
  const bool fits_together = fits_64_registers_by_halves(p);
  c.halves_together = may_take_halves_together(p) && many_tiles && (fits_together || !fits);
  c.blocks_per_sm = (c.halves_together ? fits_together : fits) ? 2 : 1;
}

// Returns the residency of tiles without a transposed copy.
int rowwise_blocks_per_sm(const QuantizeProblem& p) {
  const bool computed_groups = p.grouping != Grouping::kNone && !p.source.empty();
  const bool summed = p.bias_gradient && source_type(p) == DType::kFP32;
  const int input_bytes = source_shape(p.source).inputs * size_of(p.x.dtype);  // for each value
  if (input_bytes > 4 || computed_groups || summed) return 1;
  // For bf16 128x128 on an H200, 80 registers and 3 blocks are 1 % faster than 64 and 4.
  return held_by_tile(p) == DType::kFP32 ? 2 : 3;
}

// Tiles of as many rows as a tensor of few rows has. A thread has 16 elements, or 32 if 64 rows
// would otherwise need more threads than are soon started.
QuantizeConfig few_rows_config(std::int64_t rows) {
  QuantizeConfig c;
  c.tile_rows = 16;
  while (c.tile_rows < rows) c.tile_rows *= 2;
  c.tile_cols = kScaleBlock;
  c.threads = std::min(8 * c.tile_rows, 256);
  c.blocks_per_sm = 512 / c.threads;
  return c;
}

// Returns whether the defaults of few tiles give each copy a thread block (measured on an H100).
bool parts_copies(const QuantizeProblem& p) {
  return may_write_copies_apart(p) && takes_few_rows(p) && p.x.dtype != DType::kFP32;
}

// Gives each copy of the `tiles` tiles a thread block, if all blocks are resident at once. More of
// them would read x again for nothing.
QuantizeConfig with_copies_apart(QuantizeConfig c, const QuantizeProblem& p, std::int64_t tiles,
                                 const DeviceSpec& d) {
  c.copies_apart = parts_copies(p) && 2 * tiles <= std::int64_t{c.blocks_per_sm} * d.sm_count;
  return c;
}

// Returns whether tiles of few rows are faster than half-width ones (measured on an H200, both
// copies on an H100). `tiles`: those of 128 columns. The more rows a tensor has, the more a
// transposed copy of 1x128 gains from twice as many thread blocks, unless there are more of them
// than an SM holds at once. Two copies gain from them while each block has an SM of its own.
bool pays_to_hold_few_rows(const QuantizeProblem& p, std::int64_t rows, std::int64_t tiles,
                           bool one_wave, const DeviceSpec& d) {
  if (!takes_few_rows(p) || rows == kDynamic || rows > kScaleBlock / 2) return false;
  if (parts_copies(p)) return rows <= kScaleBlock / 4 || 4 * tiles > d.sm_count;
  const bool strips = p.q.granularity == Granularity::k1x128;
  if (rows <= kScaleBlock / 8 || !strips) return true;
  if (p.output == QuantizeOutput::kTransposed) return rows <= kScaleBlock / 4 && !one_wave;
  return rows <= kScaleBlock / 4 || !one_wave;
}

QuantizeConfig cta_tile_config(const QuantizeProblem& p, std::int64_t rows, const DeviceSpec& d) {
  const int element_bytes = size_of(held_by_tile(p));
  const bool wide_elements = held_by_tile(p) == DType::kFP32;
  const bool known_rows = rows != kDynamic;
  const std::int64_t tiles = ceil_div(rows, kScaleBlock) * ceil_div(p.cols, kScaleBlock);
  QuantizeConfig c;
  c.tile_rows = kScaleBlock;
  c.tile_cols = kScaleBlock;
  c.threads = 128 * element_bytes;  // 8 loads of a thread in flight, whatever the element

  const int half_width_per_sm = wide_elements ? 1 : 2;
  const bool one_wave = known_rows && 2 * tiles <= std::int64_t{half_width_per_sm} * d.sm_count;
  if (pays_to_hold_few_rows(p, rows, tiles, one_wave, d)) {
    return with_copies_apart(few_rows_config(rows), p, tiles, d);
  }
  if (one_wave && takes_half_width_tiles(p)) {
    c = half_width_config(c, p, half_width_per_sm, 4 * tiles > std::int64_t{3} * d.sm_count);
    // Of more than two blocks an SM, smaller ones are more evenly spread.
    if (parts_copies(p) && 4 * tiles > std::int64_t{2} * d.sm_count) {
      c.threads = 128;
      c.blocks_per_sm = 4;
    }
    return with_copies_apart(c, p, 2 * tiles, d);
  }

  if (has_transposed(p.output)) {
    // A transposed copy alone is fastest if neighbours down the rows write neighbouring pieces of
    // its rows. Beside a row-wise copy, neighbours along the rows are faster.
    c.rows_fastest = p.output == QuantizeOutput::kTransposed;
    if (wide_elements) {
      settle_fp32_tiles(c, p, !known_rows || tiles > std::int64_t{2} * d.sm_count);
    } else {
      c.blocks_per_sm = staged_blocks_per_sm(p);
      // If two tiles an SM are all there are, a third must not find room beside two others.
      const bool two_an_sm = known_rows && tiles <= std::int64_t{2} * d.sm_count;
      if (two_an_sm && p.output == QuantizeOutput::kBoth) c.blocks_per_sm = 2;
      // So many tiles take one wave of four an SM, in which all loads come first.
      const bool one_wave_of_four = known_rows && tiles > std::int64_t{3} * d.sm_count &&
                                    tiles <= std::int64_t{4} * d.sm_count;
      if (one_wave_of_four && c.blocks_per_sm == 4) {
        c.blocks_per_sm = 3;
        c.rows_fastest = false;
      }
    }
    c.orders_scales = pays_to_order_scales(p, rows);
    return c;
  }

  c.blocks_per_sm = rowwise_blocks_per_sm(p);
  const bool patches_of_8 = p.q.granularity == Granularity::k32x32 || p.bias_gradient;
  if (known_rows && tiles <= d.sm_count && !patches_of_8) {
    // One tile an SM at most: more threads with fewer loads each finish it sooner. For bf16, 1024
    // threads lose that again at the barrier (measured on an H200).
    c.threads = 256 * element_bytes;
    c.blocks_per_sm = 1024 / c.threads;
  } else if (known_rows && tiles <= std::int64_t{2} * d.sm_count && c.blocks_per_sm == 3) {
    c.blocks_per_sm = 4;
  }
  return c;
}

// ---- the other templates

// A row in the registers of one thread block, in as few loads a thread as keep 8 blocks resident.
QuantizeConfig cta_row_config(const QuantizeProblem& p) {
  constexpr int kMostVectors = 8;  // 32 registers of input
  constexpr int kMostThreads = 512;
  QuantizeConfig c;
  c.tile_rows = 1;
  const int elements = kVectorBytes / size_of(held_type(p));
  c.threads = kWarp;
  while (c.threads < kMostThreads && std::int64_t{c.threads} * elements * kMostVectors < p.cols) {
    c.threads *= 2;
  }
  const std::int64_t step = std::int64_t{c.threads} * elements;
  const std::int64_t vectors = std::clamp<std::int64_t>(ceil_div(p.cols, step), 1, kMostVectors);
  c.tile_cols = static_cast<int>(step * vectors);
  // 64 registers a thread; 80 if the source is computed.
  const bool computed = !p.source.empty() || is_fp8(p.x.dtype);
  const int threads = computed ? 768 : 1024;
  c.blocks_per_sm = std::clamp(threads / c.threads, 1, 32);
  const bool more_registers = p.grouping != Grouping::kNone && source_type(p) == DType::kFP32;
  if (more_registers) c.blocks_per_sm = std::max(1, c.blocks_per_sm * 3 / 4);
  if (source_shape(p.source).inputs > 2) c.blocks_per_sm = std::max(1, 512 / c.threads);
  return c;
}

// A row in the registers of one thread block, 8 columns a thread and load. A block takes two or
// four rows, and the next row is on its way while one is worked on.
QuantizeConfig norm_rows_config(const QuantizeProblem& p, std::int64_t rows, const DeviceSpec& d) {
  constexpr std::int64_t kMostPieces = 8;  // 64 registers of values
  constexpr int kMostThreads = 512;
  constexpr int kEnoughThreads = 128;  // before a thread takes more than two pieces
  QuantizeConfig c;
  c.threads = kWarp;
  const auto pieces = [&] { return ceil_div(p.cols, std::int64_t{c.threads} * kStreamedElements); };
  while (c.threads < kMostThreads && pieces() > (c.threads < kEnoughThreads ? 2 : kMostPieces)) {
    c.threads *= 2;
  }
  const std::int64_t held = std::clamp<std::int64_t>(pieces(), 1, kMostPieces);
  c.tile_cols = static_cast<int>(std::int64_t{c.threads} * kStreamedElements * held);
  // 96 registers a thread, or 72 with few values. fp32, ue8m0x4 scales and a tap need more.
  const bool more_registers =
      p.tap || p.q.scale == ScaleFormat::kUe8m0x4 || p.x.dtype == DType::kFP32;
  const int resident_threads = (held > 4 ? 640 : 896) - (more_registers ? 128 : 0);
  c.blocks_per_sm = std::clamp(resident_threads / c.threads, 1, 16);
  c.tile_rows = held > 4 ? 2 : 4;
  if (rows != kDynamic && rows < std::int64_t{4} * d.sm_count) c.tile_rows = 1;
  return c;
}

QuantizeConfig shard_config(const QuantizeProblem& p) {
  QuantizeConfig c;
  c.tile_rows = 8;
  c.tile_cols = kWarp * kVectorBytes / size_of(p.x.dtype);
  c.threads = 128;
  c.blocks_per_sm = 5;  // 96 registers: the shard's first and last element need some of them
  return c;
}

// 16-byte loads of 8 rows a thread, whatever the tile. Every SM needs three of the larger tiles to
// hide each other's barriers; the smaller tile serves tensors that have fewer.
QuantizeConfig transpose_config(const QuantizeProblem& p, std::int64_t rows, const DeviceSpec& d) {
  constexpr int kBlocksPerSm = 3;
  const std::int64_t tiles = ceil_div(rows, 256) * ceil_div(p.cols, 128);
  const bool small = rows != kDynamic && tiles < std::int64_t{kBlocksPerSm} * d.sm_count;
  QuantizeConfig c;
  c.tile_rows = small ? 128 : 256;
  c.tile_cols = 128;
  c.threads = small ? 128 : 256;
  c.blocks_per_sm = small ? 2 * kBlocksPerSm : kBlocksPerSm;
  c.rows_fastest = true;  // neighbours write neighbouring pieces of the same rows of the copy
  return c;
}

}  // namespace

QuantizeConfig default_config(const QuantizeProblem& problem, std::int64_t rows,
                              const DeviceSpec& device) {
  switch (template_of(problem)) {
    case QuantizeTemplate::kWarpTile:
    case QuantizeTemplate::kDequantize:
      return warp_tile_config(problem, rows, device);
    case QuantizeTemplate::kCtaTile:
      return cta_tile_config(problem, rows, device);
    case QuantizeTemplate::kCtaRow:
      return cta_row_config(problem);
    case QuantizeTemplate::kNormRows:
      return norm_rows_config(problem, rows, device);
    case QuantizeTemplate::kShard:
      return shard_config(problem);
    case QuantizeTemplate::kTranspose:
      return transpose_config(problem, rows, device);
  }
  return {};
}

}  // namespace octile
