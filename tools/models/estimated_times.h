// The times of a layer's kernels without a GPU: tuning records, else the cost model, and rooflines
// for GEMMs in BF16 and for quantisers.
#pragma once

#include <optional>
#include <string_view>

#include "cache/tuning_set.h"
#include "generator/core/device_spec.h"
#include "tools/models/judge.h"

namespace octile::tools {

// Returns what a record says about something besides its winner: "bf16", the same GEMM in BF16, or
// "quantize a", the quantiser of its operand A.
std::optional<double> recorded_us(const cache::TuningRecord& record, std::string_view name);

// Returns microseconds of a quantiser that moves `rows` rows in all.
double quantizer_us(const QuantizeProblem& problem, std::int64_t rows, const DeviceSpec& device);

// Twice the deviation that these have over docs/records.
inline constexpr double kQuantizerError = 0.2;
inline constexpr double kGemmError = 0.11;  // by the cost model
inline constexpr double kNearError = 0.1;   // by the record of another token count or shape

CaseTimes estimated_times(const LayerCase& layer, const DeviceSpec& device,
                          const cache::TuningSet& records);

}  // namespace octile::tools
