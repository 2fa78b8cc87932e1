// The default tiles of quantisers as rows of data: for each template, which problems and sizes of
// tensors get which tile, and why. defaults.cc takes the first row that matches.
//
// Sizes are stated in tiles and warps of an SM, and warps are limited by an SM's registers and
// threads (residency.h). So on a card that nobody measured, its numbers of SMs, registers and
// threads select the row.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "generator/core/device_spec.h"
#include "generator/quantize/config.h"
#include "generator/quantize/problem.h"
#include "generator/quantize/residency.h"

namespace octile {

// A problem at a row count on a device, and what the rows ask about it.
struct TileCase {
  TileCase(const QuantizeProblem& p, std::int64_t row_count, const DeviceSpec& d);

  // Returns the tiles of `tile_rows` x `tile_cols` over the SMs. Unknown rows are taken as many.
  double tiles_per_sm(int tile_rows, int tile_cols) const;
  bool knows_rows() const;
  // Returns the warps that an SM of the device holds where one of `warps` was measured.
  int warps_on_device(int warps) const;

  const QuantizeProblem& problem;
  std::int64_t rows;
  const DeviceSpec& device;
  FieldValues values;  // residency_values() and device_values()
};

inline constexpr double kAnyCount = std::numeric_limits<double>::infinity();

// Bounds of the tiles of `rows` rows that an SM gets. Their columns are those of a warp's load if
// warps work alone, 128 of a thread block's tile, or all.
struct TilesPerSm {
  int rows = 0;  // 0: no bound
  double above = -1, least = 0, at_most = kAnyCount, below = kAnyCount;
};

struct TileBounds {
  std::int64_t rows_at_most = std::numeric_limits<std::int64_t>::max();
  std::int64_t units_at_most = std::numeric_limits<std::int64_t>::max();  // loads of a warp
  double elements_per_sm_at_least = 0;  // counts only if the rows are known
  bool knows_rows = false;
  bool needs_clusters = false;  // whether the device must have clusters
  TilesPerSm tiles = {}, also = {};
};

// Halves a tile's rows, down to `least`, until the tensor has this number of tiles an SM.
struct Shortening {
  int least = 1;
  double tiles_per_sm = 0;
  bool in_waves = false;          // `tiles_per_sm` counts waves of the resident warps instead
  bool only_if_resident = false;  // only if the tensor's rows are then all resident at once
};

struct Tile {
  int rows = 0;
  int cols = 0;  // 0: those of a warp's load, or what `fit` finds
  int threads = 0;
  int warps = 0;  // warps of an SM; 0: those of the residency row of `kind`
  TileKind kind = TileKind::kLoads;
  bool rows_fastest = false;
  bool rows_fastest_if_transposed = false;  // if there is a transposed copy alone
  bool looks_up = false;
  bool halves_together = false;
  bool orders_scales = false;  // if that pays
  int copies_apart = 0;        // tiles in a 128x128 tile, if each copy may have a thread block
  std::span<const Shortening> shorten = {};
};

struct TileRule {
  std::string_view name;                            // what `octile emit --explain` prints
  std::string_view pattern = {};                    // of the problem and of residency_values()
  bool (*needs)(const QuantizeProblem&) = nullptr;  // null: nothing else
  TileBounds bounds = {};
  Tile tile = {};
  // Finishes the tile where it depends on the tensor's extents; null: it is finished.
  void (*fit)(QuantizeConfig&, const TileCase&) = nullptr;
  std::string_view reason = {};    // why such tiles are fast
  std::string_view measured = {};  // the card that showed it (docs/experiments/quantize.md)
};

// Returns whether the defaults of few tiles give each copy a thread block.
bool parts_copies(const QuantizeProblem&);

// The rows of each template. The last of them matches every problem of the template.
std::span<const TileRule> warp_tile_rules();  // kWarpTile, kDequantize
std::span<const TileRule> cta_tile_rules();
std::span<const TileRule> row_rules();   // kCtaRow
std::span<const TileRule> norm_rules();  // kNormRows
std::span<const TileRule> range_rules();
std::span<const TileRule> scales_rules();
std::span<const TileRule> transpose_rules();

// Returns the row that chooses the default of a problem at a row count.
const TileRule& default_rule(const QuantizeProblem&, std::int64_t rows, const DeviceSpec&);

}  // namespace octile
