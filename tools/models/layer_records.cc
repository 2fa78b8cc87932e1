#include "tools/models/layer_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ranges>

#include "runtime/base/environment.h"

namespace octile::tools {
namespace {

constexpr const char* kVariable = "OCTILE_VERDICTS";
constexpr const char* kBf16 = "bf16";

double number_in(const Record& record, const char* name) {
  const Json* found = record.details.find(name);
  return found == nullptr ? 0 : found->number().value_or(0);
}

// Returns where the time of BF16 comes from, the only one that may be an estimate.
TimeSource source_in(const Record& record) {
  const Json* found = record.details.find(kBf16);
  const bool is_estimate = found != nullptr && found->string() != nullptr &&
                           *found->string() != name_of(TimeSource::kMeasured);
  return is_estimate ? TimeSource::kEstimated : TimeSource::kMeasured;
}

const PeerValues* bf16_of(const Record& record) {
  const auto found = std::ranges::find(record.peers, kBf16, &PeerValues::name);
  return found == record.peers.end() ? nullptr : &*found;
}

Gain gain_of(const Record& record, const PeerValues& bf16) {
  const Measured ratio = record.unit == kRatioUnit ? record.values : ratio_of(record, bf16);
  const Interval interval = ratio.interval.value_or(Interval{ratio.median, ratio.median});
  return {ratio.median, interval.lo, interval.hi};
}

Microseconds measured_us(double us) { return {us, us, us, TimeSource::kMeasured}; }

std::int64_t rows_of(const LayerCase& layer) { return layer.gemms.front().tokens; }

bool is_of(const LayerCase& layer, const Record& record) {
  constexpr double kRounded = 1e-4;
  const auto calls = calls_of(layer);
  return record.ok && record.unit == "us" && record.values.median > 0 &&
         bf16_of(record) != nullptr &&
         number_in(record, "groups") == static_cast<double>(layer.groups) &&
         number_in(record, "rows") == static_cast<double>(rows_of(layer)) &&
         std::abs(number_in(record, "calls") - calls) <= kRounded * calls;
}

}  // namespace

std::string layer_text(const std::string& model, const LayerCase& layer) {
  return fmt::format("layer model={} layer={} mode={} tokens={} n={} k={} recipe={}", model,
                     layer.layer, name_of(layer.mode), layer.tokens, layer.n, layer.k,
                     layer.recipe);
}

void set_layer(const std::string& model, const JudgedLayer& judged, Record& record) {
  const LayerVerdict& v = judged.verdict;
  record.what = layer_text(model, judged.layer);
  record.unit = "us";
  record.values.median = v.fp8_gemms.median + v.quantize.median;
  Measured bf16, ratio;
  bf16.median = v.bf16.median;
  ratio.median = v.gain;
  ratio.interval = Interval{v.gain_low, v.gain_high};
  record.peers = {{kBf16, "", bf16, ratio}};
  record.details = {{"copies", v.copies},
                    {"groups", v.groups},
                    {"rows", rows_of(judged.layer)},
                    {"calls", calls_of(judged.layer)},
                    {"quantize_us", v.quantize.median},
                    {"fused_quantize_us", v.fused_quantize},
                    {kBf16, name_of(v.bf16.source)},
                    {"gain", v.gain},
                    {"gain_eager", v.gain_eager},
                    {"verdict", name_of(v.verdict)},
                    {"verdict_eager", name_of(v.verdict_eager)}};
}

Status set_verdicts(Record& record) {
  const PeerValues* bf16 = bf16_of(record);
  if (!record.what.starts_with("layer ") || bf16 == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a record is of '{}'; allowed: records of layers beside bf16, whose "
                            "what begins with 'layer '",
                            record.what));
  }
  const Gain gain = gain_of(record, *bf16);
  const bool is_measured = source_in(record) == TimeSource::kMeasured;
  // The gain of a record that was timed call by call is the eager one.
  const bool is_eager = record.protocol.timing != "graph" && record.protocol.timing != "compiled";
  if (!(gain.median > 0) || (!is_eager && number_in(record, "gain_eager") <= 0)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the record of '{}' has no {}; allowed: one above 0", record.what,
                            gain.median > 0 ? "detail gain_eager" : "ratio to bf16"));
  }
  if (is_eager) record.details.set("gain_eager", gain.median);
  const double ratio = number_in(record, "gain_eager") / gain.median;
  const Gain eager{ratio * gain.median, ratio * gain.low, ratio * gain.high};
  if (!is_eager) record.details.set("gain", gain.median);
  record.details.set("verdict", name_of(verdict_of(gain, is_measured)));
  record.details.set("verdict_eager", name_of(verdict_of(eager, is_measured)));
  return {};
}

std::optional<JudgedLayer> judge(const LayerCase& layer, const std::string& model,
                                 const DeviceSpec& device, std::span<const Record> records) {
  const std::string what = layer_text(model, layer);
  for (const Record& record : records | std::views::reverse) {
    if (record.what != what || record.card.name != device.full_name || !is_of(layer, record)) {
      continue;
    }
    const PeerValues& peer = *bf16_of(record);
    const double quantize = number_in(record, "quantize_us");
    LayerTimes times{.bf16 = measured_us(first_peer_values(record).median),
                     .fp8_gemms = measured_us(record.values.median - quantize),
                     .quantize = measured_us(quantize),
                     .fused_quantize = number_in(record, "fused_quantize_us"),
                     .gain = gain_of(record, peer)};
    times.bf16.source = source_in(record);
    return judge(layer, times);
  }
  return std::nullopt;
}

Result<std::vector<Record>> named_layer_records() {
  const auto path = environment_path(kVariable);
  if (!path) return std::vector<Record>();
  auto records = read_records(*path);
  if (records) return records;
  return fail(records.error().code, fmt::format("{}: {}", kVariable, records.error().message));
}

}  // namespace octile::tools
