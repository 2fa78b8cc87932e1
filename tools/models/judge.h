// From the times of a layer's kernels to the verdict on FP8 (verdict.h).
#pragma once

#include <string_view>
#include <vector>

#include "cache/json.h"
#include "generator/core/device_spec.h"
#include "tools/models/layer_cases.h"
#include "tools/models/verdict.h"

namespace octile::tools {

// The host's time for a call of any kind, so that small layers wait for it call by call.
inline constexpr double kHostUs = 3;

// The time that a kernel among those of a layer may take more or less than alone, unless all of
// them were measured: forward passes of octile.torch as a graph take up to 6 us more than their two
// kernels.
inline constexpr double kGapUs = 2;

struct KernelTime {
  Microseconds us;
  std::vector<double> rounds =
      {};  // of one interleaved run of all kernels; empty: only `us` is known
};

// The times of a case's kernels, in its order.
struct CaseTimes {
  std::vector<KernelTime> bf16;        // its GEMMs in BF16
  std::vector<KernelTime> gemms;       // in FP8
  std::vector<KernelTime> quantizers;  // whole, not the layer's share
  // The time that a quantiser that computes the norm or the activation too adds to that alone in
  // BF16; where there is no such kernel, the quantiser's time.
  std::vector<double> fused_us;
};

struct Gain {
  double median = 0, low = 0, high = 0;  // 95 % interval
};

// The times of a whole layer.
struct LayerTimes {
  Microseconds bf16, fp8_gemms, quantize;
  double fused_quantize = 0;
  Gain gain;
};

struct JudgedLayer {
  LayerCase layer;
  LayerVerdict verdict;
  // One copy call by call: kernels, and the host's time of each call.
  double eager_bf16_us = 0, eager_fp8_us = 0;
};

// The rule. FP8 pays as measured if the low end is kLeastGain or more, and loses if the high end is
// below 1. Estimates and near records say pays from kEstimatePays and loses up to kEstimateLoses,
// if a gain of 1 lies outside of their error.
Verdict verdict_of(const Gain& gain, bool is_measured);

// Returns the layer's times and its verdicts, as a graph and call by call.
JudgedLayer judge(const LayerCase& layer, const LayerTimes& times);

// Returns the verdicts by the times of the kernels. If all of them were timed in one run, the gain
// is the median of the rounds' ratios with its 95 % interval, else it has the errors of its parts.
// Unless all is measured, each kernel may take `kernel_gap_us` more or less.
JudgedLayer judge(const LayerCase& layer, const CaseTimes& times, double kernel_gap_us = kGapUs);

// Returns the calls of one copy in FP8: its GEMMs, and its share of the quantisers.
double calls_of(const LayerCase& layer);

// Returns the sum of each mode and token count, in their order, for one device.
std::vector<ModelVerdict> sum_up(const std::vector<JudgedLayer>& layers, const DeviceSpec& device);

TimeSource source_of(const LayerVerdict& layer);  // of its least known part
std::string_view name_of(TimeSource source);      // "measured", "near", "estimated"
std::string_view name_of(Verdict verdict);        // "pays", "even", "loses", "measure"

Json to_json(const JudgedLayer& judged);
Json to_json(const ModelVerdict& model);

}  // namespace octile::tools
