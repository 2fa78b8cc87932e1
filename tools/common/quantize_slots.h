// Operands of quantisers to be timed, on a GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "generator/problem.h"
#include "octile/octile.h"
#include "runtime/measure/gpu_session.h"
#include "tools/common/handles.h"

namespace octile::tools {

// What one quantisation reads, writes and needs beside; buffers of outputs the problem does not
// have are empty.
struct QuantizeSlot {
  std::int64_t rows = 0;
  DeviceBuffer x, x_scale, q, scale, q_transposed, scale_transposed, workspace;
  std::vector<DeviceBuffer> more;  // further inputs of a fused source
  DeviceBuffer rstd, bias_gradient;
  DeviceBuffer given;        // delayed scaling: the encode scale and the amax record
  DeviceBuffer group_table;  // offsets of packed groups, counts of masked ones
  std::int64_t groups = 0;
  bool packed = false;
  std::size_t workspace_bytes = 0;
};

// Rows that a problem's groups have in all where each tensor has `rows`; without groups, `rows`.
std::int64_t rows_in_all(const QuantizeProblem& problem, std::int64_t rows);

octile_quantize_args args_of(const QuantizeSlot& slot);

// `count` slots of the same N(0, 1) input, packed; FP8 with scales of 1. `plan` tells the
// workspace.
Result<std::vector<QuantizeSlot>> make_quantize_slots(const GpuSession& gpu, const PlanHandle& plan,
                                                      const QuantizeProblem& problem,
                                                      std::int64_t rows, int count);

// Whether what a run left in the slot is what the host reference makes of the same x, bit for bit.
Result<bool> equals_reference(const GpuSession& gpu, const QuantizeProblem& problem,
                              const QuantizeSlot& slot);

// Bytes of inputs a quantisation cannot but read (twice, where a first pass must find maxima), and
// that it writes of all its outputs, a tensor element.
int read_bytes_of(const QuantizeProblem& problem);
int written_bytes_of(const QuantizeProblem& problem);

// Bytes of x and codes that a quantisation cannot but move, the padding between groups included.
std::int64_t bytes_moved(const QuantizeProblem& problem, std::int64_t rows);

}  // namespace octile::tools
