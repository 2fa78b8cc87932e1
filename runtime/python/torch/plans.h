// The library handle and the plans of this process. Both are made when first needed and never
// destroyed: work may be in flight when the interpreter exits. A child of fork makes its own.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_PLANS_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_PLANS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "octile/octile.h"
#include "tensors.h"

namespace octile::binding {

// Throws for a status other than OCTILE_OK: std::invalid_argument for INVALID_ARGUMENT, else
// std::runtime_error. The text is the status's name and the library's sentence.
void check(octile_status status);

// Returns the plan of a problem text on the device of `place`.
octile_plan* plan_of(const std::string& problem, const Place& place);

// Returns the texts of all problems that this process has made plans of, a line each.
std::string problem_texts();

// A problem in numbers: finding its plan builds no text. `kind` says everything but the sizes and
// is the caller's to choose, as long as two texts never share one.
struct PlanKey {
  std::uint64_t kind = 0;
  std::int64_t rows = 0, cols = 0;
  std::int32_t device = -1;  // -1: the host

  friend bool operator==(const PlanKey&, const PlanKey&) = default;
};

// Returns the plan known by `key`, or null, and makes it known.
octile_plan* known_plan(const PlanKey& key);
void remember_plan(const PlanKey& key, octile_plan* plan);

// One output of a quantiser, as the library lays it out.
struct Quantized {
  Tensor codes;   // FP8 [data_rows, data_ld]
  Tensor scales;  // of the format's element type, [scale_rows, scale_ld] or flat
};

// Returns a copy that was asked for. Throws std::logic_error if it is not there.
const Quantized& present(const std::optional<Quantized>& copy);

// Where a quantiser writes one output.
struct Target {
  void* codes = nullptr;
  std::int64_t ld = 0;
  void* scales = nullptr;
};
Target target_of(const Quantized& output);

// What a quantiser writes; outputs that are not wanted stay null.
struct QuantizeOutputs {
  Target rowwise = {}, transposed = {};
  Tensor* column_sums = nullptr;  // fp32 [cols], plans with dbias=1
};

// Allocates one output of a quantise plan of this type; contiguous groups if `groups` > 0. Scales
// are flat: while PyTorch traces, a matrix of ceil(tokens / 128) rows would be another case for 128
// tokens and fewer.
Quantized allocate(octile_plan* plan, const Place& place, std::int64_t rows, std::int64_t groups,
                   bool transposed, const octile_tensor_type& type);

struct QuantizeCall {
  std::int64_t rows = 0;
  const void* x = nullptr;
  std::int64_t ldx = 0;
  const std::int32_t* offsets = nullptr;  // of `groups` contiguous groups
  std::int64_t groups = 0;
  const void* x_scale = nullptr;        // FP8 x
  const std::uint32_t* skip = nullptr;  // octile_quantize_args.skip
  const float* encode_scale = nullptr;  // plans of delayed scaling
  float* amax = nullptr;                // raised to the largest finite |x|; null: not recorded
};

// Runs a quantise plan into outputs that are allocated. Kernels that are not ready are prepared
// first.
void quantize(octile_plan* plan, const Place& place, const QuantizeCall& call,
              const QuantizeOutputs& outputs);

// Updates the scales of delayed scaling by a quantise plan of that policy.
void run_scale_update(octile_plan* plan, const Place& place, octile_scale_update_args args);

// Compiles or finds the kernels for lo to hi tokens.
void prepare(octile_plan* plan, std::int64_t lo, std::int64_t hi);

// Runs a GEMM. The workspace is allocated here, and kernels that are not ready are prepared.
void multiply(octile_plan* plan, const Place& place, octile_gemm_args args);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_PLANS_H_
