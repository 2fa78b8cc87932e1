// How one quantise kernel works a problem. The only place that derives its tiles, threads and grid;
// the emitted source asserts that the device's arithmetic agrees.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "generator/error.h"
#include "generator/problem.h"

namespace octile {

struct QuantizeConfig {
  // What is held in registers at once, so that amax and cast share one read: by one warp in the
  // 1x128 kernel (a warp is its own tile), by one thread block in the 128x128 kernel (128 x 128).
  int tile_rows = 8;
  int tile_cols = 256;
  int threads = 256;      // per block
  int blocks_per_sm = 4;  // residency promised to the compiler, which bounds registers
  friend bool operator==(const QuantizeConfig&, const QuantizeConfig&) = default;
};

struct QuantizeResources {
  int threads = 0;
  int smem_bytes = 0;          // dynamic: these kernels take none
  int vectors_per_thread = 0;  // independent 16-byte loads of one thread: its bytes in flight
  int lanes_per_block = 0;     // lanes that share one 128-element row segment
};

QuantizeResources resources_of(const QuantizeProblem&, const QuantizeConfig&);

// Refuses a configuration no kernel can be emitted for, naming the field, its value and the rule.
Status check_config(const QuantizeProblem&, const QuantizeConfig&);

// Thread blocks a launch over `rows` rows needs, all along x; 0 where there is nothing to do (do
// not launch then). Errors: kInvalidArgument where the count passes the grid's 2^31 - 1.
Result<std::int64_t> launch_blocks(const QuantizeProblem&, const QuantizeConfig&,
                                   std::int64_t rows);

// The kernels' only parameter, by value; templates/quantize/phases.cuh has the same struct and
// asserts its size. Device pointers. Strides in elements, all filled in by the launcher (no 0 =
// default here).
struct QuantizeKernelArgs {
  const void* x = nullptr;  // [rows][ldx]
  void* q = nullptr;        // [rows][ldq]
  float* scale = nullptr;  // 1x128: [ceil(cols/128)][scale_ld]; 128x128: [ceil(rows/128)][scale_ld]
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t ldx = 0;
  std::int64_t ldq = 0;
  std::int64_t scale_ld = 0;
};
static_assert(sizeof(QuantizeKernelArgs) == 64);

// "tile=8x256 threads=256 per_sm=4"
std::string to_text(const QuantizeConfig&);
// Fields in any order; one left out keeps its default.
Result<QuantizeConfig> parse_quantize_config(std::string_view text);
// Says what it is, so profilers can be read: octile_quantize_bf16_e4m3_1x128_f32_t8x256_w8_r4
std::string kernel_name(const QuantizeProblem&, const QuantizeConfig&);

}  // namespace octile
