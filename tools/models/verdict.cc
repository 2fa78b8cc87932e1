#include "tools/models/verdict.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "runtime/measure/statistics.h"
#include "tools/models/judge.h"

namespace octile::tools {
namespace {

double error_of(const Microseconds& us) { return (us.high - us.low) / 2; }

// A sum of times whose errors are independent.
class Sum {
 public:
  explicit Sum(double gap_us) : gap_us_(gap_us) {}
  void add(const Microseconds& us, double share = 1) {
    total_.median += share * us.median;
    squares_ += std::pow(share * error_of(us), 2);
    total_.source = std::max(total_.source, us.source);
    gaps_ += gap_us_ * share;
  }
  Microseconds us() const {
    Microseconds us = total_;
    const double error = std::sqrt(squares_) + gaps_;
    us.low = std::max(0.0, us.median - error);
    us.high = us.median + error;
    return us;
  }

 private:
  Microseconds total_{0, 0, 0, TimeSource::kMeasured};
  const double gap_us_;
  double squares_ = 0, gaps_ = 0;
};

bool all_measured(const CaseTimes& times) {
  const auto measured = [](const KernelTime& time) {
    return time.us.source == TimeSource::kMeasured;
  };
  return std::ranges::all_of(times.bf16, measured) && std::ranges::all_of(times.gemms, measured) &&
         std::ranges::all_of(times.quantizers, measured);
}

Microseconds sum_of(const std::vector<KernelTime>& times, double gap_us) {
  Sum sum(gap_us);
  for (const KernelTime& time : times) sum.add(time.us);
  return sum.us();
}

// Returns the rounds of a sum; none if a part has none.
using Rounds = std::vector<double>;
bool add_rounds(const KernelTime& time, double share, Rounds& sum) {
  if (time.rounds.empty() || (!sum.empty() && sum.size() != time.rounds.size())) return false;
  sum.resize(time.rounds.size());
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += share * time.rounds[i];
  return true;
}

// Returns BF16's time over FP8's by round; none unless all was timed in one run.
Rounds gains_by_round(const LayerCase& layer, const CaseTimes& times) {
  Rounds bf16, fp8;
  bool timed = true;
  for (const KernelTime& time : times.bf16) timed = timed && add_rounds(time, 1, bf16);
  for (const KernelTime& time : times.gemms) timed = timed && add_rounds(time, 1, fp8);
  for (std::size_t i = 0; i < times.quantizers.size(); ++i) {
    timed = timed && add_rounds(times.quantizers[i], layer.quantizers[i].share, fp8);
  }
  if (!timed || bf16.size() != fp8.size()) return {};
  for (std::size_t i = 0; i < bf16.size(); ++i) bf16[i] /= fp8[i];
  return bf16;
}

void set_gain(const LayerCase& layer, const CaseTimes& times, LayerVerdict& v) {
  const double t8 = v.fp8_gemms.median + v.quantize.median;
  if (Rounds gains = gains_by_round(layer, times); !gains.empty()) {
    const Interval interval = median_interval(gains);
    v.gain_low = interval.lo;
    v.gain_high = interval.hi;
    v.gain = median(std::move(gains));
    return;
  }
  v.gain = v.bf16.median / t8;
  const double of_bf16 = error_of(v.bf16) / v.bf16.median;
  const double of_fp8 = (error_of(v.fp8_gemms) + error_of(v.quantize)) / t8;
  const double error = std::sqrt(of_bf16 * of_bf16 + of_fp8 * of_fp8);
  v.gain_low = v.gain * std::max(0.0, 1 - error);
  v.gain_high = v.gain * (1 + error);
}

Verdict verdict_of(const LayerVerdict& v) {
  const bool measured =
      std::ranges::all_of(std::array{v.bf16.source, v.fp8_gemms.source, v.quantize.source},
                          [](TimeSource source) { return source == TimeSource::kMeasured; });
  if (measured) {
    return v.gain_low >= kLeastGain ? Verdict::kPays
           : v.gain_high < 1        ? Verdict::kLoses
                                    : Verdict::kEven;
  }
  if (v.gain >= kEstimatePays && v.gain_low >= 1) return Verdict::kPays;
  if (v.gain <= kEstimateLoses && v.gain_high < 1) return Verdict::kLoses;
  return Verdict::kMeasure;
}

Json to_json(const Microseconds& us) {
  return {
      {"median", us.median}, {"low", us.low}, {"high", us.high}, {"source", name_of(us.source)}};
}

void add(const JudgedLayer& judged, ModelVerdict& model) {
  const LayerVerdict& v = judged.verdict;
  const LayerCase& layer = judged.layer;
  const auto copies = static_cast<double>(layer.copies);
  const double bf16 = copies * v.bf16.median;
  const double fp8 = bf16 - v.saved_us;
  model.bf16_us += bf16;
  model.fp8_us += fp8;
  model.best_mix_us += std::min(bf16, fp8);
  if (fp8 < bf16) model.mix.push_back(v.layer);
  model.eager_bf16_us += copies * judged.eager_bf16_us;
  model.eager_fp8_us += copies * judged.eager_fp8_us;
  model.eager_best_mix_us += copies * std::min(judged.eager_bf16_us, judged.eager_fp8_us);
  model.weight_bytes_bf16 += copies * layer.weight_bytes_bf16;
  model.weight_bytes_fp8 += copies * layer.weight_bytes_fp8;
  model.copy_bytes_fp8 += copies * layer.copy_bytes_fp8;
  model.kept_bytes_bf16 += copies * layer.kept_bytes_bf16;
  model.kept_bytes_fp8 += copies * layer.kept_bytes_fp8;
}

}  // namespace

std::string_view name_of(TimeSource source) {
  constexpr std::array<std::string_view, 3> kNames{"measured", "near", "estimated"};
  return kNames.at(static_cast<std::size_t>(source));
}

std::string_view name_of(Verdict verdict) {
  constexpr std::array<std::string_view, 4> kNames{"pays", "even", "loses", "measure"};
  return kNames.at(static_cast<std::size_t>(verdict));
}

JudgedLayer judge(const LayerCase& layer, const CaseTimes& times, double kernel_gap_us) {
  JudgedLayer judged;
  judged.layer = layer;
  LayerVerdict& v = judged.verdict;
  v.layer = layer.layer;
  v.mode = layer.mode;
  v.copies = layer.copies;
  v.n = layer.n;
  v.k = layer.k;
  v.groups = layer.groups;
  v.tokens = layer.tokens;
  const double gap_us = all_measured(times) ? 0 : kernel_gap_us;
  v.bf16 = sum_of(times.bf16, gap_us);
  v.fp8_gemms = sum_of(times.gemms, gap_us);
  Sum quantize(gap_us);
  double calls = static_cast<double>(times.gemms.size());
  for (std::size_t i = 0; i < times.quantizers.size(); ++i) {
    const double share = layer.quantizers[i].share;
    quantize.add(times.quantizers[i].us, share);
    v.fused_quantize += share * times.fused_us[i];
    calls += share;
  }
  v.quantize = quantize.us();
  set_gain(layer, times, v);
  v.verdict = verdict_of(v);
  const double t8 = v.fp8_gemms.median + v.quantize.median;
  v.saved_us = static_cast<double>(layer.copies) * (v.bf16.median - t8);
  judged.eager_bf16_us = v.bf16.median + kHostUs * static_cast<double>(times.bf16.size());
  judged.eager_fp8_us = t8 + kHostUs * calls;
  return judged;
}

std::vector<ModelVerdict> sum_up(const std::vector<JudgedLayer>& layers) {
  std::vector<ModelVerdict> models;
  for (const JudgedLayer& judged : layers) {
    const LayerVerdict& v = judged.verdict;
    auto model = std::ranges::find_if(models, [&](const ModelVerdict& other) {
      return other.mode == v.mode && other.tokens == v.tokens;
    });
    if (model == models.end()) {
      models.emplace_back();
      model = models.end() - 1;
      model->mode = v.mode;
      model->tokens = v.tokens;
    }
    add(judged, *model);
  }
  return models;
}

Json to_json(const JudgedLayer& judged) {
  const LayerVerdict& v = judged.verdict;
  Json json{{"layer", v.layer},   {"mode", name_of(v.mode)},
            {"tokens", v.tokens}, {"copies", v.copies},
            {"n", v.n},           {"k", v.k}};
  if (v.groups > 0) json.set("groups", v.groups);
  json.set("bf16_us", to_json(v.bf16));
  json.set("fp8_gemms_us", to_json(v.fp8_gemms));
  json.set("quantize_us", to_json(v.quantize));
  json.set("fused_quantize_us", v.fused_quantize);
  json.set("gain", {{"median", v.gain}, {"low", v.gain_low}, {"high", v.gain_high}});
  json.set("eager_bf16_us", judged.eager_bf16_us);
  json.set("eager_fp8_us", judged.eager_fp8_us);
  json.set("saved_us", v.saved_us);
  json.set("verdict", name_of(v.verdict));
  return json;
}

Json to_json(const ModelVerdict& model) {
  return {{"mode", name_of(model.mode)},
          {"tokens", model.tokens},
          {"bf16_us", model.bf16_us},
          {"fp8_us", model.fp8_us},
          {"best_mix_us", model.best_mix_us},
          {"mix", model.mix},
          {"eager_bf16_us", model.eager_bf16_us},
          {"eager_fp8_us", model.eager_fp8_us},
          {"eager_best_mix_us", model.eager_best_mix_us},
          {"weight_bytes_bf16", model.weight_bytes_bf16},
          {"weight_bytes_fp8", model.weight_bytes_fp8},
          {"copy_bytes_fp8", model.copy_bytes_fp8},
          {"kept_bytes_bf16", model.kept_bytes_bf16},
          {"kept_bytes_fp8", model.kept_bytes_fp8}};
}

}  // namespace octile::tools
