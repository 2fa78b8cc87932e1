// How one quantise kernel works a problem. The only place that derives its threads and shared memory.
#pragma once

#include <string>

#include "generator/error.h"
#include "generator/problem.h"

namespace octile {

struct QuantizeConfig {
  int tile_rows = 1;        // rows one thread block handles at a time
  int tile_cols = 128;      // columns one thread block handles at a time
  int threads = 256;
  int vector_bytes = 16;    // bytes one thread loads at once
  int blocks_per_sm = 0;    // 0: one block per tile; otherwise persistent, this many per SM
  friend bool operator==(const QuantizeConfig&, const QuantizeConfig&) = default;
};

struct QuantizeResources {
  int threads = 0;
  int smem_bytes = 0;
};

QuantizeResources resources_of(const QuantizeProblem&, const QuantizeConfig&);
std::string to_text(const QuantizeConfig&);
Result<QuantizeConfig> parse_quantize_config(std::string_view text);
std::string kernel_name(const QuantizeProblem&, const QuantizeConfig&);

}  // namespace octile
