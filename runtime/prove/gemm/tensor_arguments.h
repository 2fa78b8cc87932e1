// Arguments of D = A * B^T from packed tensors.
#pragma once

#include "runtime/families/gemm/arguments.h"
#include "runtime/measure/tensor.h"
#include "runtime/reference/gemm/call.h"

namespace octile {

// Return arguments whose token count is m, the rows of A.
GemmArguments gemm_args(const HostTensor& a, const HostTensor& b, void* d);
GemmArguments gemm_args(const DeviceTensor& a, const DeviceTensor& b, void* d);

// A packed operand on the host.
struct HostOperand {
  std::int64_t rows = 0, cols = 0, ld = 0;
  const std::uint8_t* data = nullptr;
  const std::uint8_t* scales = nullptr;
};

// Operands of a GEMM beside A and B, on the host.
struct GemmAddends {
  const void* bias = nullptr;  // [n], if the problem has one
  float initial_d = 0;         // every element of D before the call, if the problem accumulates
  // The call's token count, and the offsets or counts of its groups, if the problem has groups.
  std::int64_t tokens = 0;
  const std::int32_t* group_rows = nullptr;
};

// Return the call of gemm_fp64. The tensors hold all GEMMs of groups or of a batch, one behind the
// other. Errors: as complete_for_fp64.
Result<GemmCall> oracle_call(const GemmProblem& problem, const HostOperand& a, const HostOperand& b,
                             const GemmAddends& addends);
Result<GemmCall> oracle_call(const GemmProblem& problem, const HostTensor& a, const HostTensor& b,
                             const GemmAddends& addends);

}  // namespace octile
