#include "tools/models/verdict.h"

#include <fmt/format.h>

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

Gain gain_of(const LayerCase& layer, const CaseTimes& times, const LayerTimes& sums) {
  if (Rounds gains = gains_by_round(layer, times); !gains.empty()) {
    const Interval interval = median_interval(gains);
    return {median(std::move(gains)), interval.lo, interval.hi};
  }
  const double t8 = sums.fp8_gemms.median + sums.quantize.median;
  const double gain = sums.bf16.median / t8;
  const double of_bf16 = error_of(sums.bf16) / sums.bf16.median;
  const double of_fp8 = (error_of(sums.fp8_gemms) + error_of(sums.quantize)) / t8;
  const double error = std::sqrt(of_bf16 * of_bf16 + of_fp8 * of_fp8);
  return {gain, gain * std::max(0.0, 1 - error), gain * (1 + error)};
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
  model.by.add(v);
  model.pays += v.verdict == Verdict::kPays ? 1 : 0;
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

// Returns why a rank's FP8 weights do not fit; empty: they do, or the memory's size is not known.
std::string too_large_text(const ModelVerdict& model, const DeviceSpec& device, bool has_experts) {
  constexpr double kGb = std::int64_t{1} << 30;
  if (device.dram_gb == 0 || model.weight_bytes_fp8 <= device.dram_gb * kGb) return {};
  constexpr std::string_view kSpokenWithN = "aefhilmnorsx8";  // "an h100"
  const bool with_n = kSpokenWithN.find(device.name.front()) != std::string_view::npos;
  return fmt::format("{:.0f} GB of weights, {} {} has {:.0f}: --tp{}",
                     model.weight_bytes_fp8 * 1e-9, with_n ? "an" : "a", device.name,
                     device.dram_gb, has_experts ? ", --ep" : "");
}

}  // namespace

void Sources::add(const LayerVerdict& layer) {
  ++counts_.at(static_cast<std::size_t>(source_of(layer)));
}

std::string Sources::text() const {
  std::string text = fmt::format("{} of {} layers measured", count(TimeSource::kMeasured), all());
  for (const TimeSource source : {TimeSource::kNear, TimeSource::kEstimated}) {
    if (count(source) > 0) text += fmt::format(", {} {}", count(source), name_of(source));
  }
  return text;
}

TimeSource source_of(const LayerVerdict& layer) {
  return std::max({layer.bf16.source, layer.fp8_gemms.source, layer.quantize.source});
}

std::string_view name_of(TimeSource source) {
  constexpr std::array<std::string_view, 3> kNames{"measured", "near", "estimated"};
  return kNames.at(static_cast<std::size_t>(source));
}

std::string_view name_of(Verdict verdict) {
  constexpr std::array<std::string_view, 4> kNames{"pays", "even", "loses", "measure"};
  return kNames.at(static_cast<std::size_t>(verdict));
}

Verdict verdict_of(const Gain& gain, bool is_measured) {
  if (is_measured) {
    return gain.low >= kLeastGain ? Verdict::kPays
           : gain.high < 1        ? Verdict::kLoses
                                  : Verdict::kEven;
  }
  if (gain.median >= kEstimatePays && gain.low >= 1) return Verdict::kPays;
  if (gain.median <= kEstimateLoses && gain.high < 1) return Verdict::kLoses;
  return Verdict::kMeasure;
}

double calls_of(const LayerCase& layer) {
  auto calls = static_cast<double>(layer.gemms.size());
  for (const QuantizerUse& use : layer.quantizers) calls += use.share;
  return calls;
}

