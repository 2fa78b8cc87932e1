#include "cache/tuning_record.h"

#include <fmt/format.h>

#include <tuple>

#include "cache/field_reader.h"
#include "cache/json.h"

namespace octile::cache {
namespace {

template <typename Object, typename Value>
struct Field {
  constexpr Field(const char* called, Value Object::* held, bool needed = false)
      : name(called), member(held), required(needed) {}
  const char* name;
  Value Object::* member;
  bool required;
};

// The fields of each object in a record, in the order in which they are written.
template <typename Object>
constexpr auto kFields = nullptr;
template <>
constexpr std::tuple kFields<TimedConfig>{
    Field{"config", &TimedConfig::config, true},
    Field{"median_us", &TimedConfig::median_us},
    Field{"low_us", &TimedConfig::low_us},
    Field{"high_us", &TimedConfig::high_us},
};
template <>
constexpr std::tuple kFields<TuningCounts>{
    Field{"enumerated", &TuningCounts::enumerated},
    Field{"admitted", &TuningCounts::admitted},
    Field{"compiled", &TuningCounts::compiled},
    Field{"failed_verify", &TuningCounts::failed_verify},
    Field{"timed", &TuningCounts::timed},
};
template <>
constexpr std::tuple kFields<TuningConditions>{
    Field{"sm_clock_mhz", &TuningConditions::sm_clock_mhz},
    Field{"memory_clock_mhz", &TuningConditions::memory_clock_mhz},
    Field{"power_watts", &TuningConditions::power_watts},
    Field{"throttled_rounds", &TuningConditions::throttled_rounds},
};

// Calls `use` with every field of an object.
template <typename Object>
void for_each_field(const auto& use) {
  std::apply([&](const auto&... field) { (use(field), ...); }, kFields<Object>);
}

template <typename Object>
Json json_of(const Object& object) {
  Json json = Json::object();
  for_each_field<Object>([&](const auto& field) { json.add(field.name, object.*field.member); });
  return json;
}

template <typename Object>
void read_fields(FieldReader& reader, Object& object) {
  for_each_field<Object>([&](const auto& field) {
    if (field.required) return reader.read(field.name, object.*field.member);
    reader.read_optional(field.name, object.*field.member);
  });
}

// Calls `read` with a reader of the object in field `name`. The error about a field of that object
// also names the object.
void enter_object(FieldReader& reader, const char* name, const auto& read) {
  const Json* value = reader.find(name);
  if (value == nullptr) return;
  if (!value->is_object()) return reader.complain(name, "an object");
  FieldReader inner(*value, name);
  read(inner);
  if (!inner.error().empty()) reader.complain(name, fmt::format("valid ({})", inner.error()));
}

template <typename Object>
void read_object(FieldReader& reader, const char* name, Object& object) {
  enter_object(reader, name, [&](FieldReader& inner) { read_fields(inner, object); });
}
template <typename Object>
void read_object(FieldReader& reader, const char* name, std::optional<Object>& object) {
  if (reader.find(name) != nullptr) read_object(reader, name, object.emplace());
}

void read_times(FieldReader& reader, const char* name, TuningRecord::NamedTimes& times) {
  enter_object(reader, name, [&](FieldReader& inner) {
    const std::vector<Json::Member>& members = reader.find(name)->items();
    if (members.size() > kMaxNamedTimes) {
      return reader.complain(name, fmt::format("an object of at most {} numbers", kMaxNamedTimes));
    }
    for (const Json::Member& of : members)
      inner.read(of.name.c_str(), times.emplace_back(of.name, 0).second);
  });
}

Json json_of(const TuningRecord::NamedTimes& times) {
  Json json = Json::object();
  for (const auto& [name, us] : times) json.add(name, us);
  return json;
}

void read_measurement(FieldReader& reader, TuningRecord& record) {
  read_object(reader, "runner_up", record.runner_up);
  read_object(reader, "default", record.default_config);
  reader.read_optional("gain", record.gain);
  reader.read_optional("noise", record.noise);
  read_object(reader, "candidates", record.counts);
  read_object(reader, "conditions", record.conditions);
  read_times(reader, "baselines_us", record.baselines_us);
  read_times(reader, "quantize_us", record.quantize_us);
  if (reader.find("error") != nullptr) reader.read("error", record.error.emplace());
}

void read_provenance(FieldReader& reader, TuningRecord& record) {
  reader.read_optional("family", record.family);
  reader.read_optional("device_name", record.device_name);
  reader.read_optional("compiler", record.toolchain.compiler);
  reader.read_optional("build", record.toolchain.build);
  reader.read_optional("source_digest", record.source_digest);
  reader.read_optional("protocol", record.protocol);
  reader.read_optional("date", record.date);
  reader.read_optional("run", record.run);
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
  Json json = Json::object();
  json.add("version", kTuningVersion)
      .add("family", record.family)
      .add("problem", record.problem)
      .add("bucket", record.bucket)
      .add("tokens", record.tokens)
      .add("device", record.device)
      .add("sm_count", record.sm_count)
      .add("winner", json_of(record.winner));
  if (record.runner_up) json.add("runner_up", json_of(*record.runner_up));
  if (record.default_config) json.add("default", json_of(*record.default_config));
  json.add("gain", record.gain)
      .add("noise", record.noise)
      .add("baselines_us", json_of(record.baselines_us));
  if (!record.quantize_us.empty()) json.add("quantize_us", json_of(record.quantize_us));
  if (record.error) json.add("error", *record.error);
  if (!record.run.empty()) json.add("run", record.run);
  return json.add("candidates", json_of(record.counts))
      .add("conditions", json_of(record.conditions))
      .add("protocol", record.protocol)
      .add("device_name", record.device_name)
      .add("compiler", record.toolchain.compiler)
      .add("build", record.toolchain.build)
      .add("source_digest", record.source_digest)
      .add("date", record.date)
      .dump();
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
  read_object(reader, "winner", record.winner);
  check_decision(reader, record);
  read_measurement(reader, record);
  read_provenance(reader, record);
  if (!reader.error().empty()) return tl::unexpected(reader.error());
  return record;
}

}  // namespace octile::cache
