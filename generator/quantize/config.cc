#include "generator/quantize/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "generator/core/text_fields.h"
#include "generator/quantize/fused_source.h"
#include "generator/quantize/grid.h"

namespace octile {
namespace {

constexpr int kWarp = 32;
constexpr int kVectorBytes = 16;   // one load of one thread
constexpr int kCodesTogether = 8;  // of a load, where codes are held
constexpr int kScaleBlock = 128;   // elements of a row that share a scale
constexpr int kShortBlock = 32;
constexpr int kMaxVectors = 16;        // 64 registers of input: more would spill
constexpr int kMaxNormThreads = 512;   // a row's sum has 1024 parts, two of a thread at least
constexpr int kMaxStreamedRows = 64;   // of a warp's tile: longer ones leave SMs idle at the end
constexpr int kStagedVectors = 8;      // rows of a patch on the way to a transposed copy
constexpr int kThreadsPerSm = 2048;    // Hopper, CUDA C++ Programming Guide, compute capability 9.0
constexpr int kShardRows = 8;          // of a warp's tile in shard.cuh
constexpr int kSumColumns = 4 * 1024;  // of a pass over the sums of a row (norm.cuh)
constexpr int kSmemPerSm = 228 * 1024;  // of which every block takes kReservedSmem beside its own
constexpr int kReservedSmem = 1024;
constexpr std::int64_t kWord = 4;  // bytes of a maximum, of a sum

std::string_view output_name(QuantizeOutput o) {
  return o == QuantizeOutput::kRowwise ? "row" : o == QuantizeOutput::kTransposed ? "col" : "both";
}

// What is special about where the scale or the rows come from.
std::string_view step_name(const QuantizeProblem& p) {
  if (p.shard == ShardStep::kAmax) return "_shard_amax";
  if (p.shard == ShardStep::kCast) return "_shard_cast";
  const bool delayed = p.policy == ScalePolicy::kDelayed;
  switch (p.grouping) {
    case Grouping::kContiguous:
      return delayed ? "_delayed_contiguous" : "_contiguous";
    case Grouping::kMasked:
      return delayed ? "_delayed_masked" : "_masked";
    default:
      return delayed ? "_delayed" : "";
  }
}

// "silu_mul_"; "expression_" for a caller's own; nothing for x itself.
std::string source_name(const QuantizeProblem& p) {
  if (p.source.empty()) return "";
  const bool is_word = p.source.find_first_of("(,;") == std::string::npos;
  return is_word ? p.source + "_" : "expression_";
}

// Of the 16 bytes a lane loads, or, dequantising, stores.
int elements_per_vector(const QuantizeProblem& p) {
  switch (p.operation) {
    case QuantizeOperation::kQuantize:
      return holds_codes(p) ? kCodesTogether : kVectorBytes / size_of(source_type(p));
    case QuantizeOperation::kDequantize:
      return kVectorBytes / size_of(p.q.dtype);
    case QuantizeOperation::kTranspose:
      return kVectorBytes;
  }
  return 1;
}

std::string_view first_pass_blocks_name(FirstPass pass) {
  switch (pass) {
    case FirstPass::kTensor:
      return "tensor";
    case FirstPass::kLines:
      return "lines";
    case FirstPass::kGroups:
      return "groups";
    case FirstPass::kNone:
      return "";
  }
  return "";
}

bool parse_field(std::string_view name, std::string_view value, QuantizeConfig& c) {
  if (name == "threads") return parse_int(value, c.threads);
  if (name == "per_sm") return parse_int(value, c.blocks_per_sm);
  if (name == "raster") {
    c.rows_fastest = value == "rows";
    return value == "rows" || value == "cols";
  }
  if (name == "lookup") {
    c.looks_up = value == "1";
    return value == "0" || value == "1";
  }
  if (name == "scales") {
    c.orders_scales = value == "ordered";
    return value == "ordered" || value == "direct";
  }
  if (name == "halves") {
    c.halves_together = value == "together";
    return value == "together" || value == "apart";
  }
  return name == "tile" && parse_extents(value, {&c.tile_rows, &c.tile_cols});
}

bool is_power_of_two(int v) { return v > 0 && std::has_single_bit(static_cast<unsigned>(v)); }

template <typename Value>
Status refuse(std::string_view field, const Value& value, std::string_view rule) {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("quantise configuration: {} is {}; {}", field, value, rule));
}

// Of thread blocks with so much static shared memory beside the dynamic.
Status check_resident_smem(const QuantizeProblem& p, const QuantizeConfig& c, int static_bytes,
                           std::string_view what) {
  const int bytes = resources_of(p, c).smem_bytes + static_bytes;
  if (c.blocks_per_sm * (bytes + kReservedSmem) <= kSmemPerSm) return {};
  return refuse(
      "per_sm", c.blocks_per_sm,
      fmt::format("the {} bytes of a block, {}, pass the shared memory of an SM", bytes, what));
}

Status check_segments(const QuantizeProblem& p, const QuantizeConfig& c) {
  if (!is_power_of_two(c.tile_rows)) {
    return refuse("tile rows", c.tile_rows, "a power of two is allowed");
  }
  if (streams_rows(p)) {
    if (c.tile_rows > kMaxStreamedRows) {
      return refuse("tile rows", c.tile_rows, "a power of two up to 64 is allowed");
    }
    if (c.tile_cols != streamed_columns(p)) {
      return refuse("tile columns", c.tile_cols,
                    takes_both_halves(p) ? "512 are allowed, the 256 a warp loads of either half"
                                         : "the 256 columns a warp loads are allowed");
    }
    if (c.looks_up) return check_resident_smem(p, c, 0, "its table and its rows on the way");
    if (ring_bytes(p, c) > kMaxStaticSmem) {
      return refuse("threads", c.threads, "their rows on the way pass the static shared memory");
    }
    return {};
  }
  const int warp_cols = warp_columns(p);
  if (!is_power_of_two(c.tile_cols) || c.tile_cols % warp_cols != 0) {
    return refuse(
        "tile columns", c.tile_cols,
        fmt::format("a power of two times the {} columns a warp loads is allowed", warp_cols));
  }
  return {};
}

Status check_tiles(const QuantizeProblem& p, const QuantizeConfig& c) {
  const bool staged = has_transposed(p.output);
  const bool tall = staged && !p.bias_gradient;  // bias gradients are summed over 128 rows
  if (c.tile_rows != kScaleBlock && (!tall || c.tile_rows != 2 * kScaleBlock)) {
    return refuse("tile rows", c.tile_rows, tall ? "128 and 256 are allowed" : "128 is allowed");
  }
  const bool narrow = takes_half_width_tiles(p);
  if (c.tile_cols != kScaleBlock && (!narrow || c.tile_cols != kScaleBlock / 2)) {
    return refuse("tile columns", c.tile_cols,
                  narrow ? "64 and 128 are allowed" : "128 is allowed");
  }
  const int vectors = resources_of(p, c).vectors_per_thread;
  if (p.bias_gradient && vectors != kStagedVectors) {
    return refuse(
        "vectors per thread", vectors,
        fmt::format("{} are allowed (the tile over the threads that hold it)", kStagedVectors));
  }
  const bool patches = staged || p.q.granularity == Granularity::k32x32;
  if (patches && vectors != kStagedVectors && vectors != kStagedVectors / 2) {
    return refuse("vectors per thread", vectors,
                  fmt::format("{} and {} are allowed (the tile over the threads that hold it)",
                              kStagedVectors / 2, kStagedVectors));
  }
  // The staged codes and the encode scales of its columns, at most one for 32 rows.
  const int smem = c.tile_rows * kScaleBlock + c.tile_rows / 32 * kScaleBlock * 4;
  if (staged && smem > kMaxStaticSmem) {
    return refuse("tile rows", c.tile_rows, "the staged codes pass the static shared memory");
  }
  if (!c.halves_together) return {};
  constexpr int kOthers = 4096;  // scales of rows, sums of columns
  return check_resident_smem(p, c, smem + kOthers, "its codes and the values that wait");
}

Status check_shard(const QuantizeProblem& p, const QuantizeConfig& c) {
  const int warp_cols = warp_columns(p);
  if (c.tile_rows != kShardRows) return refuse("tile rows", c.tile_rows, "8 is allowed");
  if (c.tile_cols == warp_cols) return {};
  return refuse("tile columns", c.tile_cols,
                fmt::format("the {} columns a warp loads are allowed", warp_cols));
}

Status check_rows(const QuantizeProblem& p, const QuantizeConfig& c) {
  const bool norms = template_of(p) == QuantizeTemplate::kNormRows;
  const int step = c.threads * (norms ? kStreamedElements : elements_per_vector(p));
  if (norms && (c.tile_rows < 1 || c.tile_rows > kMaxStreamedRows)) {
    return refuse("tile rows", c.tile_rows, "1 to 64 are allowed");
  }
  if (!norms && c.tile_rows != 1) return refuse("tile rows", c.tile_rows, "1 is allowed");
  if (norms && c.threads > kMaxNormThreads) {
    return refuse("threads", c.threads, "a power of two up to 512 is allowed");
  }
  if (c.tile_cols % step != 0) {
    return refuse(
        "tile columns", c.tile_cols,
        fmt::format("a multiple of the {} columns a thread block loads is allowed", step));
  }
  if (!norms || c.tile_cols >= p.cols || c.tile_cols % kSumColumns == 0) return {};
  return refuse("tile columns", c.tile_cols,
                fmt::format("all {} columns, or a multiple of {}, are allowed: a row's sum has one "
                            "order",
                            p.cols, kSumColumns));
}

Status check_transpose(const QuantizeProblem& p, const QuantizeConfig& c) {
  const bool known = c.tile_cols == kScaleBlock || c.tile_cols == 2 * kScaleBlock;
  if (!known) return refuse("tile columns", c.tile_cols, "128 and 256 are allowed");
  if (c.tile_rows != kScaleBlock && c.tile_rows != 2 * kScaleBlock) {
    return refuse("tile rows", c.tile_rows, "128 and 256 are allowed");
  }
  if (c.tile_rows * c.tile_cols > kMaxStaticSmem) {
    return refuse("tile rows", c.tile_rows, "the staged codes pass the static shared memory");
  }
  const int vectors = resources_of(p, c).vectors_per_thread;
  if (vectors != kStagedVectors) {
    return refuse(
        "vectors per thread", vectors,
        fmt::format("{} are allowed (the tile over the threads that hold it)", kStagedVectors));
  }
  return {};
}

Status check_template(const QuantizeProblem& p, const QuantizeConfig& c) {
  switch (template_of(p)) {
    case QuantizeTemplate::kSegments:
    case QuantizeTemplate::kDequantize:
      return check_segments(p, c);
    case QuantizeTemplate::kTiles:
      return check_tiles(p, c);
    case QuantizeTemplate::kRows:
    case QuantizeTemplate::kNormRows:
      return check_rows(p, c);
    case QuantizeTemplate::kShard:
      return check_shard(p, c);
    case QuantizeTemplate::kTranspose:
      return check_transpose(p, c);
  }
  return {};
}

// "e4m3_1x128_f32", or "bf16" of a type without scales: of kernels' names.
std::string type_name(const TensorType& t) {
  if (t.granularity == Granularity::kNone) return std::string(name_of(t.dtype));
  return fmt::format("{}_{}_{}", name_of(t.dtype), name_of(t.granularity), name_of(t.scale));
}

// Warps hold tiles of their own.
bool works_by_warps(const QuantizeProblem& p) {
  const QuantizeTemplate t = template_of(p);
  return t == QuantizeTemplate::kSegments || t == QuantizeTemplate::kShard ||
         t == QuantizeTemplate::kDequantize;
}

}  // namespace

