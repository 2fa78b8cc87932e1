// GEMMs of groups on the GPU: operands between guard zones, run through a plan or an explicit
// configuration. Each group's D is judged against the FP64 product of its own operands.
#pragma once

#include <cstdint>
#include <vector>

#include "generator/gemm/config.h"
#include "generator/gemm/problem.h"
#include "runtime/families/gemm/arguments.h"
#include "runtime/reference/gemm/reference_groups.h"
#include "tests/gpu/gemm_tensors.h"

namespace octile::tests {

class GemmGroupCase : public GemmTensors {
 public:
  // `recipe` gives types, grouping and outputs. Groups have `sizes` rows, or tokens of K; n and
  // `other` are the dimensions beside the tokens. `room` rows or tokens belong to no group, or are
  // room that a masked group does not use.
  GemmGroupCase(GpuSession& gpu, const GemmProblem& recipe, const std::vector<std::int32_t>& sizes,
                std::int64_t n, std::int64_t other, std::uint64_t seed, std::int64_t room = 0);

  std::int64_t tokens() const { return tokens_; }
  GemmArguments args() const;
  // Replaces the offsets or counts.
  void set_group_rows(const std::vector<std::int32_t>& rows);

  void run_config(const GemmConfig& config, CUstream stream) { run_call(config, args(), stream); }
  // Expects every element of every group within tolerance, and every other byte of D as it was.
  void judge();
  // Expects that nothing was written before or behind D.
  void expect_guards();
  // Returns the GEMM of one group, on device pointers.
  std::vector<reference::GemmPart> parts() const;
  std::int64_t d_scale_ld() const { return round_up(all_.d_rows, 4); }

 private:
  void clear_padding(DeviceBuffer& codes, std::int64_t rows, std::int64_t ld);

  std::int64_t tokens_ = 0;
  GemmMatrices all_;
  std::vector<std::int32_t> group_rows_;
  DeviceBuffer groups_;
};

}  // namespace octile::tests
