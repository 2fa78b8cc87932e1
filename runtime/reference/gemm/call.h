// A GEMM call, complete: the host executor and the launch read it and derive nothing from a
// caller's arguments.
#pragma once

#include <cstdint>

#include "generator/core/error.h"
#include "generator/gemm/problem.h"

namespace octile {

// The extents of one GEMM.
struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;
};
// Returns the problem's extents with the call's token count in its place.
inline GemmShape shape_of(const GemmProblem& problem, std::int64_t tokens) {
  return {m_at(problem, tokens), problem.n, k_at(problem, tokens)};
}

// The extents of the tensors: of all groups, or of a batch packed.
struct GemmMatrices {
  std::int64_t a_rows = 0, b_rows = 0, d_rows = 0;
  std::int64_t k = 0;  // columns of A and B; those of groups begin on multiples of 128
};
GemmMatrices matrices_of(const GemmProblem& problem, std::int64_t tokens);

// Elements from one matrix of a batch to the next; 0: all GEMMs read the first matrix.
struct BatchStrides {
  std::int64_t a = 0, a_scale = 0, b = 0, b_scale = 0, d = 0;
};

struct GemmCall {
  enum class Work {
    kNothing,   // D has no element
    kEmptySum,  // D becomes 0, or stays if the problem accumulates; no kernel is launched
    kProduct,
  };
  Work work = Work::kProduct;
  GemmShape
      shape;  // of one GEMM; m of contiguous groups counts the rows of all, and k their tokens
  GemmMatrices tensors;
  GemmMatrices maps;  // what a tensor map covers: a batch's matrix, else `tensors`
  BatchStrides strides;

  const void* a = nullptr;
  std::int64_t lda = 0;  // in elements, as ldb and ldd are
  const void* a_scale = nullptr;
  std::int64_t a_scale_ld = 0;
  const void* b = nullptr;
  std::int64_t ldb = 0;
  const void* b_scale = nullptr;
  std::int64_t b_scale_ld = 0;
  void* d = nullptr;
  std::int64_t ldd = 0;
  const void* bias = nullptr;  // [n], if the problem has one
  // Set to 1 if an element of D is not finite. May be null unless the sentry is one of squares,
  // and then begins an octile_squares.
  std::uint32_t* sentry = nullptr;
  float* d_scale = nullptr;  // the scales of FP8 D
  std::int64_t d_scale_ld = 0;
  bool pads_d_scale = true;  // the host executor writes scales behind row m, as ones
  float initial_d = 0;       // gemm_fp64: every element of D before the call
  const std::int32_t* group_rows = nullptr;  // offsets of contiguous groups, counts of masked ones
  std::int64_t tokens = 0;
  std::int64_t kernel_tokens = 0;  // the token count by which the call's kernel is chosen
  int sm_limit = 0;                // 0: all SMs
  bool b_ready = false;            // B may be read before the preceding kernel has ended

  bool has_work() const { return work != Work::kNothing; }
};

// Returns the strides of A, B and their scales if the matrices of a batch lie one behind the other.
// The leading dimensions are filled in.
BatchStrides packed_strides(const GemmProblem& problem, const GemmCall& call);

}  // namespace octile