DType source_type(const QuantizeProblem& p) {
  return p.source.empty() && !is_fp8(p.x.dtype) ? p.x.dtype : DType::kFP32;
}

bool holds_codes(const QuantizeProblem& p) {
  return is_fp8(p.x.dtype) && p.operation == QuantizeOperation::kQuantize &&
         template_of(p) == QuantizeTemplate::kTiles;
}

QuantizeTemplate template_of(const QuantizeProblem& p) {
  if (p.shard != ShardStep::kNone) return QuantizeTemplate::kShard;
  if (p.operation == QuantizeOperation::kDequantize) return QuantizeTemplate::kDequantize;
  if (p.operation == QuantizeOperation::kTranspose) return QuantizeTemplate::kTranspose;
  if (p.bias_gradient) return QuantizeTemplate::kTiles;
  if (has_transposed(p.output)) return QuantizeTemplate::kTiles;
  const bool norms = source_shape(p.source).rms_norm;
  switch (p.q.granularity) {
    case Granularity::k128x128:
    case Granularity::k32x32:
      return QuantizeTemplate::kTiles;
    case Granularity::kPerRow:
      return norms ? QuantizeTemplate::kNormRows : QuantizeTemplate::kRows;
    case Granularity::k1x128:
    case Granularity::k1x32:
      return norms ? QuantizeTemplate::kNormRows : QuantizeTemplate::kSegments;
    default:
      return QuantizeTemplate::kSegments;
  }
}

