#include "cache/tuning_record.h"

#include <fmt/format.h>

#include "cache/field_reader.h"
#include "cache/json_text.h"

namespace octile::cache {
namespace {

// Each of these calls `use` with the name and the value of every field of an object, in the order
// in which they are written. Reading and writing share them.
template <typename Timed>
void each_time(Timed& timed, const auto& use) {
  use("median_us", timed.median_us);
  use("low_us", timed.low_us);
  use("high_us", timed.high_us);
}
template <typename Conditions>
void each_condition(Conditions& conditions, const auto& use) {
  use("sm_clock_mhz", conditions.sm_clock_mhz);
  use("memory_clock_mhz", conditions.memory_clock_mhz);
  use("power_watts", conditions.power_watts);
  use("throttled_rounds", conditions.throttled_rounds);
}
template <typename Counts>
void each_count(Counts& counts, const auto& use) {
  use("enumerated", counts.enumerated);
  use("admitted", counts.admitted);
  use("compiled", counts.compiled);
  use("failed_verify", counts.failed_verify);
  use("timed", counts.timed);
}

auto adding_to(JsonText& json) {
  return [&json](const char* name, auto value) { json.add(name, value); };
}
auto reading_from(FieldReader& reader) {
  return [&reader](const char* name, auto& value) { reader.read_optional(name, value); };
}

std::string text_of(const TimedConfig& timed) {
  JsonText json('{');
  json.add("config", timed.config);
  each_time(timed, adding_to(json));
  return json.close();
}

std::string text_of(const TuningCounts& counts) {
  JsonText json('{');
  each_count(counts, adding_to(json));
  return json.close();
}

std::string text_of(const TuningConditions& conditions) {
  JsonText json('{');
  each_condition(conditions, adding_to(json));
  return json.close();
}

// Calls `read` with a reader of the object in field `name`. The error about a field of that object
// also names the object.
template <typename Read>
void read_object(FieldReader& reader, const char* name, Read read) {
  const JsonValue* value = reader.find(name);
  if (value == nullptr) return;
  if (value->object() == nullptr) return reader.complain(name, "an object");
  FieldReader inner(*value, name);
  read(inner);
  if (!inner.error().empty()) reader.complain(name, fmt::format("valid ({})", inner.error()));
}

void read_timed(FieldReader& reader, const char* name, TimedConfig& timed) {
  read_object(reader, name, [&](FieldReader& inner) {
    inner.read("config", timed.config);
    each_time(timed, reading_from(inner));
  });
}

void read_timed(FieldReader& reader, const char* name, std::optional<TimedConfig>& timed) {
  if (reader.find(name) != nullptr) read_timed(reader, name, timed.emplace());
}

void read_baselines(FieldReader& reader, TuningRecord& record) {
  read_object(reader, "baselines_us", [&](FieldReader& inner) {
    const std::vector<std::string>& names = reader.find("baselines_us")->object()->names;
    if (names.size() > kMaxBaselines) {
      return reader.complain("baselines_us",
                             fmt::format("an object of at most {} numbers", kMaxBaselines));
    }
    for (const std::string& name : names) {
      inner.read(name.c_str(), record.baselines_us.emplace_back(name, 0).second);
    }
  });
}

void read_measurement(FieldReader& reader, TuningRecord& record) {
  read_timed(reader, "runner_up", record.runner_up);
  read_timed(reader, "default", record.default_config);
  reader.read_optional("gain", record.gain);
  reader.read_optional("noise", record.noise);
  read_object(reader, "candidates",
              [&](FieldReader& inner) { each_count(record.counts, reading_from(inner)); });
  read_object(reader, "conditions",
              [&](FieldReader& inner) { each_condition(record.conditions, reading_from(inner)); });
  read_baselines(reader, record);
}

void read_provenance(FieldReader& reader, TuningRecord& record) {
  reader.read_optional("family", record.family);
  reader.read_optional("device_name", record.device_name);
  reader.read_optional("compiler", record.toolchain.compiler);
  reader.read_optional("build", record.toolchain.build);
  reader.read_optional("source_digest", record.source_digest);
  reader.read_optional("protocol", record.protocol);
  reader.read_optional("date", record.date);
}

void check_decision(FieldReader& reader, const TuningRecord& record) {
  if (record.problem.empty()) reader.complain("problem", "a problem's text");
  if (record.bucket < 1) reader.complain("bucket", "1 or more");
  if (record.tokens < 1 || record.tokens > record.bucket) {
    reader.complain("tokens", fmt::format("1 to the bucket's {}", record.bucket));
  }
  if (record.device.empty()) reader.complain("device", "a device's name");
  if (record.sm_count < 1) reader.complain("sm_count", "1 or more");
  if (record.winner.config.empty()) reader.complain("winner", "an object with a config");
}

}  // namespace

std::string to_json_line(const TuningRecord& record) {
  JsonText json('{');
  json.add("version", kTuningVersion)
      .add("family", record.family)
      .add("problem", record.problem)
      .add("bucket", record.bucket)
      .add("tokens", record.tokens)
      .add("device", record.device)
      .add("sm_count", record.sm_count)
      .add_raw("winner", text_of(record.winner));
  if (record.runner_up) json.add_raw("runner_up", text_of(*record.runner_up));
  if (record.default_config) json.add_raw("default", text_of(*record.default_config));
  JsonText baselines('{');
  for (const auto& [name, us] : record.baselines_us) baselines.add(name, us);
  return json.add("gain", record.gain)
      .add("noise", record.noise)
      .add_raw("baselines_us", baselines.close())
      .add_raw("candidates", text_of(record.counts))
      .add_raw("conditions", text_of(record.conditions))
      .add("protocol", record.protocol)
      .add("device_name", record.device_name)
      .add("compiler", record.toolchain.compiler)
      .add("build", record.toolchain.build)
      .add("source_digest", record.source_digest)
      .add("date", record.date)
      .close();
}

tl::expected<TuningRecord, std::string> parse_tuning_record(std::string_view line) {
  if (line.size() > kMaxTuningLineBytes) {
    return tl::unexpected(fmt::format("tuning record: {} bytes, at most {} are read", line.size(),
                                      kMaxTuningLineBytes));
  }
  const auto json = parse_object(line, "tuning record");
  if (!json) return tl::unexpected(json.error());
  FieldReader reader(*json, "tuning record");
  int version = 0;
  reader.read("version", version);
  if (version != kTuningVersion) reader.complain("version", fmt::format("{}", kTuningVersion));
  TuningRecord record;
  reader.read("problem", record.problem);
  reader.read("bucket", record.bucket);
  reader.read("tokens", record.tokens);
  reader.read("device", record.device);
  reader.read("sm_count", record.sm_count);
  read_timed(reader, "winner", record.winner);
  check_decision(reader, record);
  read_measurement(reader, record);
  read_provenance(reader, record);
  if (!reader.error().empty()) return tl::unexpected(reader.error());
  return record;
}

}  // namespace octile::cache
