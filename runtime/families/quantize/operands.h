// Operands of quantisers on a GPU, in several copies that calls rotate over, and the same on the
// host for the reference.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "generator/problem.h"
#include "octile/octile.h"
#include "runtime/measure/gpu_session.h"
#include "runtime/families/gemm/operands.h"

namespace octile {

// What one quantisation reads, writes and needs beside; buffers of outputs the problem does not
// have are empty.
struct QuantizeSlot {
  std::int64_t rows = 0;
  std::array<DeviceBuffer, 3> more;  // x1 to x3 of a fused source
  DeviceBuffer x, x_scale, q, scale, q_transposed, scale_transposed, workspace;
  DeviceBuffer rstd, bias_gradient;  // left beside the codes
  DeviceBuffer given;                // delayed scaling: the encode scales and the amax records
  DeviceBuffer group_table;          // offsets of contiguous groups, counts of masked ones
  std::int64_t groups = 0;
  bool packed = false;
};
octile_quantize_args args_of(const QuantizeSlot& slot);

// That there are operands for the problem: whole tensors or groups, of bf16, fp16 or fp32, and
// codes and scales are all that is made of them. Errors: kUnsupported.
Status check_operands(const QuantizeProblem& problem);

// A slot without outputs. Errors: as check_operands; kOutOfMemory, kDeviceError.
Result<QuantizeSlot> make_quantize_input(const GpuSession& gpu, const QuantizeProblem& problem,
                                         std::int64_t rows, std::uint64_t seed, Values values);

// `count` slots of the same N(0, 1) input, everything packed; FP8 with fp32 scales that differ, or
// with others of 1. Where there are groups, 32 of unlike sizes.
Result<std::vector<QuantizeSlot>> make_quantize_slots(const GpuSession& gpu,
                                                      const QuantizeProblem& problem,
                                                      std::int64_t rows, int count,
                                                      std::uint64_t seed);

// A slot's input on the host; outputs are to be filled in.
struct QuantizeInput {
  std::vector<std::uint8_t> x, x_scale;
  std::array<std::vector<std::uint8_t>, 3> more;
  std::vector<float> encode_scale;
  std::vector<std::int32_t> group_table;
  std::int64_t rows = 0;
  std::int64_t groups = 0;
  bool packed = false;

  std::vector<float> rstd, bias_gradient;  // to be left beside the codes

  // Valid while this is.
  octile_quantize_args args();
};
Result<QuantizeInput> download_input(const GpuSession& gpu, const QuantizeProblem& problem,
                                     const QuantizeSlot& slot);

// Whether what a run left in the slot is what the host reference makes of the same x, bit for bit.
Result<bool> equals_reference(const GpuSession& gpu, const QuantizeProblem& problem,
                              const QuantizeSlot& slot);

// Data and scales of an output; no scales of one that is dequantised.
struct OutputBytes {
  std::int64_t data = 0, scales = 0;
};
Result<OutputBytes> output_bytes(const QuantizeProblem& problem, std::int64_t rows,
                                 bool transposed);

// Groups there are, and rows that they have in all where each tensor has `rows`; without groups 0,
// and `rows`.
std::int64_t groups_of(const QuantizeProblem& problem);
std::int64_t rows_in_all(const QuantizeProblem& problem, std::int64_t rows);

// Bytes of inputs a quantisation cannot but read (twice, where a first pass must find maxima), and
// that it writes of all its outputs, a tensor element.
int read_bytes_of(const QuantizeProblem& problem);
int written_bytes_of(const QuantizeProblem& problem);

// Bytes of x and codes that a quantisation cannot but move, the padding between groups included;
// and that it touches, however often.
std::int64_t bytes_moved(const QuantizeProblem& problem, std::int64_t rows);
std::int64_t bytes_touched(const QuantizeProblem& problem, std::int64_t rows);
// Of the scales it writes, and of those x has, padding included. Of masked groups the rows there.
Result<std::int64_t> scale_bytes(const QuantizeProblem& problem, std::int64_t rows);

}  // namespace octile