bool takes_half_width_tiles(const QuantizeProblem& p) {
  return template_of(p) == QuantizeTemplate::kTiles && p.source.empty() &&
         p.grouping == Grouping::kNone && !p.bias_gradient;
}

FirstPass first_pass_of(const QuantizeProblem& p) {
  if (p.operation != QuantizeOperation::kQuantize) return FirstPass::kNone;
  if (p.policy == ScalePolicy::kDelayed || p.shard != ShardStep::kNone) return FirstPass::kNone;
  if (p.q.granularity == Granularity::kPerTensor) {
    return p.grouping == Grouping::kNone ? FirstPass::kTensor : FirstPass::kGroups;
  }
  // Thread blocks of tiles hold no whole row.
  const bool lines =
      p.q.granularity == Granularity::kPerRow && template_of(p) == QuantizeTemplate::kTiles;
  return lines ? FirstPass::kLines : FirstPass::kNone;
}

GroupWalk group_walk_of(const QuantizeProblem& p) {
  if (p.grouping == Grouping::kNone) return GroupWalk::kNone;
  if (p.grouping == Grouping::kMasked) return GroupWalk::kMasked;
  const bool by_group = p.q.granularity == Granularity::kPerTensor || has_transposed(p.output);
  return by_group ? GroupWalk::kGroupByGroup : GroupWalk::kAsOne;
}

