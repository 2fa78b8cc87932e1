#include <fmt/format.h>

#include <bit>
#include <string_view>

#include "generator/quantize/config.h"
#include "generator/quantize/resources.h"
#include "generator/quantize/units.h"

namespace octile {
namespace {

constexpr int kMaxVectors = 16;        // 64 registers of input; more would spill
constexpr int kMaxNormThreads = 512;   // a row's sum has 1024 parts, at least two for each thread
constexpr int kMaxStreamedRows = 64;   // rows of a warp's tile; longer tiles leave SMs idle
constexpr int kRangeRows = 8;          // rows of a warp's tile in range.cuh
constexpr int kSumColumns = 4 * 1024;  // columns of a pass over the sums of a row (norm.cuh)

bool is_power_of_two(int v) { return v > 0 && std::has_single_bit(static_cast<unsigned>(v)); }

template <typename Value>
Status refuse(std::string_view field, const Value& value, std::string_view rule) {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("quantise configuration: {} is {}; {}", field, value, rule));
}

// ---- rules that several templates share

// Refuses more thread blocks an SM than its shared memory holds.
Status check_resident_smem(const QuantizeProblem& p, const QuantizeConfig& c, const DeviceSpec& d,
                           std::string_view what) {
  const int bytes = resident_smem_bytes(p, c);
  if (c.blocks_per_sm * (bytes + kReservedSmemPerBlock) <= d.smem_per_sm_bytes) return {};
  return refuse(
      "per_sm", c.blocks_per_sm,
      fmt::format("the {} bytes of a block, {}, pass the shared memory of an SM", bytes, what));
}

Status check_staged_vectors(int vectors) {
  if (vectors == kStagedVectors) return {};
  return refuse(
      "vectors per thread", vectors,
      fmt::format("{} are allowed (the tile over the threads that hold it)", kStagedVectors));
}

// ---- one template's rules each

Status check_streamed(const QuantizeProblem& p, const QuantizeConfig& c, const DeviceSpec& d) {
  if (c.tile_rows > kMaxStreamedRows) {
    return refuse("tile rows", c.tile_rows, "a power of two up to 64 is allowed");
  }
  if (c.tile_cols != streamed_columns(p)) {
    return refuse("tile columns", c.tile_cols,
                  takes_both_halves(p) ? "512 are allowed, the 256 a warp loads of either half"
                                       : "the 256 columns a warp loads are allowed");
  }
  if (c.looks_up) return check_resident_smem(p, c, d, "its table and its rows on the way");
  if (ring_bytes(p, c) > kMostStaticSmem) {
    return refuse("threads", c.threads, "their rows on the way pass the static shared memory");
  }
  return {};
}

// A warp has tile_rows loads, and all warps of the cluster take turns.
Status check_whole_tensor(const QuantizeProblem& p, const QuantizeConfig& c, const DeviceSpec& d) {
  if (!d.has_clusters) {
    return refuse("cluster", c.cluster, "0 is allowed on a device without clusters");
  }
  if (!is_power_of_two(c.cluster) || c.cluster > kPortableCluster) {
    return refuse("cluster", c.cluster, "0, 1, 2, 4 and 8 are allowed");
  }
  if (c.tile_cols == warp_columns(p)) return {};
  return refuse(
      "tile columns", c.tile_cols,
      fmt::format("the {} columns a warp loads are allowed with a cluster", warp_columns(p)));
}

Status check_warp_tile(const QuantizeProblem& p, const QuantizeConfig& c, const DeviceSpec& d) {
  if (!is_power_of_two(c.tile_rows)) {
    return refuse("tile rows", c.tile_rows, "a power of two is allowed");
  }
  if (c.cluster != 0) return check_whole_tensor(p, c, d);
  if (streams_rows(p)) return check_streamed(p, c, d);
  const int warp_cols = warp_columns(p);
  if (!is_power_of_two(c.tile_cols) || c.tile_cols % warp_cols != 0) {
    return refuse(
        "tile columns", c.tile_cols,
        fmt::format("a power of two times the {} columns a warp loads is allowed", warp_cols));
  }
  return {};
}

// A block of 128 rows is held 16, 32 or 64 rows at a time.
Status check_few_rows(const QuantizeProblem& p, const QuantizeConfig& c) {
  constexpr int kMostFewRowsVectors = 8;
  if (c.tile_cols != kScaleBlock) {
    return refuse("tile columns", c.tile_cols, "128 are allowed with fewer than 128 rows");
  }
  if (c.rows_fastest) {
    return refuse("raster", "rows", "cols is allowed with fewer than 128 rows");
  }
  // The first 128 threads derive a column's scale each.
  if (has_transposed(p.output) && c.threads < kScaleBlock) {
    return refuse("threads", c.threads, "128 to 1024 are allowed with fewer than 128 rows");
  }
  const int vectors = resources_of(p, c).vectors_per_thread;
  // The staged codes are at least a 16-byte piece for each thread.
  const int least = has_transposed(p.output) ? size_of(p.x.dtype) : 1;
  if (vectors >= least && vectors <= kMostFewRowsVectors) return {};
  return refuse("vectors per thread", vectors,
                fmt::format("{} to {} are allowed with fewer than 128 rows (the tile over the "
                            "threads that hold it)",
                            least, kMostFewRowsVectors));
}

Status check_cta_tile_extents(const QuantizeProblem& p, const QuantizeConfig& c) {
  // Bias gradients are summed over 128 rows.
  const bool may_be_tall = has_transposed(p.output) && !p.bias_gradient;
  if (c.tile_rows != kScaleBlock && (!may_be_tall || c.tile_rows != 2 * kScaleBlock)) {
    const std::string_view few = takes_few_rows(p) ? "16, 32, 64, " : "";
    return refuse("tile rows", c.tile_rows,
                  fmt::format("{}{} allowed", few, may_be_tall ? "128 and 256 are" : "128 is"));
  }
  const bool half_width = takes_half_width_tiles(p);
  if (c.tile_cols != kScaleBlock && (!half_width || c.tile_cols != kScaleBlock / 2)) {
    return refuse("tile columns", c.tile_cols,
                  half_width ? "64 and 128 are allowed" : "128 is allowed");
  }
  return {};
}

Status check_cta_tile_vectors(const QuantizeProblem& p, const QuantizeConfig& c) {
  const int vectors = resources_of(p, c).vectors_per_thread;
  if (p.bias_gradient) return check_staged_vectors(vectors);
  const bool patches = has_transposed(p.output) || p.q.granularity == Granularity::k32x32;
  if (patches && vectors != kStagedVectors && vectors != kStagedVectors / 2) {
    return refuse("vectors per thread", vectors,
                  fmt::format("{} and {} are allowed (the tile over the threads that hold it)",
                              kStagedVectors / 2, kStagedVectors));
  }
  return {};
}

Status check_cta_tile_smem(const QuantizeProblem& p, const QuantizeConfig& c, const DeviceSpec& d) {
  if (has_transposed(p.output) && staged_bytes(c) > kMostStaticSmem) {
    return refuse("tile rows", c.tile_rows, "the staged codes pass the static shared memory");
  }
  if (!c.halves_together) return {};
  return check_resident_smem(p, c, d, "its codes and the values that wait");
}

Status check_cta_tile(const QuantizeProblem& p, const QuantizeConfig& c, const DeviceSpec& d) {
  const bool whole_units = c.tile_rows % 16 == 0 && is_power_of_two(c.tile_rows);
  if (holds_few_rows(p, c) && takes_few_rows(p) && whole_units) return check_few_rows(p, c);
  if (Status s = check_cta_tile_extents(p, c); !s) return s;
  if (Status s = check_cta_tile_vectors(p, c); !s) return s;
  return check_cta_tile_smem(p, c, d);
}

Status check_range(const QuantizeProblem& p, const QuantizeConfig& c) {
  const int warp_cols = warp_columns(p);
  if (c.tile_rows != kRangeRows) return refuse("tile rows", c.tile_rows, "8 is allowed");
  if (c.tile_cols == warp_cols) return {};
  return refuse("tile columns", c.tile_cols,
                fmt::format("the {} columns a warp loads are allowed", warp_cols));
}

Status check_scales(const QuantizeConfig& c) {
  if (c.tile_rows != 1) return refuse("tile rows", c.tile_rows, "1 is allowed");
  if (c.tile_cols == c.threads) return {};
  return refuse("tile columns", c.tile_cols,
                fmt::format("{} are allowed, a maximum for each thread", c.threads));
}

Status check_whole_loads(const QuantizeConfig& c, int step) {
  if (c.tile_cols % step == 0) return {};
  return refuse("tile columns", c.tile_cols,
                fmt::format("a multiple of the {} columns a thread block loads is allowed", step));
}

Status check_cta_row(const QuantizeProblem& p, const QuantizeConfig& c) {
  if (c.tile_rows != 1) return refuse("tile rows", c.tile_rows, "1 is allowed");
  return check_whole_loads(c, c.threads * elements_per_vector(p));
}

Status check_norm_rows(const QuantizeProblem& p, const QuantizeConfig& c) {
  if (c.tile_rows < 1 || c.tile_rows > kMaxStreamedRows) {
    return refuse("tile rows", c.tile_rows, "1 to 64 are allowed");
  }
  if (c.threads > kMaxNormThreads) {
    return refuse("threads", c.threads, "a power of two up to 512 is allowed");
  }
  if (Status s = check_whole_loads(c, c.threads * kStreamedElements); !s) return s;
  if (c.tile_cols >= p.cols || c.tile_cols % kSumColumns == 0) return {};
  return refuse("tile columns", c.tile_cols,
                fmt::format("all {} columns, or a multiple of {}, are allowed: a row's sum has one "
                            "order",
                            p.cols, kSumColumns));
}

Status check_transpose(const QuantizeProblem& p, const QuantizeConfig& c) {
  if (c.tile_cols != kScaleBlock && c.tile_cols != 2 * kScaleBlock) {
    return refuse("tile columns", c.tile_cols, "128 and 256 are allowed");
  }
  if (c.tile_rows != kScaleBlock && c.tile_rows != 2 * kScaleBlock) {
    return refuse("tile rows", c.tile_rows, "128 and 256 are allowed");
  }
  if (c.tile_rows * c.tile_cols > kMostStaticSmem) {
    return refuse("tile rows", c.tile_rows, "the staged codes pass the static shared memory");
  }
  return check_staged_vectors(resources_of(p, c).vectors_per_thread);
}

// ---- the steps of check_config

Status check_threads(const QuantizeConfig& c, const DeviceSpec& d) {
  if (!is_power_of_two(c.threads) || c.threads < kWarp || c.threads > 1024) {
    return refuse("threads", c.threads, "a power of two from 32 to 1024 is allowed");
  }
  if (c.blocks_per_sm < 1 || c.blocks_per_sm * c.threads > d.threads_per_sm) {
    return refuse(
        "per_sm", c.blocks_per_sm,
        fmt::format("1 to {} is allowed with {} threads", d.threads_per_sm / c.threads, c.threads));
  }
  return {};
}

// Refuses options that the problem's kernel does not have.
Status check_options(const QuantizeProblem& p, const QuantizeConfig& c) {
  const QuantizeTemplate t = template_of(p);
  if (c.rows_fastest && t != QuantizeTemplate::kCtaTile && t != QuantizeTemplate::kTranspose) {
    return refuse("raster", 1, "cols is allowed: rows is for thread blocks of tiles");
  }
  if (c.looks_up && !lookup_of(p)) {
    return refuse("lookup", 1, "0 is allowed: no part of the source has few enough values");
  }
  if (c.orders_scales && !may_order_scales(p)) {
    return refuse(
        "scales", "ordered",
        "direct is allowed: ordered is for 1x32 scales of a transposed copy, linear and of "
        "one tensor");
  }
  if (c.orders_scales && (c.tile_rows != kScaleBlock || c.tile_cols != kScaleBlock)) {
    return refuse("scales", "ordered",
                  fmt::format("direct is allowed with tiles of {}x{}: ordered is for 128x128",
                              c.tile_rows, c.tile_cols));
  }
  if (c.halves_together && !may_take_halves_together(p)) {
    return refuse("halves", "together",
                  "apart is allowed: together is for a transposed copy of two expressions, each of "
                  "whole blocks of 128 columns");
  }
  if (c.copies_apart && !may_write_copies_apart(p)) {
    return refuse(
        "copies", "apart",
        "together is allowed: apart is for both copies of one tensor of values, without a "
        "bias gradient");
  }
  if (c.cluster != 0 && !may_hold_tensor(p)) {
    return refuse("cluster", c.cluster,
                  "0 is allowed: others are for row-wise codes of one tensor of values whose one "
                  "scale is current");
  }
  if (c.copies_apart && c.orders_scales) {
    return refuse("copies", "apart", "together is allowed with scales=ordered");
  }
  return {};
}

Status check_template(const QuantizeProblem& p, const QuantizeConfig& c, const DeviceSpec& d) {
  switch (template_of(p)) {
    case QuantizeTemplate::kWarpTile:
    case QuantizeTemplate::kDequantize:
    case QuantizeTemplate::kGather:
      return check_warp_tile(p, c, d);
    case QuantizeTemplate::kCtaTile:
      return check_cta_tile(p, c, d);
    case QuantizeTemplate::kCtaRow:
      return check_cta_row(p, c);
    case QuantizeTemplate::kNormRows:
      return check_norm_rows(p, c);
    case QuantizeTemplate::kRange:
      return check_range(p, c);
    case QuantizeTemplate::kScales:
      return check_scales(c);
    case QuantizeTemplate::kTranspose:
      return check_transpose(p, c);
  }
  return {};
}

Status check_vectors(const QuantizeProblem& p, const QuantizeConfig& c) {
  const int vectors = resources_of(p, c).vectors_per_thread;
  if (vectors >= 1 && vectors <= kMaxVectors) return {};
  return refuse("vectors per thread", vectors,
                fmt::format("1 to {} 16-byte loads of a thread are allowed (the tile over the "
                            "threads that hold it)",
                            kMaxVectors));
}

}  // namespace

Status check_config(const QuantizeProblem& p, const QuantizeConfig& c, const DeviceSpec& d) {
  if (Status s = check_threads(c, d); !s) return s;
  if (Status s = check_options(p, c); !s) return s;
  if (Status s = check_template(p, c, d); !s) return s;
  return check_vectors(p, c);
}

}  // namespace octile
