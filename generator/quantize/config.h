// How the kernels of one quantise problem work it: which template, what tile, how many threads. The
// only place that derives them; the emitted source asserts that the device's arithmetic agrees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "generator/core/error.h"
#include "generator/quantize/lookup.h"
#include "generator/quantize/problem.h"

namespace octile {

// The templates under templates/quantize that write a tensor.
enum class QuantizeTemplate : int {
  kSegments,    // warps, no shared memory: row-wise 1x128, 1x32 and per tensor
  kTiles,       // thread blocks: whatever has square blocks or a transposed output
  kRows,        // a thread block a row: row-wise, per row
  kShard,       // warps, over a flat range of the tensor
  kDequantize,  // warps: codes times scales
  kTranspose,   // thread blocks: codes as they are
  kNormRows,    // a thread block a row, which it norms too: RMSNorm, blocks within rows
};
QuantizeTemplate template_of(const QuantizeProblem&);

// The element type that amax and cast see: x's, or fp32 where the source is computed.
DType source_type(const QuantizeProblem&);

// Whether a thread holds codes beside their scales, of which it makes the values wherever they are
// used: tiles of what is quantised again.
bool holds_codes(const QuantizeProblem&);

// Whether tiles may be narrower than a scale's block: thread blocks side by side then read all that
// it covers, each for itself. Not where that is to be computed twice, nor of groups and bias
// gradients, for lack of a measurement.
bool takes_half_width_tiles(const QuantizeProblem&);

// The kernel that must find maxima before, where a scale's block is longer than a tile.
enum class FirstPass : int {
  kNone,
  kTensor,  // partial maxima, one a thread block
  kLines,   // of every row and column; cleared first where there are many rows
  kGroups,  // of every group; likewise
};
FirstPass first_pass_of(const QuantizeProblem&);

// The kernels beside the one that writes codes, in the same source.
enum class Companion : int {
  kFirstPass,    // maxima, before it
  kScaleUpdate,  // of delayed scaling: a call of its own
  kRowNorm,      // 1 / rms of the rows, before the others
  kBiasSum,      // adds up the columns' sums, after it
  kScaleOrder,   // puts scales in order that left by whole sectors, after it
};
inline constexpr std::size_t kCompanions = 5;
std::string companion_name(const QuantizeProblem&, Companion);

// How the tiles of a kernel meet the groups; values are those of templates/quantize/groups.cuh.
enum class GroupWalk : int {
  kNone = 0,
  kGroupByGroup = 1,  // packed, where a scale or a place depends on the group
  kMasked = 2,
  kAsOne = 3,  // packed, where none does: one tensor of as many rows as the offsets say
};
GroupWalk group_walk_of(const QuantizeProblem&);

// More groups than a mixture of experts has. The workspace of a run holds a maximum of each.
inline constexpr std::int64_t kMostGroups = 65536;

// Static, of a thread block. CUDA C++ Programming Guide, compute capability 9.0.
inline constexpr int kMaxStaticSmem = 48 * 1024;
// Columns of a thread and load where rows come through shared memory.
inline constexpr int kStreamedElements = 8;

struct QuantizeConfig {
  // What is held in registers at once, so that amax and cast share one read: by one warp in
  // kSegments and kDequantize (a warp is its own tile), by one thread block in the others.
  int tile_rows = 8;
  int tile_cols = 256;
  int threads = 256;      // per block
  int blocks_per_sm = 4;  // residency promised to the compiler, which bounds registers
  bool rows_fastest =
      false;              // kTiles, kTranspose: neighbouring blocks are neighbours down the rows
  bool looks_up = false;  // kSegments: a part of the source is read from a table
  bool orders_scales = false;  // kTiles: scales leave by whole sectors, and are put in order behind
  bool halves_together = false;  // kTiles: a thread block has the same columns of both halves
  friend bool operator==(const QuantizeConfig&, const QuantizeConfig&) = default;
};

// The kernels that a configuration of the problem needs beside its own, in order of their values.
std::vector<Companion> companions_of(const QuantizeProblem&, const QuantizeConfig&);

struct QuantizeKernelArgs;

struct QuantizeResources {
  int threads = 0;
  int smem_bytes = 0;          // dynamic: the table and what streams beside it, or values that wait
  int vectors_per_thread = 0;  // independent 16-byte loads of one thread: its bytes in flight
};

QuantizeResources resources_of(const QuantizeProblem&, const QuantizeConfig&);

// Whether a warp walks down its tile, step_rows() rows at a time, the next on their way to shared
// memory while those are worked on: where the values are computed, which takes longer than a load.
bool streams_rows(const QuantizeProblem&);
// Whether its tile is the same columns of both halves of the rows: two expressions of the same
// inputs, which are read once and share what they have in common. Where no scale's block is of
// both.
bool takes_both_halves(const QuantizeProblem&);
// Whether tiles with a transposed copy may be worked so, one half after the other, the right one's
// values waiting in shared memory meanwhile.
bool may_take_halves_together(const QuantizeProblem&);
int streamed_columns(const QuantizeProblem&);  // of its tile
// Columns of one load of a warp: of the narrowest tile where warps work alone and do not stream.
int warp_columns(const QuantizeProblem&);
int step_rows(const QuantizeProblem&, const QuantizeConfig&);
// Whether scales may leave 32 bytes at a time, in places of others, until another kernel puts them
// in order: where they are bytes of which a tile has four of every run. Which of them do, the
// arrays of a launch decide (order_blocks).
bool may_order_scales(const QuantizeProblem&);
// Thread blocks of that kernel, those of the row-wise scales first. Of an array none, whose scales
// leave one by one, where its address or its stride is no multiple of kOrderAlign bytes (a packed
// stride is a run's length / 32, rounded up to 4: one of a quarter of all lengths), or where it has
// no kOrderRuns runs of kOrderAcross scales.
struct OrderBlocks {
  std::int64_t of_rows = 0;
  std::int64_t of_columns = 0;
  std::int64_t all() const { return of_rows + of_columns; }
};
OrderBlocks order_blocks(const QuantizeProblem&, const QuantizeKernelArgs&);
// As OrderedScales has them (templates/quantize/ordered_scales.cuh), which the emitted source
// asserts.
inline constexpr int kOrderAlign = 16;          // bytes
inline constexpr int kOrderRuns = 128;          // of a tile
inline constexpr int kOrderAcross = 32;         // scales of a run, that tiles share
inline constexpr int kOrderGroupsTogether = 8;  // of such tiles, that a thread block puts in order
// The part of the source that a table may hold; null where there is none.
std::shared_ptr<const Lookup> lookup_of(const QuantizeProblem&);
// Of the thread block: two steps' inputs a warp.
int ring_bytes(const QuantizeProblem&, const QuantizeConfig&);

// Refuses a configuration no kernel can be emitted for, naming the field, its value and the rule.
Status check_config(const QuantizeProblem&, const QuantizeConfig&);

// Thread blocks a launch over `rows` rows needs, all along x; 0 where there is nothing to do (do
// not launch then). If a table is looked up, those of one wave do all (QuantizeGrid). Of
// `groups` groups it is an upper bound: blocks without a tile leave at once. Errors:
// kInvalidArgument where the count passes the grid's 2^31 - 1.
Result<std::int64_t> launch_blocks(const QuantizeProblem&, const QuantizeConfig&, std::int64_t rows,
                                   std::int64_t groups = 0);
// The same over a flat range, of which the kernel's arguments say the rows.
Result<std::int64_t> shard_blocks(const QuantizeProblem&, const QuantizeConfig&,
                                  const QuantizeKernelArgs&);

// Of the first pass: its threads and residency (not tuned: it only reads), and its thread blocks.
inline constexpr int kUpdateThreads = 128;  // of the scale update
inline constexpr int kFirstPassThreads = 256;
inline constexpr int kNormThreads = 256;   // of the kernel that norms rows, a thread block each
inline constexpr int kOrderThreads = 512;  // of the kernel that orders scales
inline constexpr int kBiasThreads = 32;    // of the sum of bias gradients, a thread a column
int first_pass_blocks_per_sm(const QuantizeProblem&);
int first_pass_rows(const QuantizeProblem&);  // of a warp, where it finds a tensor's or a group's
inline constexpr int kStripeRows = 512;       // of a thread block, where it finds lines'
inline constexpr int kLineLanes = 8;          // along a row there, where it reads whole columns
std::int64_t whole_line_rows(const QuantizeProblem& p);  // up to which a line is one thread block's
// Whether it raises maxima, which are cleared before: not where each is one thread block's.
bool first_pass_raises(const QuantizeProblem&, std::int64_t rows);
Result<std::int64_t> first_pass_blocks(const QuantizeProblem&, std::int64_t rows, int sm_count,
                                       std::int64_t groups = 0);

// The workspace of a run: the maxima of the first pass, then, from bias_offset on, the sums of
// every 128 rows' columns. What a problem and a device settle of it, so that a launch has nothing
// left to do but this arithmetic.
struct QuantizeWorkspace {
  FirstPass first_pass = FirstPass::kNone;
  std::int64_t maxima_fixed_bytes = 0;    // whatever the rows
  std::int64_t maxima_bytes_per_row = 0;  // and for each of them
  std::int64_t sums_bytes = 0;            // of 128 rows; 0: no bias gradient

