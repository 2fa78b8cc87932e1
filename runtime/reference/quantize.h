// Quantising on the host, bit for bit as the contract; multi-threaded over blocks. The reference
// executor runs it in place of a launch, and every GPU quantiser is compared with it.
#pragma once

#include <cstdint>

#include "generator/error.h"
#include "generator/problem.h"

namespace octile::reference {

struct QuantizeArgs {
  std::int64_t rows = 0;
  const void* x = nullptr;
  std::int64_t ldx = 0;  // elements; 0: cols
  void* q = nullptr;
  std::int64_t ldq = 0;
  void* scale = nullptr;
  std::int64_t scale_ld = 0;  // 0: as quantized_layout says
  void* q_transposed = nullptr;
  void* scale_transposed = nullptr;
};

// The encode scale of a block whose finite amax is `amax` (steps 1 and 2), and its decode scale
// (step 4).
float encode_scale(float amax, const QuantizeProblem& problem);
float decode_scale(float encode);

// Padding included (scales 1, data 0). threads 0: one per core.
Status quantize(const QuantizeProblem&, const QuantizeArgs&, int threads = 0);

// out[rows][cols] fp32 = q * scale, from the row-wise layout of `type`.
Status dequantize(const TensorType& type, std::int64_t rows, std::int64_t cols, const void* q,
                  std::int64_t ldq, const void* scale, std::int64_t scale_ld, float* out,
                  int threads = 0);

}  // namespace octile::reference
