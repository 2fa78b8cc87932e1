#include "generator/gemm/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "generator/core/text_fields.h"
#include "generator/gemm/axes.h"

namespace octile {
namespace {

constexpr int kWarpgroupThreads = 128;
constexpr int kWarpThreads = 32;
constexpr int kBarrierBytes = 8;

// setmaxnreg counts registers in eights, of which a thread can name 255.
constexpr int kRegisterStep = 8;
constexpr int kMostRegisters = 248;

// Returns the threads of the roles beside the consumers: a warpgroup, or a warp that copies and one
// that writes scales.
int producer_threads(const GemmConfig& c) {
  return c.copies == Copies::kTma ? kWarpgroupThreads : 2 * kWarpThreads;
}

// All threads have as many registers, which no role hands to another. An SM has four partitions,
// each with a quarter of them, which take a thread block's warps in turn.
void share_registers(const GemmConfig& c, const DeviceSpec& device, GemmResources& r) {
  const auto threads = static_cast<int>(round_up(r.threads, std::int64_t{4} * kWarpThreads));
  const int each = device.registers_per_sm / (threads * std::max(c.ctas_per_sm, 1));
  r.consumer_registers = std::min(each / kRegisterStep * kRegisterStep, kMostRegisters);
  r.registers = r.threads * r.consumer_registers;
}

// The registers of an SM are handed out per warpgroup by setmaxnreg. One producer warpgroup of 40
// (or 32, beside three consumers) leaves the consumers the rest in equal shares. Two CTAs an SM
// have half of it each. Some copy threads have more to hold than 32, which three consumers give up,
// and so have scale warps that write the operands of scales. One that gathers them for tcgen05
// holds those of two K-blocks.
void split_registers(const GemmProblem& p, const GemmConfig& c, const DeviceSpec& device,
                     GemmResources& r) {
  const bool takes_more =
      c.mma_factors || (c.consumer_warpgroups == 3 && copy_thread_holds_more(p));
  const bool gathers_scales = tensor_scale_groups(p, c).of_a > 0;
  r.producer_registers = gathers_scales               ? 88
                         : takes_more                 ? 56
                         : c.consumer_warpgroups == 3 ? 32
                                                      : 40;
  const int of_warpgroups =
      device.registers_per_sm / (kWarpgroupThreads * std::max(c.ctas_per_sm, 1));
  const int share = (of_warpgroups - r.producer_registers) / std::max(c.consumer_warpgroups, 1);
  r.consumer_registers = std::min(share / kRegisterStep * kRegisterStep, kMostRegisters);
  r.registers =
      kWarpgroupThreads * (c.consumer_warpgroups * r.consumer_registers + r.producer_registers);
}

// Columns of the panels in which fp32 D is staged: 128 bytes, the widest swizzle.
constexpr int kPanelColumns = 32;
constexpr int kScaleBlock = 128;  // columns of a scale of FP8 D, and of the boxes that store it

// Bytes of the D region. With split K it holds the partial sums from every rank of the cluster, 16
// bytes for each thread, strip and group of 8 columns. Otherwise it holds the data for TMA: the
// tile in 16 bits or in codes, or a panel of 64 rows of fp32 for each consumer.
int staging_bytes(const GemmProblem& p, const GemmConfig& c, int strips) {
  if (c.splits > 1) {
    const auto share = static_cast<int>(ceil_div(columns_of_warp(p, c) / 8, c.splits));
    return c.splits * share * strips * c.consumer_warpgroups * kWarpgroupThreads * 16;
  }
  if (c.store != EpilogueStore::kTma) return 0;
  if (p.d.dtype == DType::kFP32) return c.consumer_warpgroups * 64 * kPanelColumns * 4;
  return c.block_m * c.block_n * size_of(p.d.dtype);
}

// Sets the bytes of a word of scales for each row of A in a stage, beside `scales_of_b` words of B.
void set_block_scale_bytes(const GemmProblem& p, const GemmConfig& c, int scales_of_b,
                           GemmSmemLayout& s) {
  // A group may begin at any row, and copies of scales begin at multiples of four.
  const int before = groups_rows(p) && p.grouping == Grouping::kContiguous ? 4 : 0;
  s.scale_a_stage_bytes = static_cast<int>(round_up(std::int64_t{4} * (c.block_m + before), 128));
  s.scale_b_stage_bytes = static_cast<int>(round_up(std::int64_t{4} * scales_of_b, 16));
}

// Returns the rows of B that an MX scale serves.
int rows_of_mx_scale(const GemmProblem& p) {
  return p.b.granularity == Granularity::k32x32 ? 32 : 1;
}

// The same of MX: fp32 for each of the four blocks of K, those of B in fours, and a word that says
// whether all are usual.
void set_mx_scale_bytes(const GemmProblem& p, const GemmConfig& c, GemmSmemLayout& s) {
  const auto scales_of_b = static_cast<int>(round_up(ceil_div(c.block_n, rows_of_mx_scale(p)), 4));
  s.scale_a_stage_bytes = static_cast<int>(round_up(std::int64_t{16} * c.block_m, 128));
  s.scale_b_stage_bytes = 16 * scales_of_b + 16;
}

// Sets the bytes of scales in a stage.
void set_scale_bytes(const GemmProblem& p, const GemmConfig& c, GemmSmemLayout& s) {
  if (c.mma_factors) {
    constexpr int kRowBytes = 32;  // K of a bf16 instruction
    s.scale_a_stage_bytes = c.block_m * kRowBytes;
    s.scale_b_stage_bytes = c.block_n * kRowBytes;
    return;
  }
  if (const ScaleGroups groups = tensor_scale_groups(p, c); groups.of_a > 0) {
    constexpr int kGroupBytes = 512;  // a word for each of 128 rows
    s.scale_a_stage_bytes = groups.of_a * kGroupBytes;
    s.scale_b_stage_bytes = groups.of_b * kGroupBytes;
    return;
  }
  switch (scheme_of(p)) {
    case Scheme::kBlockB:
      return set_block_scale_bytes(p, c, column_segments(c), s);
    case Scheme::kRowB:
      return set_block_scale_bytes(p, c, c.block_n, s);
    case Scheme::kMx:
      if (!has_scales_inside(p)) return set_mx_scale_bytes(p, c, s);
      return set_block_scale_bytes(p, c, static_cast<int>(ceil_div(c.block_n, rows_of_mx_scale(p))),
                                   s);
    case Scheme::kPerRow:
    case Scheme::kPerTensor:
      return;  // read behind the last K-block
  }
}

// Returns the partial sums of strips that a consumer holds beside its sums. A warp that multiplies
// by itself promotes 16 columns at a time.
int partial_sums(const GemmProblem& p, const GemmConfig& c, int strips) {
  if (c.promote == kPromoteNone) return 0;
  if (has_long_sums(c.promote) && c.unit != MatrixUnit::kTcgen05) return strips;
  if (multiplies_by_warps(c) || c.unit == MatrixUnit::kTcgen05) return 0;
  if (c.mma_factors) return 2;  // and their factors
  switch (scheme_of(p)) {
    case Scheme::kMx:
      return 2;  // always two WGMMA groups in flight
    case Scheme::kBlockB:
    case Scheme::kRowB:
    case Scheme::kPerRow:
    case Scheme::kPerTensor:
      break;
  }
  return c.in_flight;
}

GemmSmemLayout smem_layout(const GemmProblem& p, const GemmConfig& c, int strips) {
  GemmSmemLayout s;
  s.a_stage_bytes = c.block_m * c.block_k;
  s.b_stage_bytes = c.block_n * c.block_k;
  s.d_bytes = staging_bytes(p, c, strips);
  set_scale_bytes(p, c, s);
  // The address of tensor memory lies behind the barriers of its slots, two for each.
  const int of_sums =
      c.unit == MatrixUnit::kTcgen05 ? 2 * tensor_products(p, c) * c.in_flight + 1 : 0;
  const int barriers = 2 * c.stages + 1 + (c.splits > 1 ? 2 : 0) + of_sums;

  s.b_offset = s.a_offset + c.stages * s.a_stage_bytes;
  s.d_offset = s.b_offset + c.stages * s.b_stage_bytes;
  s.scale_a_offset = s.d_offset + s.d_bytes;
  s.scale_b_offset = s.scale_a_offset + c.stages * s.scale_a_stage_bytes;
  s.barrier_offset = s.scale_b_offset + c.stages * s.scale_b_stage_bytes;
  s.group_offset = s.barrier_offset + barriers * kBarrierBytes;
  const auto group_words = static_cast<int>(is_grouped(p) ? 2 * (p.groups + 1) : 0);
  s.total_bytes = s.group_offset + group_words * 4;
  return s;
}

// Returns whether texts and names have the axis.
bool is_shown(const GemmAxis& axis, const GemmConfig& c) {
  return !axis.only_if_set || axis.member.get(c) != axis.member.get(GemmConfig());
}

bool is_numerics(const GemmAxis& axis, const GemmConfig& c) {
  return axis.is_numerics && is_shown(axis, c);
}

// Returns what is done to D beside storing it, and the groups or batch, for the kernel's name:
// "_acc_biasbf16_sentry_masked".
std::string output_options(const GemmProblem& p) {
  return fmt::format("{}{}{}{}{}", p.accumulate ? "_acc" : "",
                     p.bias ? fmt::format("_bias{}", name_of(*p.bias)) : "",
                     p.sentry == Sentry::kNone   ? ""
                     : p.sentry == Sentry::kWord ? "_sentry"
                                                 : "_squares",
                     is_grouped(p) ? fmt::format("_{}", name_of(p.grouping)) : "",
                     p.sums_batch    ? "_sum"
                     : is_batched(p) ? "_batch"
                                     : "");
}

// Returns the type of D for the kernel's name: "bf16", "e4m3_1x128", "e4m3_1x128_pow2".
std::string output_name(const GemmProblem& p) {
  std::string name = to_text(p.d);
  std::ranges::replace(name, ':', '_');
  return name;
}

// The time of a tile of half as many columns over that of a whole tile: it reads as much of A.
constexpr double kTailTime = 0.55;

// Returns the shares with `whole_across` whole tiles in a row of tiles.
TileShares shares_with(std::int64_t whole_across, std::int64_t tiles_m, std::int64_t n,
                       std::int64_t cols, int tail_n, std::int64_t slots) {
  TileShares s;
  s.tiles_m = tiles_m;
  s.whole_across = whole_across;
  const std::int64_t left = std::max<std::int64_t>(n - whole_across * cols, 0);
  s.tail_across = ceil_div(left, std::int64_t{tail_n});
  const std::int64_t whole = tiles_m * whole_across;
  const std::int64_t in_last = whole % slots;
  s.idle = in_last == 0 ? 0 : slots - in_last;
  const std::int64_t behind = std::max<std::int64_t>(tiles_m * s.tail_across - 2 * s.idle, 0);
  s.rounds = static_cast<double>(ceil_div(whole, slots)) +
             kTailTime * static_cast<double>(ceil_div(behind, slots));
  return s;
}

}  // namespace

bool copy_thread_holds_more(const GemmProblem& p) {
  return groups_k(p) || (is_batched(p) && stages_scales_of_columns(scheme_of(p)));
}

int warps_across(const GemmProblem& p, const GemmConfig& c) {
  if (!multiplies_by_warps(c) || is_fp8(p.d.dtype)) return 1;
  int warps = c.block_m == 16 ? 4 : c.block_m == 32 ? 2 : 1;
  const auto shares_evenly = [&] {
    return c.block_n % (8 * warps) == 0 && c.block_n / (8 * warps) >= c.splits;
  };
  while (warps > 1 && !shares_evenly()) warps /= 2;
  return warps;
}

int consumers_across(const GemmProblem& p, const GemmConfig& c) {
  constexpr int kFullRate = 128, kConsumers = 2;  // rows of a product
  constexpr int kLoaded = 16;                     // columns of the narrowest load of sums
  if (c.unit != MatrixUnit::kTcgen05 || c.consumer_warpgroups != kConsumers) return 1;
  const bool has_rows = c.block_m == kFullRate;
  // A warp has whole scale blocks of FP8 D.
  const int unit_of_columns = kConsumers * (is_fp8(p.d.dtype) ? kScaleBlock : kLoaded);
  return has_rows && c.block_n % unit_of_columns == 0 ? kConsumers : 1;
}

int rows_of_consumer(const GemmProblem& p, const GemmConfig& c) {
  return std::max(64, c.block_m * consumers_across(p, c) / std::max(c.consumer_warpgroups, 1));
}
int strips_of_consumer(const GemmProblem& p, const GemmConfig& c) {
  return rows_of_consumer(p, c) / 64;
}
int columns_of_consumer(const GemmProblem& p, const GemmConfig& c) {
  return c.block_n / consumers_across(p, c);
}
int columns_of_warp(const GemmProblem& p, const GemmConfig& c) {
  return columns_of_consumer(p, c) / warps_across(p, c);
}

GemmResources resources_of(const GemmProblem& p, const GemmConfig& c, const DeviceSpec& device) {
  GemmResources r;
  r.threads = kWarpgroupThreads * c.consumer_warpgroups + producer_threads(c);
  if (c.copies == Copies::kTma) {
    split_registers(p, c, device, r);
  } else {
    share_registers(c, device, r);
  }
  const int strips = strips_of_consumer(p, c);
  const int scale_registers = c.hold_scales ? c.block_n / 4 : 0;
  r.accumulator_registers =
      (strips + partial_sums(p, c, strips)) * columns_of_warp(p, c) / 2 + scale_registers;
  r.a_box_rows = c.block_m / c.cluster_n;
  r.b_box_rows = c.tail_n > 0 ? c.tail_n : c.block_n / c.cluster_m;
  r.d_box_rows = std::min(c.block_m, 64);
  const int of_consumer = columns_of_consumer(p, c);
  r.d_box_cols = is_fp8(p.d.dtype)           ? kScaleBlock
                 : p.d.dtype == DType::kFP32 ? kPanelColumns
                 : of_consumer % 64 == 0     ? 64
                 : of_consumer % 32 == 0     ? 32
                                             : 16;

  r.smem = smem_layout(p, c, strips);
  return r;
}

int column_segments(const GemmConfig& c) { return c.block_n / std::gcd(c.block_n, 128); }

int cluster_size(const GemmConfig& c) { return c.cluster_m * c.cluster_n * c.splits; }

int resident_clusters(const GemmConfig& c, int sm_count) {
  const int size = cluster_size(c);
  return std::max(1, sms_in_clusters(size, sm_count) / size) * c.ctas_per_sm;
}

TileShares share_tiles(std::int64_t m, std::int64_t n, std::int64_t rows, std::int64_t cols,
                       int tail_n, std::int64_t slots) {
  const std::int64_t tiles_m = ceil_div(m, rows);
  if (tail_n == 0) {
    TileShares s;
    s.tiles_m = tiles_m;
    s.whole_across = ceil_div(n, cols);
    s.rounds = static_cast<double>(ceil_div(s.tiles(), slots));
    return s;
  }
  // Three counts of whole tiles are tried: all, those that D's columns fill, and those of the full
  // rounds.
  const std::int64_t filled = n / cols;
  const std::int64_t rounds = tiles_m * filled / slots;
  TileShares best = shares_with(ceil_div(n, cols), tiles_m, n, cols, tail_n, slots);
  for (const std::int64_t whole_across : {filled, slots * rounds / tiles_m}) {
    const TileShares other = shares_with(whole_across, tiles_m, n, cols, tail_n, slots);
    if (other.rounds < best.rounds) best = other;
  }
  return best;
}

int tensor_products(const GemmProblem& p, const GemmConfig& c) {
  return c.unit == MatrixUnit::kTcgen05 ? c.consumer_warpgroups / consumers_across(p, c) : 0;
}

ScaleGroups tensor_scale_groups(const GemmProblem& p, const GemmConfig& c) {
  if (c.unit != MatrixUnit::kTcgen05 || !has_scales_inside(p)) return {};
  return {tensor_products(p, c), static_cast<int>(ceil_div(c.block_n, 128))};
}

int tensor_columns(const GemmProblem& p, const GemmConfig& c) {
  constexpr int kGroupColumns = 4;
  const ScaleGroups groups = tensor_scale_groups(p, c);
  return tensor_products(p, c) * c.in_flight * c.block_n +
         c.stages * (groups.of_a + groups.of_b) * kGroupColumns;
}

std::string to_text(const Raster& raster) {
  return fmt::format("{}{}", raster.band, raster.of_columns ? "n" : "");
}

std::string to_text(const GemmConfig& c) { return fields_text(c, is_shown); }

Result<GemmConfig> parse_gemm_config(std::string_view text) {
  GemmConfig config;
  const Status ok = parse_fields(
      text, [&](auto name, auto value) { return parse_axis_field(name, value, config); },
      "GEMM configuration", allowed_fields());
  if (!ok) return tl::unexpected<Error>(ok.error());
  return config;
}

std::string kernel_name(const GemmProblem& p, const GemmConfig& c) {
  std::string name =
      fmt::format("octile_gemm_{}_{}_{}_{}_{}{}", name_of(p.a.dtype), name_of(p.a.granularity),
                  name_of(p.b.dtype), name_of(p.b.granularity), output_name(p), output_options(p));
  for (const GemmAxis& axis : gemm_axes()) {
    if (is_shown(axis, c)) name.append(axis.name_piece).append(value_text(axis, c));
  }
  return name;
}

std::optional<std::string> numerics_difference(const GemmConfig& config, const GemmConfig& other) {
  const std::string own = fields_text(config, is_numerics);
  const std::string others = fields_text(other, is_numerics);
  if (own == others) return std::nullopt;
  return fmt::format("its numerics are {}, those of every token count {}", own, others);
}

}  // namespace octile