bool streams_rows(const QuantizeProblem& p) {
  return !p.source.empty() && template_of(p) == QuantizeTemplate::kSegments;
}

bool takes_both_halves(const QuantizeProblem& p) {
  if (!streams_rows(p) || !source_shape(p.source).halves) return false;
  const int block = p.q.granularity == Granularity::k1x128 ? kScaleBlock : kWarp;
  return p.cols / 2 % block == 0;
}

bool may_take_halves_together(const QuantizeProblem& p) {
  return template_of(p) == QuantizeTemplate::kTiles && has_transposed(p.output) &&
         source_shape(p.source).halves && p.cols / 2 % kScaleBlock == 0;
}

int streamed_columns(const QuantizeProblem& p) {
  return kWarp * kStreamedElements * (takes_both_halves(p) ? 2 : 1);
}

int warp_columns(const QuantizeProblem& p) { return kWarp * elements_per_vector(p); }

int step_rows(const QuantizeProblem& p, const QuantizeConfig& c) {
  constexpr int kMaskedRows = 8;  // loads of a thread
  if (template_of(p) == QuantizeTemplate::kNormRows) return 1;
  if (streams_rows(p)) {
    const int rows = takes_both_halves(p) ? 2 : 4;  // 32 values of a thread
    return std::min(rows, c.tile_rows);
  }
  const bool masked =
      template_of(p) == QuantizeTemplate::kSegments && p.grouping == Grouping::kMasked;
  return masked ? std::min(kMaskedRows, c.tile_rows) : c.tile_rows;
}

std::shared_ptr<const Lookup> lookup_of(const QuantizeProblem& p) {
  const bool streams = streams_rows(p) && p.grouping == Grouping::kNone;
  if (!streams || p.x.dtype != DType::kBF16) return nullptr;
  return lookup_of(p.source);
}

int ring_bytes(const QuantizeProblem& p, const QuantizeConfig& c) {
  if (!streams_rows(p)) return 0;
  const int row = source_shape(p.source).inputs * kWarp * kStreamedElements * size_of(p.x.dtype);
  return c.threads / kWarp * 2 * step_rows(p, c) * row;
}

QuantizeResources resources_of(const QuantizeProblem& p, const QuantizeConfig& c) {
  QuantizeResources r;
  r.threads = c.threads;
  const int sharers = works_by_warps(p) ? kWarp : c.threads;
  const std::int64_t elements = std::int64_t{step_rows(p, c)} * c.tile_cols;
  if (c.looks_up) r.smem_bytes = kLookupBytes + ring_bytes(p, c);
  r.vectors_per_thread =
      static_cast<int>(elements / (std::int64_t{sharers} * elements_per_vector(p)));
  if (c.halves_together) r.smem_bytes = c.threads * r.vectors_per_thread * kVectorBytes;
  return r;
}

