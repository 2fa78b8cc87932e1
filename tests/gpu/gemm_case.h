// One GEMM: operands with guard zones and random content on the GPU, run through a plan or an
// explicit configuration, judged against the FP64 product of the dequantised operands.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "generator/families.h"
#include "generator/gemm/config.h"
#include "octile/octile.h"
#include "runtime/families/gemm/arguments.h"
#include "tests/gpu/gemm_tensors.h"

namespace octile::tests {

// Elements added to each packed leading dimension.
struct Strides {
  std::int64_t a = 0, b = 0, d = 0, a_scale = 0, b_scale = 0;
};

struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;
};
std::string to_text(const GemmShape&);

// D += A B^T in fp32, with the tokens in k; GemmCase sets the extents.
GemmProblem weight_gradient();
// A problem whose operands both have this granularity, per row or per tensor.
GemmProblem scaled_at_end(Granularity granularity, int promote);

// The codes of both operands.
enum class CodeMode : int {
  kQuantised = 0,    // near-normal over the format's upper range, as a quantiser leaves them
  kUniform = 1,      // every finite code as likely
  kOneHuge = 2,      // one element of each K-block the largest, all others the smallest subnormal
  kAllEqual = 3,     // ones
  kAlternating = 4,  // magnitudes of four binades; signs of A alternate along K, B is positive
};

// The token count of its problem is dynamic.
class GemmCase : public GemmTensors {
 public:
  GemmCase(GpuSession& gpu, const GemmProblem& recipe, GemmShape shape, std::uint64_t seed,
           Strides strides = {}, CodeMode code_mode = CodeMode::kQuantised, int scale_spread = 3);

  const GemmShape& shape() const { return shape_; }
  GemmArguments args() const;

  std::uint32_t sentry() { return squares().sentry; }
  // Through the public API: a plan of its own, prepared for this token count.
  void run_plan(CUstream stream);
  // An explicit configuration through the engine, on at most `sm_limit` SMs.
  void run_config(const GemmConfig& config, CUstream stream, int sm_limit = 0);

  // Expects every element within tolerance and every guard byte untouched; returns what it saw.
  Verdict judge(double c);
  Verdict raw_verdict(double c);

  std::int64_t d_offset() const { return kGuardBytes; }
  std::int64_t lda() const { return lda_; }
  std::int64_t ldb() const { return ldb_; }
  std::int64_t ldd() const { return ldd_; }

 private:
  GemmShape shape_;
  DeviceBuffer bias_;
};

// Compile on every core what run_plan() and run_config() of the cases to come need: one after the
// other the kernels would take most of the tests' time. A kernel that does not compile is reported
// by its case.
struct PlannedGemm {
  GemmProblem recipe;
  GemmShape shape;
};
void compile_plans(const std::vector<PlannedGemm>&);
void compile_configs(const GemmProblem&, const std::vector<GemmConfig>&);

// The largest c any judged element of this process needed, by promotion interval
// (docs/numerics.md).
double worst_c_seen(int promote);

}  // namespace octile::tests
