// A batch of GEMMs on the GPU: operands in one of several layouts, D between guard zones, run with
// an explicit configuration. Each D is judged against the FP64 product of its own operands.
#pragma once

#include <cstdint>
#include <vector>

#include "generator/gemm/config.h"
#include "generator/gemm/problem.h"
#include "runtime/families/gemm/arguments.h"
#include "runtime/reference/gemm/reference_groups.h"
#include "tests/gpu/gemm_tensors.h"

namespace octile::tests {

// How the matrices of a batch lie.
enum class BatchLayout {
  kPacked,      // one behind the other
  kSideBySide,  // [rows][batch][columns], as heads in the rows of tokens; B too
  kSharedB,     // packed, with one B
};

class GemmBatchCase : public GemmTensors {
 public:
  // `recipe` gives types and outputs.
  GemmBatchCase(GpuSession& gpu, const GemmProblem& recipe, std::int64_t batch, std::int64_t m,
                std::int64_t n, std::int64_t k, std::uint64_t seed,
                BatchLayout layout = BatchLayout::kPacked);

  std::int64_t tokens() const { return m_; }
  GemmArguments args() const;

  void run_config(const GemmConfig& config, CUstream stream) { run_call(config, args(), stream); }
  // Expects every element of every D within tolerance, and every other byte as it was.
  void judge();
  // Returns the GEMMs one by one, on device pointers.
  std::vector<reference::GemmPart> parts() const;

 private:
  void expect_rest_untouched();
  std::int64_t element_bytes() const { return size_of(problem_.d.dtype); }

  std::int64_t m_;
  BatchLayout layout_;
};

}  // namespace octile::tests
