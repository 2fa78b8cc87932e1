// Operands of quantisers on a GPU, and the same on the host for the reference. Calls rotate over
// several copies, so that no call finds its operands in L2.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "generator/quantize/problem.h"
#include "runtime/families/quantize/arguments.h"
#include "runtime/measure/gpu_session.h"
#include "runtime/measure/random_operands.h"
#include "runtime/prove/family.h"

namespace octile {

// The operands and results of one call. Buffers of outputs that the problem does not have are
// empty.
struct QuantizeSlot {
  std::int64_t rows = 0;
  std::array<DeviceBuffer, 3> more;  // x1 to x3 of a fused source
  DeviceBuffer x, x_scale, q, scale, q_transposed, scale_transposed, workspace;
  DeviceBuffer rstd, bias_gradient;  // written beside the codes, or rstd is given
  DeviceBuffer given;                // delayed scaling: the encode scales, then the amax records
  DeviceBuffer group_table;          // offsets of contiguous groups, counts of masked ones
  DeviceBuffer index;                // of gathered rows
  std::int64_t groups = 0;
  bool contiguous = false;
  bool weighted = false;  // rstd has the factors of the rows
};
QuantizeArguments args_of(const QuantizeSlot& slot);

// Checks that operands can be made for the problem: it has whole tensors or groups and no tap.
// Errors: kUnsupported.
Status check_operands(const QuantizeProblem& problem);

// Makes a slot without outputs. Errors: as check_operands; kOutOfMemory, kDeviceError.
Result<QuantizeSlot> make_input(const GpuSession& gpu, const QuantizeProblem& problem,
                                std::int64_t rows, std::uint64_t seed, Values values);

// Makes `count` slots of the same N(0, 1) input, everything packed. FP8 input has fp32 scales that
// differ, or scales of 1 in other formats. Problems with groups get 32 of unlike sizes.
Result<std::vector<QuantizeSlot>> make_slots(const GpuSession& gpu, const QuantizeProblem& problem,
                                             std::int64_t rows, int count, std::uint64_t seed);

// A slot's input on the host. The caller adds the outputs.
struct QuantizeInput {
  std::vector<std::uint8_t> x, x_scale;
  std::array<std::vector<std::uint8_t>, 3> more;
  std::vector<float> encode_scale;
  std::vector<std::int32_t> group_table;
  std::vector<std::int32_t> index;
  std::int64_t rows = 0;
  std::int64_t groups = 0;
  bool contiguous = false;
  bool weighted = false;                   // rstd has the factors of the rows
  std::vector<float> rstd, bias_gradient;  // written beside the codes, or rstd is given

  // Returns arguments that lead into this object.
  QuantizeArguments args();
};
Result<QuantizeInput> download_input(const GpuSession& gpu, const QuantizeProblem& problem,
                                     const QuantizeSlot& slot);

// Returns true if the slot's outputs equal the host reference's of the same x, bit for bit.
Result<bool> equals_reference(const GpuSession& gpu, const QuantizeProblem& problem,
                              const QuantizeSlot& slot);

// The bytes of an output's data and scales. Dequantised outputs have no scales.
struct OutputBytes {
  std::int64_t data = 0, scales = 0;
};
Result<OutputBytes> output_bytes(const QuantizeProblem& problem, std::int64_t rows,
                                 bool transposed);

// Return the number of groups and the rows of all of them, if each tensor has `rows`. Without
// groups these are 0 and `rows`.
std::int64_t groups_of(const QuantizeProblem& problem);
std::int64_t rows_in_all(const QuantizeProblem& problem, std::int64_t rows);

// Return the bytes per tensor element that a call reads of its inputs and writes of its outputs. A
// first pass that finds maxima reads the inputs once more.
int read_bytes_of(const QuantizeProblem& problem);
int written_bytes_of(const QuantizeProblem& problem);

// Return the bytes of inputs and codes that a call moves, padding between groups included, and
// those that it touches, each counted once.
std::int64_t bytes_moved(const QuantizeProblem& problem, std::int64_t rows);
std::int64_t bytes_touched(const QuantizeProblem& problem, std::int64_t rows);
// Returns the bytes of the scales that a call writes and of those that x has, padding included. In
// masked groups only the rows that exist count.
Result<std::int64_t> scale_bytes(const QuantizeProblem& problem, std::int64_t rows);

static_assert(FamilyWithOperands<QuantizeProblem>);

}  // namespace octile
