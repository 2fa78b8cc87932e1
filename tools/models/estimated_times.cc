#include "tools/models/estimated_times.h"

#include <algorithm>

#include "generator/core/token_buckets.h"
#include "runtime/engine/choice.h"
#include "tools/models/bf16_roofline.h"

namespace octile::tools {
namespace {

// Microseconds of a quantiser beside its stream, on an H100 and an H200 (docs/records).
constexpr double kQuantizerStartUs = 1.1;
constexpr double kTransposedUs = 0.45;  // it writes a transposed copy
constexpr double kGroupsUs = 0.6;       // it looks up its group
constexpr double kMaximumUs = 0.75;     // a maximum of the whole tensor comes first
constexpr double kNormUs = 0.7;         // it sums squares first
constexpr double kActivationUs = 0.2;
constexpr double kStreamShare = 0.95;  // of the rate of a stream that mostly reads
constexpr double kBothFactor = 1.05;   // both copies at once
// Bytes an element that a norm and a gated activation move in BF16 without quantising.
constexpr double kNormBytes = 4;
constexpr double kActivationBytes = 6;

KernelTime with_error(double us, double error, TimeSource source) {
  return {{us, us * (1 - error), us * (1 + error), source}};
}

KernelTime timed(const cache::TimedConfig& t) {
  const bool has_interval = t.low_us > 0 && t.high_us >= t.low_us;
  return {{t.median_us, has_interval ? t.low_us : t.median_us,
           has_interval ? t.high_us : t.median_us, TimeSource::kMeasured}};
}

double expected_us(const KernelConfig& config, const Problem& problem, std::int64_t tokens,
                   const DeviceSpec& device) {
  return estimate_us(config, problem, tokens, device);
}

// Returns the time of a record of another token count, shape or card, times what the cost model
// expects of the difference; nothing for a record that cannot be read.
std::optional<KernelTime> scaled(const cache::TuningRecord& record, const KernelConfig& config,
                                 const Problem& problem, std::int64_t tokens,
                                 const DeviceSpec& device) {
  const auto of = parse_problem(record.problem);
  const DeviceSpec* on = record.device == device.name ? &device : find_device(record.device);
  if (!of || on == nullptr || record.winner.median_us <= 0) return std::nullopt;
  const double there = expected_us(config, *of, record.tokens, *on);
  const double here = expected_us(config, problem, tokens, device);
  return with_error(record.winner.median_us * here / there, kNearError, TimeSource::kNear);
}

KernelTime gemm_time(const GemmUse& use, const DeviceSpec& device,
                     const cache::TuningSet& records) {
  const Problem problem = use.problem;
  const Choice choice = choose_config(problem, use.tokens, device, records);
  if (const auto& record = choice.record) {
    const bool is_exact = choice.by == ChosenBy::kRecord && record->tokens == use.tokens &&
                          record->winner.median_us > 0;
    if (is_exact) return timed(record->winner);
    if (auto near = scaled(*record, choice.config, problem, use.tokens, device)) return *near;
  }
  return with_error(expected_us(choice.config, problem, use.tokens, device), kGemmError,
                    TimeSource::kEstimated);
}

// Returns what the record of the GEMM at this count on this card says besides its winner.
std::optional<KernelTime> recorded(const GemmUse& use, const DeviceSpec& device,
                                   const cache::TuningSet& records, std::string_view name) {
  const std::int64_t bucket = bucket_upper(bucket_of(use.tokens));
  const std::string text = tuning_text(use.problem);
  for (const cache::TuningHit& hit : records.lookup({text, bucket, device.name, device.sm_count})) {
    if (hit.match != cache::TuningMatch::kExact || hit.record->tokens != use.tokens) continue;
    if (const auto us = recorded_us(*hit.record, name)) {
      return with_error(*us, 0, TimeSource::kMeasured);
    }
  }
  return std::nullopt;
}

KernelTime bf16_time(const GemmUse& use, const DeviceSpec& device,
                     const cache::TuningSet& records) {
  if (const auto time = recorded(use, device, records, "bf16")) return *time;
  return with_error(bf16_us(use.problem, use.tokens, device), kBf16Error, TimeSource::kEstimated);
}

// To serve, a layer's one quantiser is that of its GEMM's A.
KernelTime quantizer_time(const LayerCase& layer, const QuantizerUse& use, const DeviceSpec& device,
                          const cache::TuningSet& records) {
  if (layer.mode != Mode::kTraining && layer.gemms.size() == 1) {
    if (const auto time = recorded(layer.gemms[0], device, records, "quantize a")) return *time;
  }
  return with_error(quantizer_us(use.problem, use.rows, device), kQuantizerError,
                    TimeSource::kEstimated);
}

// Returns what the fused kernel adds to the norm or the activation in BF16.
double fused_us(const QuantizerUse& use, const DeviceSpec& device) {
  if (!use.fused) return quantizer_us(use.problem, use.rows, device);
  const bool is_norm = use.fused->source == "rmsnorm";
  const double bytes = (is_norm ? kNormBytes : kActivationBytes) * static_cast<double>(use.rows) *
                       static_cast<double>(use.problem.cols);
  const double alone = kQuantizerStartUs + (is_norm ? kNormUs : kActivationUs) +
                       bytes / (kStreamShare * device.dram_tbps * 1e6);
  return std::max(0.0, quantizer_us(*use.fused, use.rows, device) - alone);
}

}  // namespace

std::optional<double> recorded_us(const cache::TuningRecord& record, std::string_view name) {
  constexpr std::string_view kQuantizer = "quantize ";
  const bool is_quantizer = name.starts_with(kQuantizer);
  const auto& all = is_quantizer ? record.quantize_us : record.baselines_us;
  if (is_quantizer) name.remove_prefix(kQuantizer.size());
  const auto found = std::ranges::find(all, name, [](const auto& one) { return one.first; });
  if (found == all.end() || found->second <= 0) return std::nullopt;
  return found->second;
}

double quantizer_us(const QuantizeProblem& p, std::int64_t rows, const DeviceSpec& device) {
  const bool finds_maximum =
      p.q.granularity == Granularity::kPerTensor && p.policy == ScalePolicy::kCurrent;
  const double inputs = p.source == "silu_mul" ? 2 : 1;
  const double read = size_of(p.x.dtype) * inputs * (finds_maximum ? 2 : 1);
  const bool both = p.output == QuantizeOutput::kBoth;
  const double bytes = static_cast<double>(rows) * static_cast<double>(p.cols) *
                       (read + (both ? 2 : 1) * static_cast<double>(size_of(p.q.dtype)));
  const double start =
      kQuantizerStartUs + (p.output == QuantizeOutput::kRowwise ? 0 : kTransposedUs) +
      (has_token_groups(p.grouping) ? kGroupsUs : 0) + (finds_maximum ? kMaximumUs : 0) +
      (p.source == "rmsnorm" ? kNormUs
       : p.source.empty()    ? 0
                             : kActivationUs);
  return start + bytes * (both ? kBothFactor : 1) / (kStreamShare * device.dram_tbps * 1e6);
}

CaseTimes estimated_times(const LayerCase& layer, const DeviceSpec& device,
                          const cache::TuningSet& records) {
  CaseTimes times;
  for (const GemmUse& use : layer.gemms) {
    times.bf16.push_back(bf16_time(use, device, records));
    times.gemms.push_back(gemm_time(use, device, records));
  }
  for (const QuantizerUse& use : layer.quantizers) {
    times.quantizers.push_back(quantizer_time(layer, use, device, records));
    times.fused_us.push_back(fused_us(use, device));
  }
  return times;
}

}  // namespace octile::tools