Status check_config(const QuantizeProblem& p, const QuantizeConfig& c) {
  if (!is_power_of_two(c.threads) || c.threads < kWarp || c.threads > 1024) {
    return refuse("threads", c.threads, "a power of two from 32 to 1024 is allowed");
  }
  if (c.blocks_per_sm < 1 || c.blocks_per_sm * c.threads > kThreadsPerSm) {
    return refuse(
        "per_sm", c.blocks_per_sm,
        fmt::format("1 to {} is allowed with {} threads", kThreadsPerSm / c.threads, c.threads));
  }
  const QuantizeTemplate t = template_of(p);
  if (c.rows_fastest && t != QuantizeTemplate::kTiles && t != QuantizeTemplate::kTranspose) {
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
  if (Status s = check_template(p, c); !s) return s;
  const int vectors = resources_of(p, c).vectors_per_thread;
  if (vectors < 1 || vectors > kMaxVectors) {
    return refuse("vectors per thread", vectors,
                  fmt::format("1 to {} 16-byte loads of a thread are allowed (the tile over the "
                              "threads that hold it)",
                              kMaxVectors));
  }
  return {};
}

Result<std::int64_t> launch_blocks(const QuantizeProblem& p, const QuantizeConfig& c,
                                   std::int64_t rows, std::int64_t groups) {
  return within_a_grid(rows, p.cols, grid_of(p, c, 1).tiles.blocks(rows, groups));
}

bool may_order_scales(const QuantizeProblem& p) {
  return template_of(p) == QuantizeTemplate::kTiles && has_transposed(p.output) &&
         p.q.granularity == Granularity::k1x32 && p.q.scale == ScaleFormat::kE8M0 &&
         p.scale_layout == ScaleLayout::kLinear && p.grouping == Grouping::kNone;
}

OrderBlocks order_blocks(const QuantizeProblem& p, const QuantizeKernelArgs& args) {
  // OrderedScales::order_blocks (templates/quantize/ordered_scales.cuh), `extent` values a run.
  const auto blocks = [](const void* scales, std::int64_t outer, std::int64_t extent,
                         std::int64_t ld) {
    const auto bits = reinterpret_cast<std::uintptr_t>(scales) | static_cast<std::uintptr_t>(ld);
    if (bits % kOrderAlign != 0) return std::int64_t{0};
    const std::int64_t groups = ceil_div(extent, kShortBlock) / kOrderAcross;
    return outer / kOrderRuns * ceil_div(groups, kOrderGroupsTogether);
  };
  OrderBlocks all;
  if (has_rowwise(p.output)) {
    all.of_rows = blocks(args.scale, args.rows, args.cols, args.scale_ld);
  }
  if (has_transposed(p.output)) {
    all.of_columns = blocks(args.scale_transposed, args.cols, args.rows, args.scale_ld_transposed);
  }
  return all;
}

Result<std::int64_t> shard_blocks(const QuantizeProblem& p, const QuantizeConfig& c,
                                  const QuantizeKernelArgs& args) {
  const TileGrid tiles = grid_of(p, c, 1).tiles;
  return within_a_grid(args.rows, p.cols, tiles.shard_blocks(args.shard_row, args.shard_last_row));
}

int first_pass_blocks_per_sm(const QuantizeProblem& p) {
  // What its registers allow.
  const bool lines = first_pass_of(p) == FirstPass::kLines;
  if (lines && p.x.dtype == DType::kFP32 && source_shape(p.source).inputs > 3) return 1;
  const bool groups_of_wide =
      first_pass_of(p) == FirstPass::kGroups && (is_fp8(p.x.dtype) || p.x.dtype == DType::kFP32);
  return lines || groups_of_wide || !p.source.empty() ? 2 : 3;
}

int first_pass_rows(const QuantizeProblem& p) {
  constexpr int kRows = 8, kRowsOfGroups = 32;
  return first_pass_of(p) == FirstPass::kGroups ? kRowsOfGroups : kRows;
}

std::int64_t whole_line_rows(const QuantizeProblem& p) {
  // One thread block reads 8192 elements at a time: of more columns it would be waited for.
  constexpr std::int64_t kMostColumns = 32768;
  return p.cols <= kMostColumns ? kStripeRows : 0;
}

bool first_pass_raises(const QuantizeProblem& p, std::int64_t rows) {
  return first_pass_grid(p, 1).raises(rows);
}

Result<std::int64_t> first_pass_blocks(const QuantizeProblem& p, std::int64_t rows, int sm_count,
                                       std::int64_t groups) {
  return within_a_grid(rows, p.cols, first_pass_grid(p, sm_count).blocks(rows, groups));
}

QuantizeWorkspace workspace_of(const QuantizeProblem& p, int sm_count) {
  QuantizeWorkspace w;
  w.first_pass = first_pass_of(p);
  switch (w.first_pass) {
    case FirstPass::kTensor:
      w.maxima_fixed_bytes = kWord * first_pass_grid(p, sm_count).most_partials;
      break;
    case FirstPass::kLines:
      w.maxima_fixed_bytes = kWord * p.cols;
      w.maxima_bytes_per_row = kWord;
      break;
    case FirstPass::kGroups:
      w.maxima_fixed_bytes = kWord * kMostGroups;
      break;
    case FirstPass::kNone:
      break;
  }
  if (p.bias_gradient) w.sums_bytes = kWord * p.cols;
  return w;
}

std::int64_t QuantizeWorkspace::bias_offset(std::int64_t rows) const {
  return round_up(maxima_bytes(rows), kVectorBytes);
}

std::int64_t QuantizeWorkspace::bytes(std::int64_t rows) const {
  if (sums_bytes == 0) return maxima_bytes(rows);
  return bias_offset(rows) + ceil_div(rows, kScaleBlock) * sums_bytes;
}

std::string to_text(const QuantizeConfig& c) {
  return fmt::format("tile={}x{} threads={} per_sm={}{}{}{}{}", c.tile_rows, c.tile_cols, c.threads,
                     c.blocks_per_sm, c.rows_fastest ? " raster=rows" : "",
                     c.looks_up ? " lookup=1" : "", c.orders_scales ? " scales=ordered" : "",
                     c.halves_together ? " halves=together" : "");
}

Result<QuantizeConfig> parse_quantize_config(std::string_view text) {
  QuantizeConfig config;
  const Status ok = parse_fields(
      text, [&](auto name, auto value) { return parse_field(name, value, config); },
      "quantise configuration",
      "tile=ROWSxCOLS, threads=N, per_sm=N, raster=rows|cols, lookup=0|1, "
      "scales=direct|ordered, halves=apart|together");
  if (!ok) return tl::unexpected<Error>(ok.error());
  return config;
}

std::string kernel_name(const QuantizeProblem& p, const QuantizeConfig& c) {
  const std::string what =
      p.operation == QuantizeOperation::kTranspose
          ? type_name(p.q)
          : fmt::format("{}{}_{}{}{}{}_{}", source_name(p), type_name(p.x), type_name(p.q),
                        p.e8m0_rounding == E8M0Rounding::kOcpFloor ? "floor" : "",
                        p.scale_layout == ScaleLayout::kSwizzled ? "swizzled" : "", step_name(p),
                        output_name(p.output));
  return fmt::format("octile_{}_{}_t{}x{}_w{}_occ{}{}{}{}{}", name_of(p.operation), what,
                     c.tile_rows, c.tile_cols, c.threads / kWarp, c.blocks_per_sm,
                     c.rows_fastest ? "_down" : "", c.looks_up ? "_lookup" : "",
                     c.orders_scales ? "_ordered" : "", c.halves_together ? "_halves" : "");
}

std::vector<Companion> companions_of(const QuantizeProblem& p, const QuantizeConfig& c) {
  std::vector<Companion> all;
  const bool norms = source_shape(p.source).rms_norm;
  if (norms && template_of(p) != QuantizeTemplate::kNormRows) all.push_back(Companion::kRowNorm);
  if (first_pass_of(p) != FirstPass::kNone) all.push_back(Companion::kFirstPass);
  if (p.policy == ScalePolicy::kDelayed) all.push_back(Companion::kScaleUpdate);
  if (p.bias_gradient) all.push_back(Companion::kBiasSum);
  if (c.orders_scales) all.push_back(Companion::kScaleOrder);
  return all;
}

std::string companion_name(const QuantizeProblem& p, Companion companion) {
  switch (companion) {
    case Companion::kFirstPass:
      return fmt::format("octile_amax_{}{}_{}", source_name(p), type_name(p.x),
                         first_pass_blocks_name(first_pass_of(p)));
    case Companion::kScaleUpdate:
      return fmt::format("octile_scale_update_{}_{}", name_of(p.q.dtype), name_of(p.q.scale));
    case Companion::kRowNorm:
      return fmt::format("octile_row_norm_{}", name_of(p.x.dtype));
    case Companion::kBiasSum:
      return "octile_bias_sum";
    case Companion::kScaleOrder:
      return fmt::format("octile_scale_order_{}", output_name(p.output));
  }
  return "";
}

}  // namespace octile
