// The times of a layer's kernels on a GPU, in one interleaved run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/bench/measurement.h"
#include "tools/models/judge.h"

namespace octile::tools {

// cuBLASLt in BF16, called for each group of a case's GEMMs.
struct Loop {
  std::string name;  // "cublaslt x 64"; empty: there is none
  double us = 0;
};

struct MeasuredCase {
  CaseTimes times;
  bool ok = true;     // false: a GEMM was wrong
  std::string check;  // how far the GEMMs are from FP64
  // Estimated times among the measured ones, with the reason: "self_attn.kv_b_proj: BF16: ...";
  // empty: nothing.
  std::vector<std::string> remarks;
  Loop loop;  // no part of `times`, whose BF16 is the estimate of grouped GEMMs
};

// Checks each GEMM of the case against FP64, then times all of its kernels and its GEMMs in BF16 by
// cuBLASLt in turns, over operands that rotate beyond twice L2. For groups and batches cuBLASLt has
// no call here, and `estimated` stands for them, as it does for the work that fused quantisers add.
// Contiguous groups and groups of K are timed as loops of GEMMs of the mean size besides. Errors:
// those of preparing, running and measuring.
Result<MeasuredCase> measure_case(const BenchContext& context, const LayerCase& layer,
                                  const CaseTimes& estimated);

}  // namespace octile::tools
