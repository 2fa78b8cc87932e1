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

// Return the call of gemm_fp64, without D.
GemmCall oracle_call(const HostOperand& a, const HostOperand& b);
GemmCall oracle_call(const HostTensor& a, const HostTensor& b);

// Makes it a call with groups or a batch, if the problem has any. The tensors hold all
// of its GEMMs, one behind the other.
void set_groups(const GemmProblem& problem, std::int64_t tokens, const std::int32_t* group_rows,
                GemmCall& call);

}  // namespace octile
