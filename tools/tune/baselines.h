// Baselines that `octile tune` times beside a GEMM.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/prove/gemm/bench.h"
#include "runtime/tuner/gpu_decider.h"
#include "tools/peers/cublaslt.h"

namespace octile::tools {

// Returns the microseconds of "cublaslt" and "bf16", measured in a short interleaved run beside
// candidates of the bench. A baseline that cuBLASLt does not take is left out.
Result<tuner::Baselines> time_baselines(const std::shared_ptr<const CublasLt>& library,
                                        const GpuSession& gpu, const GemmProblem& problem,
                                        std::int64_t tokens, const tuner::GemmBench& bench,
                                        std::span<const int> beside);

}  // namespace octile::tools