  std::int64_t maxima_bytes(std::int64_t rows) const {
    return maxima_fixed_bytes + maxima_bytes_per_row * rows;
  }
  std::int64_t bias_offset(std::int64_t rows) const;
  std::int64_t bytes(std::int64_t rows) const;
};
QuantizeWorkspace workspace_of(const QuantizeProblem&, int sm_count);

// The kernels' only parameter, by value; templates/quantize/elements.cuh has the same struct and
// asserts its size. Device pointers. Strides in elements, all filled in by the launcher (no 0 =
// default here). Scales as the layout table says, of the plan's format.
struct QuantizeKernelArgs {
  const void* x = nullptr;           // [rows][ldx]
  void* q = nullptr;                 // [rows][ldq]
  void* scale = nullptr;             // runs scale_ld apart
  void* q_transposed = nullptr;      // [cols][ldq_transposed]
  void* scale_transposed = nullptr;  // runs scale_ld_transposed apart
  std::uint32_t* maxima = nullptr;   // what the first pass found
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t ldx = 0;
  std::int64_t ldq = 0;
  std::int64_t scale_ld = 0;
  std::int64_t ldq_transposed = 0;
  std::int64_t scale_ld_transposed = 0;
  std::int64_t partials = 0;            // maxima of a tensor: thread blocks of its first pass
  const float* encode_scale = nullptr;  // delayed scaling: the encode scale
  std::uint32_t* amax = nullptr;  // where not null, raised to the bits of a tensor's fp32 amax
  const std::uint32_t* skip = nullptr;  // where not null and not 0, nothing is written
  const void* x_scale = nullptr;        // of FP8 x
  std::int64_t x_scale_ld = 0;
  const void* more[3] = {};      // NOLINT(modernize-avoid-c-arrays): as the device has it; x1 to x3
  std::int64_t more_ld[3] = {};  // NOLINT(modernize-avoid-c-arrays)
  float* rstd = nullptr;
  float* bias_gradient = nullptr;
  float* bias_partials = nullptr;  // in the workspace
  float* tap = nullptr;
  const std::int32_t* groups_at = nullptr;  // offsets of contiguous groups, counts of masked ones
  std::int64_t groups = 0;
  std::int64_t scale_group_bytes = 0;  // from one group's scales to the next's
  // A shard's first element, its last row, and the column behind its last element there.
  std::int64_t shard_row = 0;
  std::int64_t shard_col = 0;
  std::int64_t shard_last_row = 0;
  std::int64_t shard_end_col = 0;
  std::uint32_t* shard_amax = nullptr;  // bits of fp32
  unsigned long long* nonfinite = nullptr;
};
static_assert(sizeof(QuantizeKernelArgs) == 304);

// The only parameter of the scale update (delayed scaling), by value;
// templates/quantize/scale_update.cu has the same struct. The fields are those of
// octile_scale_update_args.
struct ScaleUpdateKernelArgs {
  float* history = nullptr;       // [length][tensors]
  float* encode_scale = nullptr;  // [tensors]
  std::int64_t tensors = 0;
  std::int64_t length = 0;
  int choice = 0;
  float margin_factor = 1;  // 2^-margin
  float share = 0;
  int unused = 0;
};
static_assert(sizeof(ScaleUpdateKernelArgs) == 48);

// "tile=8x256 threads=256 per_sm=4", then " raster=rows" where rows are fastest, " lookup=1" where
// a part of the source is looked up, " scales=ordered" where scales are put in order behind.
std::string to_text(const QuantizeConfig&);
// Fields in any order; one left out keeps its default.
Result<QuantizeConfig> parse_quantize_config(std::string_view text);
// Says what it is, so profilers can be read: octile_quantize_bf16_e4m3_1x128_f32_row_t8x256_w8_occ4
std::string kernel_name(const QuantizeProblem&, const QuantizeConfig&);

}  // namespace octile
