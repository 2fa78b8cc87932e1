// Other implementations that `octile tune` times beside a GEMM.
#pragma once

#include <memory>

#include "runtime/prove/gemm/bench.h"
#include "runtime/tuner/gpu_decider.h"
#include "tools/peers/cublaslt.h"

namespace octile::tools {

// Returns cuBLASLt in bf16 and, if asked, in FP8 ("cublaslt"), which uses the slots of the bench.
// Problems that cuBLASLt does not take, or the GPU has no memory for, are left out. Problems other
// than GEMMs, and several in one call, have none.
Result<tuner::Rivals> rivals_of(const std::shared_ptr<const CublasLt>& library, bool with_fp8,
                                const GpuSession& gpu, const tuner::TuningTask& task,
                                const tuner::GpuBench& bench);

}  // namespace octile::tools
