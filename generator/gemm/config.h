// How one GEMM kernel computes a problem: tile, pipeline, roles. The only place that derives shared
// memory, threads and registers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "generator/core/device_spec.h"
#include "generator/core/error.h"
#include "generator/gemm/problem.h"

namespace octile {

enum class EpilogueStore : int { kDirect = 0, kTma = 1 };

// The order in which tiles (of a cluster) are taken: in bands of `band` rows or columns of tiles,
// one band after another. The index runs fastest across the band.
struct Raster {
  int band = 8;
  bool of_columns = false;
  friend bool operator==(const Raster&, const Raster&) = default;
};
// Returns "8" for bands of 8 rows, "16n" for bands of 16 columns.
std::string to_text(const Raster&);

struct GemmConfig {
  int block_m = 128;  // below 64, rows that are loaded and stored: the instruction takes 64
  int block_n = 128;
  int block_k = 128;  // one 1x128 scale block; fixed by the recipe
  int stages = 5;
  int consumer_warpgroups = 2;  // each owns rows_of_consumer() rows
  int cluster_m = 1;            // CTAs along m that share (multicast) a B tile
  int cluster_n = 1;            // CTAs along n that share (multicast) an A tile
  int unroll = 1;               // K-blocks one pass of the main loop covers
  int in_flight = 1;            // WGMMA groups of 64 rows issued before the first is promoted;
                                // tcgen05: slots of a product's sums
  Raster raster;
  int ctas_per_sm = 1;  // resident at once: 2 leaves each half an SM
  EpilogueStore store = EpilogueStore::kTma;
  bool pdl_early = false;  // the stream's next kernel may start, and wait, while this one works
  int tail_n = 0;          // columns of the tiles that fill the last round; 0: all tiles are whole
  bool hold_scales = false;  // a consumer reads B's row scales once for all strips of a K-block
  bool mma_factors = false;  // the tensor core multiplies the scales of A and B
  // These three are numerics, not schedule.
  int promote = 128;                     // kPromoteNone: all of K
  int splits = 1;                        // CTAs of a cluster that share a tile's K
  MatrixUnit unit = MatrixUnit::kWgmma;  // numerics too: units keep sums in different precisions
  Copies copies = Copies::kTma;
  friend bool operator==(const GemmConfig&, const GemmConfig&) = default;
};

// The map of a CTA's shared memory: byte offsets from a 1024-byte aligned base, in this order. The
// emitted source has them as constants; the device computes none of them again.
struct GemmSmemLayout {
  int a_offset = 0, a_stage_bytes = 0;
  int b_offset = 0, b_stage_bytes = 0;
  int d_offset = 0, d_bytes = 0;  // D staged for TMA, or partial sums gathered from a cluster
  int scale_a_offset = 0, scale_a_stage_bytes = 0;
  int scale_b_offset = 0, scale_b_stage_bytes = 0;
  int barrier_offset = 0;
  int group_offset = 0;  // where groups begin: two words for each, and for their end
  int total_bytes = 0;   // bytes that the launch asks for
};

// Size of the kernel's by-value argument: gemm::Arguments of the templates, GemmKernelArgs of the
// launch.
constexpr int kGemmArgumentBytes = 640;

struct GemmResources {
  int threads = 0;
  int producer_registers = 0;  // setmaxnreg; 0: all threads have those of a consumer
  int consumer_registers = 0;
  int registers = 0;              // registers of all threads of a CTA
  int accumulator_registers = 0;  // accumulators + partials per consumer thread
  // Boxes of the tensor maps: rows (outer) x columns (inner), in elements. A and B boxes are 128
  // columns wide; an operand shared by a cluster is loaded in slices.
  int a_box_rows = 0;  // at most: where no cluster shares A, no more than m
  int b_box_rows = 0;
  int d_box_rows = 0;
  int d_box_cols = 0;  // its swizzle is as wide as a row of the box
  GemmSmemLayout smem;
};

// Returns true if warps multiply by themselves, from registers (mma.sync).
constexpr bool multiplies_by_warps(MatrixUnit unit) {
  switch (unit) {
    case MatrixUnit::kMma:
    case MatrixUnit::kMmaScaled:
      return true;
    case MatrixUnit::kWgmma:
    case MatrixUnit::kTcgen05:
      break;
  }
  return false;
}
constexpr bool multiplies_by_warps(const GemmConfig& c) { return multiplies_by_warps(c.unit); }

// Tensor memory of an SM, in columns of 128 lanes (PTX ISA, tcgen05).
inline constexpr int kTensorColumns = 512;
// The most slots of a product's sums there.
inline constexpr int kMostSlots = 4;
// Returns the consumers that lie side by side: with tcgen05 two, if they have 128 rows together. A
// product then has the tensor core's full rate, and each of them half of its columns.
int consumers_across(const GemmProblem&, const GemmConfig&);
// Returns the columns of tensor memory that sums and scales take
// (templates/gemm/tensor_memory.cuh), 0 where sums are in registers, and the products with rows of
// their own.
int tensor_columns(const GemmProblem&, const GemmConfig&);
int tensor_products(const GemmProblem&, const GemmConfig&);
// Returns how many groups of 128 rows of A, and of columns, have scales in tensor memory in a
// stage: with tcgen05, if the instruction multiplies them.
struct ScaleGroups {
  int of_a = 0, of_b = 0;
};
ScaleGroups tensor_scale_groups(const GemmProblem&, const GemmConfig&);

// Returns the rows that a consumer's instructions have, at least 64, and its strips of 64 rows.
int rows_of_consumer(const GemmProblem&, const GemmConfig&);
int strips_of_consumer(const GemmProblem&, const GemmConfig&);
// Returns the columns of a consumer, and those of a warp of it.
int columns_of_consumer(const GemmProblem&, const GemmConfig&);
int columns_of_warp(const GemmProblem&, const GemmConfig&);

// Returns how many warps of a consumer lie side by side and share a tile's columns: where warps
// multiply by themselves, those that have no 16 rows of their own in a tile of 16 or 32. Each takes
// whole groups of 8 columns, at least as many as ranks split K, each of which stores some. A row of
// FP8 D stays in one warp, which finds its largest magnitude.
int warps_across(const GemmProblem&, const GemmConfig&);

GemmResources resources_of(const GemmProblem&, const GemmConfig&, const DeviceSpec&);
// Returns true if the copy thread holds a range of K, or where the scales of two operands' matrices
// lie. Beside three consumers it then has 56 registers instead of 32.
bool copy_thread_holds_more(const GemmProblem&);
// Returns the runs of a tile's columns that lie in one block of 128 wherever the tile begins. A
// stage of the ring holds one scale of B for each.
int column_segments(const GemmConfig&);
// Returns the CTAs of one cluster, which share operands or split K.
int cluster_size(const GemmConfig&);
// Returns the clusters that a GPU of `sm_count` SMs runs at once (sms_in_clusters).
int resident_clusters(const GemmConfig&, int sm_count);

// How the tiles of D are distributed over the CTAs (or clusters) that are resident at once. They
// are taken in rounds of whole tiles. If the configuration has tail tiles, the last columns of D
// are cut into as many of them as make the last round shortest. A CTA that the last round of whole
// tiles leaves idle takes two tail tiles meanwhile.
struct TileShares {
  std::int64_t tiles_m = 0;       // a tile is a cluster's in all counts
  std::int64_t whole_across = 0;  // whole tiles in a row of tiles
  std::int64_t tail_across = 0;   // tail tiles in a row of tiles
  std::int64_t idle = 0;  // slots idle in the last round of whole tiles; 0 without tail tiles
  double rounds = 0;      // the time of all tiles, in times of a whole tile
  std::int64_t tiles() const { return tiles_m * (whole_across + tail_across); }
};
// Returns the shares of an m x n result in tiles of rows x cols a cluster, with tail tiles of
// tail_n columns. m, n and slots are at least 1. Every launch calls it; it takes a few divisions.
TileShares share_tiles(std::int64_t m, std::int64_t n, std::int64_t rows, std::int64_t cols,
                       int tail_n, std::int64_t slots);

// "tile=128x128x128 stages=5 wg=2 cluster=1x1 unroll=1 inflight=1 raster=8 ctas=1 store=tma
// pdl=end promote=128 splits=1", then " tail_n=64" if there are tail tiles, " scales=held" if B's
// are held, " factors=mma" if the tensor core multiplies scales, " unit=mma" if WGMMA is not the
// unit and " copies=cp_async" if TMA does not copy the operands.
std::string to_text(const GemmConfig&);
// Reads fields in any order; a field left out keeps its default. Errors: kInvalidArgument.
Result<GemmConfig> parse_gemm_config(std::string_view text);
// Returns a name that describes the kernel, for profilers:
// octile_gemm_e4m3_1x128_e4m3_128x128_bf16_t128x128x128_s5_wg2_c1x1_u1f1_ras8_o1_tma_end_p128_k1
std::string kernel_name(const GemmProblem&, const GemmConfig&);

// Returns how the numerics of a configuration differ from those of `other`, which every token count
// has: in the promotion interval, in the splits of K or in the matrix unit. Nothing if they are the
// same.
std::optional<std::string> numerics_difference(const GemmConfig& config, const GemmConfig& other);

}  // namespace octile
