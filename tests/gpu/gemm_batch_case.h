// A batch of GEMMs on the GPU: operands in one of several layouts, D between guard zones, run with
// an explicit configuration. Each D is judged against the FP64 product of its own operands.
#pragma once

#include <cstdint>
#include <vector>

#include "generator/gemm/config.h"
#include "generator/gemm/problem.h"
#include "runtime/families/gemm/arguments.h"
#include "runtime/reference/gemm/reference_groups.h"
#include "tests/gpu/session.h"

namespace octile::tests {

// How the matrices of a batch lie.
enum class BatchLayout {
  kPacked,      // one behind the other
  kSideBySide,  // [rows][batch][columns], as heads in the rows of tokens; B too
  kSharedB,     // packed, with one B
};

class GemmBatchCase {
 public:
  static constexpr int kPoison = 0xFF;       // two of them are a NaN of 16 bits
  static constexpr int kInitialByte = 0x40;  // of a D that is added to
  static constexpr std::int64_t kGuardBytes = 4096;

  // `recipe` gives types and outputs.
  GemmBatchCase(GpuSession& gpu, const GemmProblem& recipe, std::int64_t batch, std::int64_t m,
                std::int64_t n, std::int64_t k, std::uint64_t seed,
                BatchLayout layout = BatchLayout::kPacked);

  const GemmProblem& problem() const { return problem_; }
  std::int64_t tokens() const { return m_; }
  GemmArguments args() const;

  void poison_output();
  void run_config(const GemmConfig& config, CUstream stream);
  // Expects every element of every D within tolerance, and every other byte as it was.
  void judge();
  // Returns the GEMMs one by one, on device pointers.
  std::vector<reference::GemmPart> parts() const;
  std::vector<std::uint8_t> bytes_of_d();
  DeviceBuffer& a() { return a_; }
  DeviceBuffer& b() { return b_; }
  DeviceBuffer& a_scale() { return a_scale_; }
  DeviceBuffer& b_scale() { return b_scale_; }
  DeviceBuffer& d() { return d_; }

 private:
  void expect_rest_untouched();
  std::int64_t element_bytes() const { return size_of(problem_.d.dtype); }

  GpuSession& gpu_;
  GemmProblem problem_;
  std::int64_t m_;
  BatchLayout layout_;
  // Rows of one matrix, as far apart as if packed.
  std::int64_t a_row_ = 0, b_row_ = 0, d_row_ = 0, a_scale_row_ = 0, b_scale_row_ = 0;
  DeviceBuffer a_, b_, a_scale_, b_scale_, d_, sentry_;
};

}  // namespace octile::tests