JudgedLayer judge(const LayerCase& layer, const LayerTimes& times) {
  JudgedLayer judged;
  judged.layer = layer;
  const double t8 = times.fp8_gemms.median + times.quantize.median;
  judged.eager_bf16_us = times.bf16.median + kHostUs * static_cast<double>(layer.gemms.size());
  judged.eager_fp8_us = t8 + kHostUs * calls_of(layer);
  const double eager = judged.eager_bf16_us / judged.eager_fp8_us;
  const double ratio = eager / times.gain.median;
  LayerVerdict& v = judged.verdict;
  v = {.layer = layer.layer,
       .mode = layer.mode,
       .copies = layer.copies,
       .n = layer.n,
       .k = layer.k,
       .groups = layer.groups,
       .tokens = layer.tokens,
       .bf16 = times.bf16,
       .fp8_gemms = times.fp8_gemms,
       .quantize = times.quantize,
       .fused_quantize = times.fused_quantize,
       .gain = times.gain.median,
       .gain_low = times.gain.low,
       .gain_high = times.gain.high,
       .gain_eager = eager,
       .saved_us = static_cast<double>(layer.copies) * (times.bf16.median - t8)};
  const bool is_measured = source_of(v) == TimeSource::kMeasured;
  v.verdict = verdict_of(times.gain, is_measured);
  v.verdict_eager =
      verdict_of({eager, ratio * times.gain.low, ratio * times.gain.high}, is_measured);
  return judged;
}

JudgedLayer judge(const LayerCase& layer, const CaseTimes& times, double kernel_gap_us) {
  const double gap_us = all_measured(times) ? 0 : kernel_gap_us;
  LayerTimes sums{sum_of(times.bf16, gap_us), sum_of(times.gemms, gap_us), {}, 0, {}};
  Sum quantize(gap_us);
  for (std::size_t i = 0; i < times.quantizers.size(); ++i) {
    const double share = layer.quantizers[i].share;
    quantize.add(times.quantizers[i].us, share);
    sums.fused_quantize += share * times.fused_us[i];
  }
  sums.quantize = quantize.us();
  sums.gain = gain_of(layer, times, sums);
  return judge(layer, sums);
}

std::vector<ModelVerdict> sum_up(const std::vector<JudgedLayer>& layers, const DeviceSpec& device) {
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
  const bool has_experts =
      std::ranges::any_of(layers, [](const JudgedLayer& j) { return j.layer.groups > 0; });
  for (ModelVerdict& model : models) model.too_large = too_large_text(model, device, has_experts);
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
  json.set("gain_eager", v.gain_eager);
  json.set("eager_bf16_us", judged.eager_bf16_us);
  json.set("eager_fp8_us", judged.eager_fp8_us);
  json.set("saved_us", v.saved_us);
  json.set("verdict", name_of(v.verdict));
  json.set("verdict_eager", name_of(v.verdict_eager));
  json.set("by", name_of(source_of(v)));
  return json;
}

Json to_json(const ModelVerdict& model) {
  Json by = Json::object();
  for (const TimeSource source :
       {TimeSource::kMeasured, TimeSource::kNear, TimeSource::kEstimated}) {
    by.add(std::string(name_of(source)), model.by.count(source));
  }
  Json json{{"mode", name_of(model.mode)}, {"tokens", model.tokens}, {"by", std::move(by)}};
  if (model.too_large.empty()) {
    json.set("bf16_us", model.bf16_us);
    json.set("fp8_us", model.fp8_us);
    json.set("best_mix_us", model.best_mix_us);
    json.set("mix", model.mix);
    json.set("eager_bf16_us", model.eager_bf16_us);
    json.set("eager_fp8_us", model.eager_fp8_us);
    json.set("eager_best_mix_us", model.eager_best_mix_us);
  } else {
    json.set("too_large", model.too_large);
  }
  json.set("weight_bytes_bf16", model.weight_bytes_bf16);
  json.set("weight_bytes_fp8", model.weight_bytes_fp8);
  json.set("copy_bytes_fp8", model.copy_bytes_fp8);
  json.set("kept_bytes_bf16", model.kept_bytes_bf16);
  json.set("kept_bytes_fp8", model.kept_bytes_fp8);
  return json;
}

}  // namespace octile::tools
