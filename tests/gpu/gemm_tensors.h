// The tensors of a case of GEMMs on the GPU: operands, and a D between guard zones.
#pragma once

#include <cstdint>
#include <vector>

#include "generator/gemm/config.h"
#include "generator/gemm/problem.h"
#include "octile/octile.h"
#include "runtime/families/gemm/arguments.h"
#include "tests/gpu/session.h"

namespace octile::tests {

class GemmTensors {
 public:
  static constexpr int kPoison = 0xFF;  // two of them are a NaN of 16 bits
  // Every byte of a D that is added to: 3.0 (bf16) or about that (fp32).
  static constexpr int kInitialByte = 0x40;
  static constexpr std::int64_t kGuardBytes = 4096;

  const GemmProblem& problem() const { return problem_; }

  // Poisons D, or gives it its initial value if the problem accumulates; clears the sentry.
  void poison_output();
  // An explicit configuration through the engine.
  void run_call(const GemmConfig& config, const GemmArguments& call, CUstream stream);
  octile_squares squares();  // only the word is used unless the sentry is one of squares
  std::vector<std::uint8_t> bytes_of_d();

  DeviceBuffer& a() { return a_; }
  DeviceBuffer& b() { return b_; }
  DeviceBuffer& a_scale() { return a_scale_; }
  DeviceBuffer& b_scale() { return b_scale_; }
  DeviceBuffer& d() { return d_; }
  DeviceBuffer& d_scale() { return d_scale_; }  // of FP8 D, packed

 protected:
  GemmTensors(GpuSession& gpu, const GemmProblem& problem) : gpu_(gpu), problem_(problem) {}
  // Returns the arguments of a call on the tensors.
  GemmArguments arguments(std::int64_t tokens) const;

  GpuSession& gpu_;
  GemmProblem problem_;
  std::int64_t d_rows_ = 0;
  std::int64_t lda_ = 0, ldb_ = 0, ldd_ = 0, a_scale_ld_ = 0, b_scale_ld_ = 0;
  DeviceBuffer a_, b_, a_scale_, b_scale_, d_, d_scale_, sentry_;
};

}  // namespace octile::tests
