// What a caller gives to one GEMM call, and the checks of it.
#pragma once

#include <cstdint>

#include "generator/core/error.h"
#include "generator/gemm/problem.h"
#include "octile/octile.h"
#include "runtime/launch/argument_checks.h"
#include "runtime/reference/gemm/reference.h"

namespace octile {

// The arguments of octile_gemm_run with the features' structs in place of pointers to them, so that
// they can be copied and completed. The struct_size of a feature that the caller passed as null is
// 0. Nothing but its plain fields is read from the base.
struct GemmArguments : octile_gemm_args {
  octile_gemm_groups groups = unused_feature<octile_gemm_groups>();
  octile_gemm_batch batch = unused_feature<octile_gemm_batch>();
  octile_gemm_d_scales d_scales = unused_feature<octile_gemm_d_scales>();
  octile_gemm_monitor monitor = unused_feature<octile_gemm_monitor>();

  GemmArguments() : octile_gemm_args{} { struct_size = sizeof(octile_gemm_args); }

  // Returns the same for the C API. The features' pointers lead into this object.
  octile_gemm_args call() const;
};

// The extents of one call.
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

// Returns what a call says of its groups: offsets of contiguous groups, counts of masked ones.
const std::int32_t* group_rows(const GemmProblem& problem, const GemmArguments& args);

// Returns the strides between the matrices of a batch, as checked; none is negative.
reference::BatchStrides batch_strides(const GemmArguments& args);

inline std::int64_t tokens_of(const GemmArguments& args) { return args.tokens; }
// Returns the token count by which the call's kernel is chosen.
inline std::int64_t expected_tokens_of(const GemmArguments& args) {
  return args.groups.expected_tokens > 0 ? args.groups.expected_tokens : args.tokens;
}

// Checks the arguments and fills in the leading dimensions and strides that are 0. The token count
// was checked (check_tokens). If D is empty, pointers are not looked at.
Status check_arguments(const GemmProblem& problem, GemmArguments& args);

// Returns true if the call has nothing to do: D has no element.
bool is_nothing(const GemmProblem& problem, const GemmArguments& args);

reference::GemmArgs reference_args(const GemmProblem& problem, const GemmArguments& args);

// Runs checked arguments on the host. Errors: as reference::gemm.
Status run_on_host(const GemmProblem& problem, const GemmArguments& args);

}  // namespace octile
