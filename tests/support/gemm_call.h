// Calls of GEMMs through the C API, from arguments that hold their features' structs.
#pragma once

#include "octile/octile.h"
#include "runtime/families/gemm/arguments.h"

namespace octile::tests {

inline octile_status run_gemm(octile_plan* plan, const GemmArguments& args,
                              void* stream = nullptr) {
  const octile_gemm_args call = args.call();
  return octile_gemm_run(plan, &call, stream);
}

}  // namespace octile::tests
