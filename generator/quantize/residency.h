// The number of warps of a quantiser that an SM holds at once, as observed with ptxas 13.0: rows of
// data by kind of tile and problem. More warps leave fewer registers per thread. The tests compile
// the defaults that follow from the rows without spills.
#pragma once

#include <span>
#include <string_view>

#include "generator/core/support.h"
#include "generator/quantize/problem.h"

namespace octile {

// The values that a thread holds decide its registers.
enum class TileKind {
  kLoads,     // warp_tile: eight loads of x itself or of codes
  kOneRow,    // warp_tile: up to eight loads of one row, which have one address
  kStreamed,  // warp_tile: one step of computed values
  kStaged,    // cta_tile: a transposed copy of 16-bit elements or codes
  kPatch,     // cta_tile: a transposed copy of fp32 values, a patch of 32 in registers
  kHalves,    // cta_tile: the same for both halves of the columns (halves_together)
  kRowwise,   // cta_tile: no transposed copy
  kRow,       // cta_row
  kNorm,      // norm_rows: up to four pieces of a row
  kLongNorm,  // norm_rows: more pieces
};

// The registers of an SM of the cards that the rows were compiled for.
inline constexpr int kMeasuredRegisters = 64 * 1024;

struct ResidencyRow {
  TileKind kind;
  std::string_view pattern;  // matches fields of the problem and residency_values()
  int warps;                 // warps of an SM with kMeasuredRegisters
  std::string_view reason;   // what takes or saves registers
};

// Returns the fields of the problem's text and these: op=, held= (the type of a thread's
// elements), inputs=1..4 (of the source), halves=0|1 (two expressions), by=caller|name (who wrote
// the source), divides=0|1, and normal=0|1 and sigmoid=0|1 (whether the source calls them).
FieldValues residency_values(const QuantizeProblem&);

// Returns whether the values match a row's pattern.
bool matches_values(std::string_view pattern, const FieldValues& values);

// Returns the first row of a kind that matches. The last row of each kind matches everything.
const ResidencyRow& residency_of(TileKind kind, const FieldValues& values);

std::span<const ResidencyRow> residency_rows();

// Kernels of which ptxas 13.0 spills some on a device with the rows' warps. A quarter fewer thread
// blocks are promised to it there.
struct TighterRow {
  std::string_view pattern;  // matches residency_values() and device_values()
  std::string_view reason;
};
// Returns the first row that matches, null if none does.
const TighterRow* tighter_of(const FieldValues& values);
std::span<const TighterRow> tighter_rows();

}  // namespace octile
