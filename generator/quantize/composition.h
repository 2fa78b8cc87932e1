// The kernels of a quantise problem: its template, additional kernels, and the options that its
// configurations may have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "generator/quantize/lookup.h"
#include "generator/quantize/problem.h"

namespace octile {

// The templates under templates/quantize that write a tensor.
enum class QuantizeTemplate : int {
  kWarpTile,    // a warp holds a tile, without a barrier: row-wise 1x128, 1x32 and per tensor
  kCtaTile,     // a thread block holds a tile: square blocks and every transposed output
  kCtaRow,      // a thread block holds a row: row-wise scales per row
  kRange,       // a warp holds a tile of a flat range of the tensor
  kScales,      // a thread has the maximum of a block
  kDequantize,  // a warp holds a tile: codes times scales
  kTranspose,   // a thread block holds a tile: codes as they are
  kNormRows,    // a thread block holds a row and norms it: RMSNorm with scales along the rows
  kGather,      // a warp holds a tile, whose rows of x an index says: codes as they are
};
QuantizeTemplate template_of(const QuantizeProblem&);

// Returns whether every warp holds a tile of its own.
bool works_by_warps(const QuantizeProblem&);

// Returns whether they are warps of tiles of any width, which need no other warp of their block.
bool works_by_lone_warps(const QuantizeProblem&);

// Returns whether a tile is as wide as the tensor.
bool holds_whole_rows(const QuantizeProblem&);

// The kernel that finds maxima first, if a scale covers more than a tile.
enum class FirstPass : int {
  kNone,
  kTensor,  // partial maxima of the tensor, one for each thread block
  kLines,   // maxima of every row and column; many rows require cleared maxima
  kGroups,  // maxima of every group; they must be cleared before
};
FirstPass first_pass_of(const QuantizeProblem&);

// The kernels beside the one that writes codes. All of them stand in the same source.
enum class Companion : int {
  kFirstPass,    // runs before it and finds maxima
  kScaleUpdate,  // updates the scales of delayed scaling, in a call of its own
  kRowNorm,      // runs before all others and finds 1 / rms of every row
  kBiasSum,      // runs after it and adds up the sums of the columns
  kScaleOrder,   // runs after it and puts scales in order that were stored by whole sectors
  kFingerprint,  // runs before all others and finds out if x has changed
};
inline constexpr std::size_t kCompanions = 6;

// How the tiles of a kernel meet the groups; values are those of templates/quantize/groups.cuh.
enum class GroupWalk : int {
  kNone = 0,
  kGroupByGroup = 1,  // contiguous groups, if a scale or a place depends on the group
  kMasked = 2,
  kAsOne = 3,  // contiguous groups otherwise: one tensor of as many rows as the offsets say
};
GroupWalk group_walk_of(const QuantizeProblem&);

// The limit exceeds the experts of every known model. The workspace holds a maximum of each group.
inline constexpr std::int64_t kMostGroups = 65536;
// Each of them has thread blocks of its own in gridDim.y.
inline constexpr std::int64_t kMostStacked = 65535;
constexpr std::int64_t most_groups(Grouping g) {
  return g == Grouping::kStacked ? kMostStacked : kMostGroups;
}

// Returns the element type in which amax and cast hold values: x's, or fp32 if the source is
// computed.
DType source_type(const QuantizeProblem&);

// Returns the type whose values amax and cast see: source_type, unless they are rounded on the way.
DType value_type(const QuantizeProblem&);

// Returns the rows and columns of the tensor that a scale of square blocks covers; the largest
// extent if there is one scale.
std::int64_t scale_extent(const QuantizeProblem&);

// Returns whether a thread holds codes beside their scales and widens them at every use. kCtaTile
// does so if x is FP8.
bool holds_codes(const QuantizeProblem&);

// Returns the elements of one 16-byte vector of a thread: those it loads or, dequantising, stores.
int elements_per_vector(const QuantizeProblem&);

// Returns whether a tile may be half as wide as a scale's block. The thread blocks side by side
// then all read the whole block and find the same maximum. False for computed sources (computed
// twice) and for groups and bias gradients (unmeasured).
bool takes_half_width_tiles(const QuantizeProblem&);

// Returns whether a thread block may hold fewer rows at once than a scale's block has, for tensors
// of few rows (few_rows.cu). True for 1x128 with a transposed copy and 128x128, of one tensor that
// is not computed.
bool takes_few_rows(const QuantizeProblem&);

// Returns whether a warp walks down its tile step by step, while cp.async brings the rows of the
// next two steps to shared memory. Computed sources do: their arithmetic takes longer than a load.
bool streams_rows(const QuantizeProblem&);

// Returns whether a streaming warp's tile has the same columns of both halves of the rows. True for
// two expressions of the same inputs, if no scale's block spans both halves.
bool takes_both_halves(const QuantizeProblem&);

// Returns whether a thread block may compute both halves at once and cast one after the other,
// while the right half's values wait in shared memory.
bool may_take_halves_together(const QuantizeProblem&);

// Returns whether the row-wise and the transposed copy of a tile may have a thread block each. Both
// read x, so this is for tensors of few tiles. False for codes (unmeasured) and wherever half-width
// tiles are refused.
bool may_write_copies_apart(const QuantizeProblem&);

// Returns whether the thread blocks of one cluster may hold the whole tensor and find its maximum
// themselves (whole_tensor.cu), for small tensors. True for row-wise codes of one tensor of values
// whose one scale is current.
bool may_hold_tensor(const QuantizeProblem&);

// Returns the columns of a streaming warp's tile.
int streamed_columns(const QuantizeProblem&);

// Returns the columns of one load of a warp: the narrowest tile of warps that do not stream.
int warp_columns(const QuantizeProblem&);

// Returns whether scales may be stored 32 bytes at a time, in each other's places, until another
// kernel orders them. True if scales are bytes and a tile has four of every run. The arrays of each
// launch decide which scales do (order_blocks).
bool may_order_scales(const QuantizeProblem&);

// Returns the part of the source that a table may hold; null if there is none.
std::shared_ptr<const Lookup> lookup_of(const QuantizeProblem&);

}  // namespace octile
