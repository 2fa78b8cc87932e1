// The strides between the matrices of a batch, beside those of one matrix (complete.cc).
#pragma once

#include <cstdint>

#include "generator/core/error.h"
#include "runtime/families/gemm/arguments.h"

namespace octile {

// TMA: base addresses and strides are multiples of 16 bytes (PTX ISA, cp.async.bulk.tensor).
inline constexpr std::int64_t kTmaBytes = 16;
// TMA: a stride is below 2^40 bytes (driver API, cuTensorMapEncodeTiled).
inline constexpr std::int64_t kMaxStrideBytes = std::int64_t{1} << 40;

// Refuses strides of a plan without a batch.
Status check_batch_is_known(const GemmProblem& problem, const GemmArguments& args);

// Fill in the call's strides that are 0 and check them. Its leading dimensions are filled in.
Status complete_batch_of_d(const GemmProblem& problem, GemmCall& call);
Status complete_batch_of_operands(const GemmProblem& problem, GemmCall& call);

}  // namespace octile
