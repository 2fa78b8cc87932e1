// GEMMs of groups on the GPU: operands between guard zones, run through a plan or an explicit
// configuration. Each group's D is judged against the FP64 product of its own operands.
#pragma once

#include <cstdint>
#include <vector>

#include "generator/gemm/config.h"
#include "generator/gemm/problem.h"
#include "runtime/families/gemm/arguments.h"
#include "runtime/reference/gemm/reference_groups.h"
#include "tests/gpu/session.h"

namespace octile::tests {

class GemmGroupCase {
 public:
  static constexpr int kPoison = 0xFF;       // two of them are a NaN of 16 bits
  static constexpr int kInitialByte = 0x40;  // of a D that is added to

  // `recipe` gives types, grouping and outputs. Groups have `sizes` rows, or tokens of K; n and
  // `other` are the dimensions beside the tokens. `room` rows or tokens belong to no group, or are
  // room that a masked group does not use.
  GemmGroupCase(GpuSession& gpu, const GemmProblem& recipe, const std::vector<std::int32_t>& sizes,
                std::int64_t n, std::int64_t other, std::uint64_t seed, std::int64_t room = 0);

  const GemmProblem& problem() const { return problem_; }
  std::int64_t tokens() const { return tokens_; }
  GemmArguments args() const;
  // Replaces the offsets or counts.
  void set_group_rows(const std::vector<std::int32_t>& rows);

  void poison_output();
  void run_config(const GemmConfig& config, CUstream stream);
  // The same on the caller's tensors.
  void run_call(const GemmConfig& config, const GemmArguments& call, CUstream stream);
  // Expects every element of every group within tolerance, and every other byte of D as it was.
  void judge();
  octile_squares squares();  // of a squares sentry
  // Expects that nothing was written before or behind D.
  void expect_guards();
  // Returns the GEMM of one group, on device pointers.
  std::vector<reference::GemmPart> parts() const;
  std::vector<std::uint8_t> bytes_of_d();
  DeviceBuffer& a() { return a_; }
  DeviceBuffer& b() { return b_; }
  DeviceBuffer& a_scale() { return a_scale_; }
  DeviceBuffer& b_scale() { return b_scale_; }
  DeviceBuffer& d() { return d_; }
  DeviceBuffer& d_scale() { return d_scale_; }  // of FP8 D, packed
  std::int64_t d_scale_ld() const { return round_up(all_.d_rows, 4); }

  static constexpr std::int64_t kGuardBytes = 4096;

 private:
  void clear_padding(DeviceBuffer& codes, std::int64_t rows, std::int64_t ld);

  GpuSession& gpu_;
  GemmProblem problem_;
  std::int64_t tokens_ = 0;
  GemmMatrices all_;
  std::vector<std::int32_t> group_rows_;
  std::int64_t lda_ = 0, ldb_ = 0, ldd_ = 0, a_scale_ld_ = 0, b_scale_ld_ = 0;
  DeviceBuffer a_, b_, a_scale_, b_scale_, d_, d_scale_, sentry_, groups_;
};

}  // namespace octile::tests
