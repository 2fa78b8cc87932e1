// The library handle of this process, and plans of single operations. Both are made when first
// needed and never destroyed: work may be in flight when the interpreter exits. A child of fork
// makes its own.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_PLANS_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_PLANS_H_

#include <cstdint>
#include <string>

#include "octile/octile.h"
#include "tensors.h"

namespace octile::binding {

// Throws for a status other than OCTILE_OK: std::invalid_argument for INVALID_ARGUMENT, else
// std::runtime_error. The text is the status's name and the library's sentence.
void check(octile_status status);

// Returns the library handle, and a device's name: "host" for -1, else "cuda:N".
octile_library* library();
std::string device_name(std::int32_t device);

// Has the prepares of this thread search for questions without a tuning record, for at most this
// number of seconds together from now on (OCTILE_PREPARE_TUNE); 0 ends that. Nothing is searched
// for work on the host.
void tune_prepares(double seconds);
// The present options of octile_plan_prepare_with and octile_layer_prepare_with in this thread.
octile_prepare_options prepare_options();
// Prepares a plan with these options.
void prepare(octile_plan* plan, std::int64_t lo, std::int64_t hi);

// Returns the plan of a problem text on the device of `place`.
octile_plan* plan_of(const std::string& problem, const Place& place);

// Returns the texts of all problems that this process has made plans of, a line each, some several
// times.
std::string plan_problems();

// One output of a quantiser, as the library lays it out.
struct Quantized {
  Tensor codes;   // FP8 [data_rows, data_ld]
  Tensor scales;  // of the format's element type, [scale_rows, scale_ld] or flat
};

// Where a quantiser writes one output.
struct Target {
  void* codes = nullptr;
  std::int64_t ld = 0;
  void* scales = nullptr;
  std::int64_t scale_ld = 0;  // 0: as the library lays them out
};
Target target_of(const Quantized& output);

// The outputs of a quantiser. Outputs that are not wanted stay null.
struct QuantizeOutputs {
  Target rowwise = {}, transposed = {};
};

struct QuantizeCall {
  std::int64_t rows = 0;
  const void* x = nullptr;
  std::int64_t ldx = 0;
  const void* x_scale = nullptr;  // FP8 x
  std::int64_t x_scale_ld = 0;
  const std::int32_t* index = nullptr;  // of rows that are gathered from x_rows
  std::int64_t x_rows = 0;
  const std::int32_t* offsets = nullptr;  // [groups + 1], contiguous groups
  const std::int32_t* counts = nullptr;   // [groups], masked groups of `rows` each
  std::int64_t groups = 0;
  // A fused source's arguments: its inputs beside x, 1 / rms of rows that it is given, and where
  // the sums of its columns go, or null.
  const void* x1 = nullptr;
  const void* x2 = nullptr;
  const void* x3 = nullptr;
  std::int64_t ldx1 = 0, ldx2 = 0;
  float* rstd = nullptr;
  const float* row_factor = nullptr;
  float* sums = nullptr;
  const float* encode = nullptr;  // a plan with policy=delayed
  float* recorded = nullptr;      // octile_quantize_monitor.encode_scale
  float* amax = nullptr;          // a plan of "amax": octile_quantize_monitor.amax
};

// Runs a quantise plan into outputs that are allocated. Kernels that are not ready are prepared
// first.
void quantize(octile_plan* plan, const Place& place, const QuantizeCall& call,
              const QuantizeOutputs& outputs);

// Runs a GEMM. The workspace is allocated here, and kernels that are not ready are prepared.
void multiply(octile_plan* plan, const Place& place, octile_gemm_args args);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_PLANS_H_
