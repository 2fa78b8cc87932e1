// How the kernels of one quantise problem compute it: tile, number of threads, options. See
// composition.h for the template and resources.h for a configuration's share of an SM.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "generator/core/device_spec.h"
#include "generator/core/error.h"
#include "generator/quantize/composition.h"
#include "generator/quantize/problem.h"

namespace octile {

struct QuantizeConfig {
  // The elements held in registers at once, so that amax and cast share one read. They are a
  // warp's if warps work alone (works_by_warps), otherwise a thread block's.
  int tile_rows = 8;
  int tile_cols = 256;
  int threads = 256;      // per block
  int blocks_per_sm = 4;  // residency promised to the compiler, which bounds registers
  // kCtaTile, kTranspose: neighbouring thread blocks are neighbours down the rows.
  bool rows_fastest = false;
  bool looks_up = false;         // kWarpTile: a part of the source is read from a table
  bool orders_scales = false;    // kCtaTile: scales are stored by whole sectors and ordered later
  bool halves_together = false;  // kCtaTile: a thread block has the same columns of both halves
  bool copies_apart = false;     // kCtaTile: a tile's two copies have a thread block each
  int cluster = 0;  // kWarpTile: thread blocks that hold the whole tensor; 0: warps share it out
  friend bool operator==(const QuantizeConfig&, const QuantizeConfig&) = default;
};

// Returns whether a thread block holds fewer rows at once than it quantises (takes_few_rows).
bool holds_few_rows(const QuantizeProblem&, const QuantizeConfig&);

// Returns the kernel that finds maxima first, if this configuration needs one.
FirstPass first_pass_of(const QuantizeProblem&, const QuantizeConfig&);

// Returns the kernels that a configuration needs beside its own, in launch order.
std::vector<Companion> companions_of(const QuantizeProblem&, const QuantizeConfig&);

// Refuses a configuration that no kernel can be emitted for, or whose thread blocks are not
// resident on an SM of the device. The error names the field, its value and the rule.
Status check_config(const QuantizeProblem&, const QuantizeConfig&, const DeviceSpec&);

// Returns "tile=8x256 threads=256 per_sm=4", followed by those of " raster=rows", " lookup=1",
// " scales=ordered", " halves=together", " copies=apart" and " cluster=8" that differ from the
// default.
std::string to_text(const QuantizeConfig&);
// Accepts fields in any order; an absent field keeps its default.
Result<QuantizeConfig> parse_quantize_config(std::string_view text);

}  // namespace octile
