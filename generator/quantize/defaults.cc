// The default configuration of a quantise kernel: large tiles while there are enough of them to
// keep every SM's loads in flight, smaller ones where a small tensor would leave SMs idle.
#include <algorithm>

#include "generator/quantize/cost.h"
#include "generator/quantize/fused_source.h"
#include "generator/core/layout.h"

namespace octile {
namespace {

// Resident warps an SM should find in the whole launch: 16 warps with 2 KB each are the 33 KB in
// flight that 4.3 TB/s over 132 SMs at about 1 us of loaded latency need.
constexpr std::int64_t kWarpsPerSm = 16;
constexpr int kWarp = 32;

// What a lane's 16 bytes are of: the values, or, dequantising, the output.
DType held_type(const QuantizeProblem& p) {
  return p.operation == QuantizeOperation::kDequantize ? p.q.dtype : source_type(p);
}

// A warp's each, where warps work alone.
std::int64_t tiles_of(const QuantizeConfig& c, const QuantizeProblem& p, std::int64_t rows) {
  return ceil_div(rows, c.tile_rows) * ceil_div(p.cols, c.tile_cols);
}

// Where rows stream a thread has one step of values in its registers, beside which 96 hold what a
// group or a row has of its own; the next two steps' inputs lie in shared memory.
QuantizeConfig streamed_config(const QuantizeProblem& p, std::int64_t rows, const DeviceSpec& d) {
  QuantizeConfig c;
  c.tile_cols = streamed_columns(p);
  c.tile_rows = takes_both_halves(p) ? 8 : 16;
  c.threads = 64;
  c.blocks_per_sm = 10;
  if (p.grouping == Grouping::kMasked) {
    // Blocks without a tile are to be few: what does not exist of a group can be most of it.
    c.threads = 256;
    c.blocks_per_sm = 2;
  }
  // Where a group begins and the addresses of six loads a row together take more than 96.
  const bool many = source_shape(p.source).inputs > 2 && p.x.dtype == DType::kFP32;
  if (many && p.grouping != Grouping::kNone) c.blocks_per_sm = c.blocks_per_sm * 3 / 4;
  while (ring_bytes(p, c) > kMaxStaticSmem) {
    c.threads /= 2;
    c.blocks_per_sm *= 2;
  }
  if (rows == kDynamic) return c;
  while (c.tile_rows > 1 && tiles_of(c, p, rows) < kWarpsPerSm * d.sm_count) c.tile_rows /= 2;
  return c;
}

// Where a part of the source is looked up, one block an SM: 16 warps have 64 KB on their way, and
// more of them spill. Not of small tensors: a thread fills some 14 places of the table first. (It
// was timed from 4096 x 7168 on; below, the bound is chosen.)
bool takes_table(const QuantizeProblem& p, std::int64_t rows, const DeviceSpec& d) {
  constexpr std::int64_t kEnough = std::int64_t{64} * 1024;  // elements of an SM
  return rows != kDynamic && rows * p.cols >= kEnough * d.sm_count && lookup_of(p) != nullptr;
}
QuantizeConfig looked_up_config(const QuantizeProblem& p, std::int64_t rows, const DeviceSpec& d) {
  constexpr int kWarps = 16;
  constexpr std::int64_t kTilesOfWarp = 6;
  QuantizeConfig c;
  c.tile_cols = streamed_columns(p);
  c.tile_rows = 32;
  c.threads = kWarps * kWarp;
  c.blocks_per_sm = 1;
  c.looks_up = true;
  while (c.tile_rows > 8 && tiles_of(c, p, rows) < kTilesOfWarp * kWarps * d.sm_count)
    c.tile_rows /= 2;
  return c;
}

// Whether a row's scales are bytes of which kColumnsOfASector columns have a sector of 32.
constexpr int kColumnsOfASector = 1024;
bool fills_sectors_along_rows(const QuantizeProblem& p) {
  return p.operation == QuantizeOperation::kQuantize && p.q.granularity == Granularity::k1x32 &&
         p.q.scale == ScaleFormat::kE8M0 && p.scale_layout == ScaleLayout::kLinear &&
         p.grouping == Grouping::kNone && !is_fp8(p.x.dtype);
}

QuantizeConfig segments_config(const QuantizeProblem& p, std::int64_t rows, const DeviceSpec& d) {
  if (takes_table(p, rows, d)) return looked_up_config(p, rows, d);
  if (streams_rows(p)) return streamed_config(p, rows, d);
  QuantizeConfig c;
  c.tile_cols = kWarp * 16 / size_of(held_type(p));  // one load of a warp
  c.tile_rows = 8;  // 8 loads of a thread in flight; 8 scales are one 32-byte sector
  // Two warps a block: slots are refilled as soon as a warp pair is done. On an H200 1 % faster at
  // 32768x4096 than blocks of 8 warps, equal elsewhere.
  c.threads = 64;
  // Four elements a vector leave fp32 more addresses per element: 64 registers would spill.
  const bool more_registers = p.grouping == Grouping::kMasked || held_type(p) == DType::kFP32 ||
                              p.q.granularity == Granularity::kPerTensor ||
                              p.q.scale == ScaleFormat::kUe8m0x4 ||
                              p.q.scale == ScaleFormat::kE8M0;
  c.blocks_per_sm = more_registers ? 12 : 16;
  const bool groups_of_codes = p.grouping != Grouping::kNone && is_fp8(p.x.dtype);
  if (p.scale_layout == ScaleLayout::kSwizzled || groups_of_codes) c.blocks_per_sm = 10;
  if (p.grouping == Grouping::kMasked) {
    // Blocks without a tile are to be few: what does not exist of a group can be most of it. How
    // many tiles there are is not in `rows`.
    c.tile_rows = 32;
    c.threads = 128;
    c.blocks_per_sm = 5;  // 96 registers: the place of a group takes some
    return c;
  }
  if (rows == kDynamic) return c;
  const int warp_cols = c.tile_cols;
  const std::int64_t enough = kWarpsPerSm * d.sm_count;
  while (c.tile_rows > 1 && tiles_of(c, p, rows) < enough) c.tile_rows /= 2;
  const bool of_few_rows = c.tile_rows < 4 && p.operation == QuantizeOperation::kQuantize;
  const bool of_sectors = fills_sectors_along_rows(p) && p.cols >= kColumnsOfASector;
  if (of_few_rows || of_sectors) {
    // One row: of 1x32 scales a sector of 32, which takes as long as the 8 of 256 columns; of few
    // rows as many loads a thread as four rows have, and addresses of one (segments.cu). Narrower
    // where half of it has all columns.
    constexpr std::int64_t kFewWarps = 4;  // of an SM
    c.tile_rows = 1;
    c.tile_cols = fills_sectors_along_rows(p) ? kColumnsOfASector : 4 * warp_cols;
    c.threads = of_few_rows ? 64 : 128;
    c.blocks_per_sm = (held_type(p) == DType::kFP32 ? 768 : 1024) / c.threads;
    while (c.tile_cols > warp_cols &&
           (c.tile_cols / 2 >= p.cols || tiles_of(c, p, rows) < kFewWarps * d.sm_count)) {
      c.tile_cols /= 2;
    }
    return c;
  }
  if (c.tile_rows < 4 && p.operation == QuantizeOperation::kDequantize) {
    c = {.tile_rows = 2, .tile_cols = warp_cols, .threads = 128, .blocks_per_sm = 6};
    return c;
  }
  if (c.tile_rows < 8) {
    // The unit of scheduling shrinks with the tile, so that the warps spread over the SMs.
    c.threads = 128;
    c.blocks_per_sm = 8;
  }
  return c;
}

bool is_strips(Granularity g) { return g == Granularity::k1x128 || g == Granularity::k1x32; }

bool is_block_scaled(Granularity g) {
  return g != Granularity::kPerTensor && g != Granularity::kPerRow;
}

bool is_own_expression(const QuantizeProblem& p) {
  return p.source.find('(') != std::string::npos;  // the others have names
}
// Scales that are put together before they are stored.
bool has_compact_scales(const QuantizeProblem& p) {
  return p.q.scale == ScaleFormat::kUe8m0x4 || p.q.scale == ScaleFormat::kBF16;
}
// Whether it divides, which takes a function with registers of its own.
bool divides(const QuantizeProblem& p) {
  return p.source.find("div(") != std::string::npos ||
         p.source.find("reciprocal(") != std::string::npos;
}

// Whether two blocks of 512 threads fit an SM, which leaves a thread 64 registers: 32 hold its
// patch of fp32 values, and beside them there is room for one thing more. What is false here
// spilled, or is of a kind of which some did: of computed values, 17 sources of one to four 16-bit
// inputs were compiled with every granularity and output, with a bias gradient, a tap and groups.
bool computed_fits_64_registers(const QuantizeProblem& p) {
  const int inputs = source_shape(p.source).inputs;
  if (p.x.dtype == DType::kFP32 || inputs > 3 || (p.tap && p.bias_gradient)) return false;
  if (divides(p)) return false;
  const bool both = p.output == QuantizeOutput::kBoth;
  const bool more = p.tap || p.bias_gradient;
  // Little arithmetic on several inputs: the assembler keeps more of them.
  const bool own = is_own_expression(p) && inputs > 1;
  const bool packed = p.q.scale == ScaleFormat::kUe8m0x4;
  const bool narrow = has_compact_scales(p);
  if (source_shape(p.source).halves) {  // one after the other, by other thread blocks
    if (own || more || packed || p.q.granularity == Granularity::kPerRow) return false;
    if (both) {
      return p.q.granularity == Granularity::k1x128 && !narrow && p.q.dtype == DType::kE4M3;
    }
    return p.q.granularity != Granularity::k1x32;
  }
  switch (p.q.granularity) {
    case Granularity::kPerRow:
      return true;
    case Granularity::kPerTensor:
      return !p.tap && !(own && (both || more));
    case Granularity::k128x128:
    case Granularity::k32x32:
      return !both || (!more && !own);
    case Granularity::k1x128:
      if (both) return !more && !narrow;
      return !packed || (!more && !own);
    case Granularity::k1x32:
      return !both && !more && !own;
    case Granularity::kNone:
      break;
  }
  return false;
}
bool fits_64_registers(const QuantizeProblem& p) {
  if (p.scale_layout == ScaleLayout::kSwizzled || p.grouping != Grouping::kNone) return false;
  if (!p.source.empty()) return computed_fits_64_registers(p);
  if (p.bias_gradient) return false;
  // Squares' scales are stored when x is gone.
  if (p.output == QuantizeOutput::kTransposed || !is_strips(p.q.granularity)) return true;
  return p.q.granularity == Granularity::k1x128 && p.q.dtype == DType::kE4M3 &&
         (p.q.scale == ScaleFormat::kF32 || p.q.scale == ScaleFormat::kF32Pow2);
}

// The same of both halves at once, whose origin waits in shared memory: what is false here spilled.
bool fits_64_registers_by_halves(const QuantizeProblem& p) {
  if (p.scale_layout == ScaleLayout::kSwizzled || p.x.dtype == DType::kFP32) return false;
  if (is_own_expression(p) || (p.tap && p.bias_gradient)) return false;
  const bool both = p.output == QuantizeOutput::kBoth;
  switch (p.q.granularity) {
    case Granularity::k1x128:
      if (p.grouping != Grouping::kNone) return false;
      return !both || (!p.tap && !has_compact_scales(p));
    case Granularity::k1x32:
      return !both;
    case Granularity::kPerTensor:
      return !both || !p.bias_gradient;
    default:
      return true;
  }
}

// Where memory is the limit, and what is saved is more than another kernel takes: of both copies'
// scales (tiles.cu). Where the packed stride of the row-wise ones lets those be ordered: whether
// the transposed ones' does, the rows of each launch decide (order_blocks).
bool pays_to_order_scales(const QuantizeProblem& p, std::int64_t rows) {
  constexpr std::int64_t kEnough = std::int64_t{1} << 24;  // elements
  return rows != kDynamic && rows * p.cols >= kEnough && may_order_scales(p) &&
         p.output == QuantizeOutput::kBoth && p.source.empty() && !holds_codes(p) &&
         packed_scale_ld(p.q, rows, p.cols, false) % kOrderAlign == 0;
}

QuantizeConfig tiles_config(const QuantizeProblem& p, std::int64_t rows, const DeviceSpec& d) {
  QuantizeConfig c;
  c.tile_rows = 128;
  c.tile_cols = 128;
  const bool codes = holds_codes(p);
  const DType held = codes ? DType::kBF16 : held_type(p);  // codes: as many of a load
  c.threads = 128 * size_of(held);  // 8 loads of a thread in flight, whatever the element
  // A tile an SM at most: half as wide there are twice as many, and a thread with half as many rows
  // is done sooner; where it writes the transposed copy of 16 bits alone, fewer threads are
  // (tiles.cu has the figures). As many registers are left to it as let all of them be resident.
  const std::int64_t tiles = ceil_div(rows, 128) * ceil_div(p.cols, 128);
  const int narrow_per_sm = held == DType::kFP32 ? 1 : 2;
  if (rows != kDynamic && 2 * tiles <= std::int64_t{narrow_per_sm} * d.sm_count &&
      takes_half_width_tiles(p)) {
    const bool alone = p.output == QuantizeOutput::kTransposed;
    c.tile_cols = 64;
    c.threads = alone && held != DType::kFP32 && !codes ? 128 : 256;
    c.blocks_per_sm = narrow_per_sm * 256 / c.threads;
    c.rows_fastest = alone;
    return c;
  }
  // Measured on an H200 for bf16 128x128: 80 registers and 3 blocks beat 64 and 4 by 1 %.
  c.blocks_per_sm = held == DType::kFP32 ? 2 : 3;
  if (has_transposed(p.output)) {
    const bool both = p.output == QuantizeOutput::kBoth;
    // Alone, the transposed copy is fastest where neighbours down the rows write neighbouring
    // pieces of its rows, and with 64 registers and 4 blocks; beside a row-wise copy, which writes
    // along the rows, with neighbours along the rows (tiles.cu has the figures).
    c.rows_fastest = !both;
    // What takes registers beside a patch: maxima another kernel found, where a group begins, the
    // swizzled address of a scale, the sums of its columns.
    const bool plain = is_block_scaled(p.q.granularity) && p.grouping == Grouping::kNone &&
                       p.scale_layout == ScaleLayout::kLinear && !p.bias_gradient;
    if (held != DType::kFP32) {
      const bool strips_of_groups = p.grouping == Grouping::kContiguous &&
                                    p.q.granularity == Granularity::k1x128 &&
                                    p.q.scale != ScaleFormat::kUe8m0x4 && !p.bias_gradient;
      if (!both && (plain || (strips_of_groups && !codes))) c.blocks_per_sm = 4;
      const bool shorts_of_groups =
          codes && p.q.granularity == Granularity::k1x32 && p.grouping != Grouping::kNone;
      if (both && (p.scale_layout == ScaleLayout::kSwizzled || shorts_of_groups)) {
        c.blocks_per_sm = 2;
      }
    } else {
      // Of few tiles, all of them resident at once, twice as many are done sooner.
      const bool many = rows == kDynamic || tiles > std::int64_t{c.blocks_per_sm} * d.sm_count;
      const bool fits = fits_64_registers(p);
      const bool fits_together = fits_64_registers_by_halves(p);
      c.halves_together = may_take_halves_together(p) && many && (fits_together || !fits);
      if (!(c.halves_together ? fits_together : fits)) c.blocks_per_sm = 1;
    }
    c.orders_scales = pays_to_order_scales(p, rows);
    return c;
  }
  const bool of_groups = p.grouping != Grouping::kNone && !p.source.empty();
  const bool summed = p.bias_gradient && source_type(p) == DType::kFP32;
  const int words = source_shape(p.source).inputs * size_of(p.x.dtype);  // of inputs, a value
  if (words > 4 || of_groups || summed) c.blocks_per_sm = 1;
  const bool patches_of_8 = p.q.granularity == Granularity::k32x32 || p.bias_gradient;
  if (rows != kDynamic && tiles <= d.sm_count && !patches_of_8) {
    // One tile an SM at most: more threads with fewer loads each finish it sooner. For bf16, 1024
    // threads lose that again at the barrier (measured on an H200).
    c.threads = 256 * size_of(held);
    c.blocks_per_sm = 1024 / c.threads;
  }
  return c;
}

// A row in the registers of one thread block, in as few loads a thread as keep 8 blocks resident.
QuantizeConfig rows_config(const QuantizeProblem& p) {
  constexpr int kMostVectors = 8;  // 32 registers of input
  constexpr int kMostThreads = 512;
  QuantizeConfig c;
  c.tile_rows = 1;
  const int elements = 16 / size_of(held_type(p));
  c.threads = kWarp;
  while (c.threads < kMostThreads && std::int64_t{c.threads} * elements * kMostVectors < p.cols) {
    c.threads *= 2;
  }
  const std::int64_t step = std::int64_t{c.threads} * elements;
  const std::int64_t vectors = std::clamp<std::int64_t>(ceil_div(p.cols, step), 1, kMostVectors);
  c.tile_cols = static_cast<int>(step * vectors);
  // 64 registers a thread; where the source is computed 80.
  const bool computed = !p.source.empty() || is_fp8(p.x.dtype);
  const int threads = computed ? 768 : 1024;
  c.blocks_per_sm = std::clamp(threads / c.threads, 1, 32);
  const bool more_registers = p.grouping != Grouping::kNone && source_type(p) == DType::kFP32;
  if (more_registers) c.blocks_per_sm = std::max(1, c.blocks_per_sm * 3 / 4);
  if (source_shape(p.source).inputs > 2) c.blocks_per_sm = std::max(1, 512 / c.threads);
  return c;
}

// A row in the registers of one thread block, 8 columns a thread and load; a block takes two or
// four rows, the next on its way while one is worked on.
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
  // 96 registers a thread, 72 with few values; fp32, packed scales and a tap take more.
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
  c.tile_cols = kWarp * 16 / size_of(p.x.dtype);
  c.threads = 128;
  c.blocks_per_sm = 5;  // 96 registers: where the shard begins and ends takes some
  return c;
}

// 16-byte loads of 8 rows a thread, whatever the tile: the smaller one where there are too few of
// the larger to give every SM the three that hide each other's barriers.
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
    case QuantizeTemplate::kSegments:
    case QuantizeTemplate::kDequantize:
      return segments_config(problem, rows, device);
    case QuantizeTemplate::kTiles:
      return tiles_config(problem, rows, device);
    case QuantizeTemplate::kRows:
      return rows_config(problem);
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
