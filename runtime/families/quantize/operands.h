// Operands of quantisers on a GPU, in several copies over which calls rotate, and the same operands
// on the host for the reference.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "generator/quantize/problem.h"
#include "octile/octile.h"
#include "runtime/measure/gpu_session.h"
#include "runtime/families/gemm/operands.h"

namespace octile {

// Inputs, outputs and workspace of one quantisation. Buffers of outputs that the problem does not
// have are empty.
struct QuantizeSlot {
  std::int64_t rows = 0;
  std::array<DeviceBuffer, 3> more;  // x1 to x3 of a fused source
  DeviceBuffer x, x_scale, q, scale, q_transposed, scale_transposed, workspace;
  DeviceBuffer rstd, bias_gradient;  // additional outputs
  DeviceBuffer given;                // delayed scaling: the encode scales and the amax records
  DeviceBuffer group_table;          // offsets of contiguous groups, counts of masked ones
  std::int64_t groups = 0;
  bool packed = false;
};
octile_quantize_args args_of(const QuantizeSlot& slot);

// Checks that operands can be made for the problem. It must quantise a whole tensor or groups of
// bf16, fp16, fp32 or FP8, and its outputs must be codes and scales. Errors: kUnsupported.
Status check_operands(const QuantizeProblem& problem);

// Returns a slot without outputs. Errors: those of check_operands; kOutOfMemory, kDeviceError.
Result<QuantizeSlot> make_quantize_input(const GpuSession& gpu, const QuantizeProblem& problem,
                                         std::int64_t rows, std::uint64_t seed, Values values);

// Returns `count` slots with the same N(0, 1) input and default strides. FP8 inputs have random
// scales if those are fp32, otherwise scales of 1. A problem with groups gets 32 of unequal sizes.
Result<std::vector<QuantizeSlot>> make_quantize_slots(const GpuSession& gpu,
                                                      const QuantizeProblem& problem,
                                                      std::int64_t rows, int count,
                                                      std::uint64_t seed);

// The host copy of a slot's input. The caller fills in the outputs.
struct QuantizeInput {
  std::vector<std::uint8_t> x, x_scale;
  std::array<std::vector<std::uint8_t>, 3> more;
  std::vector<float> encode_scale;
  std::vector<std::int32_t> group_table;
  std::int64_t rows = 0;
  std::int64_t groups = 0;
  bool packed = false;

  std::vector<float> rstd, bias_gradient;  // additional outputs

  // Returns arguments that are valid as long as this object.
  octile_quantize_args args();
};
Result<QuantizeInput> download_input(const GpuSession& gpu, const QuantizeProblem& problem,
                                     const QuantizeSlot& slot);

// Returns true if the slot's outputs equal, bit for bit, what the host reference computes from the
// same input.
Result<bool> equals_reference(const GpuSession& gpu, const QuantizeProblem& problem,
                              const QuantizeSlot& slot);

// Sizes of an output's data and scales. A dequantised output has no scales.
struct OutputBytes {
  std::int64_t data = 0, scales = 0;
};
Result<OutputBytes> output_bytes(const QuantizeProblem& problem, std::int64_t rows,
                                 bool transposed);

// Return the number of groups, and the number of rows in all groups if each tensor has `rows`.
// Without groups these are 0 and `rows`.
std::int64_t groups_of(const QuantizeProblem& problem);
std::int64_t rows_in_all(const QuantizeProblem& problem, std::int64_t rows);

// Return bytes for each element of the tensor. read_bytes_of counts what a quantisation must read
// (twice if a first pass finds maxima), written_bytes_of what it writes to all its outputs.
int read_bytes_of(const QuantizeProblem& problem);
int written_bytes_of(const QuantizeProblem& problem);

// Return the bytes of x and codes, including padding between groups. bytes_moved counts every
// necessary transfer; bytes_touched counts each byte once.
std::int64_t bytes_moved(const QuantizeProblem& problem, std::int64_t rows);
std::int64_t bytes_touched(const QuantizeProblem& problem, std::int64_t rows);
// Returns the bytes of the scales that a quantisation writes and of x's scales, including padding.
// For masked groups it counts only the existing rows.
Result<std::int64_t> scale_bytes(const QuantizeProblem& problem, std::int64_t rows);

}  // namespace octile
