// Calls of GEMMs through the C API, from arguments that hold their features' structs, and of the
// host reference.
#pragma once

#include "octile/octile.h"
#include "runtime/families/gemm/arguments.h"
#include "runtime/reference/gemm/call.h"

namespace octile::tests {

inline octile_status run_gemm(octile_plan* plan, const GemmArguments& args,
                              void* stream = nullptr) {
  const octile_gemm_args call = args.call();
  return octile_gemm_run(plan, &call, stream);
}

// Returns a complete call of the host reference, whose operands may have strides that no kernel
// takes and complete() refuses.
template <typename Operand>
GemmCall call_of(const Operand& a, const Operand& b, void* d, std::int64_t ldd) {
  const GemmMatrices matrices{a.rows, b.rows, a.rows, a.k};
  GemmCall call;
  call.shape = {a.rows, b.rows, a.k};
  call.tensors = call.maps = matrices;
  call.a = a.codes.data();
  call.lda = a.ld;
  call.a_scale = a.scales.data();
  call.a_scale_ld = a.scale_ld;
  call.b = b.codes.data();
  call.ldb = b.ld;
  call.b_scale = b.scales.data();
  call.b_scale_ld = b.scale_ld;
  call.d = d;
  call.ldd = ldd;
  call.tokens = call.kernel_tokens = a.rows;
  return call;
}

}  // namespace octile::tests
