#include "runtime/measure/record.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>
#include <set>
#include <span>
#include <utility>

#include "cache/file_ops.h"
#include "cache/json.h"
#include "generator/core/ascii.h"
#include "octile/octile.h"
#include "runtime/base/environment.h"

namespace octile {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20;
constexpr mode_t kFileMode = 0644;
constexpr std::size_t kMostDepth = 8;  // a record has four

// Six digits are more than a measurement has.
double rounded(double value) {
  const std::string text = fmt::format("{:.6g}", value);
  double result = value;  // of infinity and NaN
  std::from_chars(text.data(), text.data() + text.size(), result);
  return result;
}

Json rounded(const std::vector<double>& values) {
  Json all = Json::array();
  for (const double value : values) all.push_back(rounded(value));
  return all;
}

void add_text(Json& to, const char* name, const std::string& text) {
  if (!text.empty()) to.add(name, text);
}

void add_values(Json& to, const Measured& values) {
  if (!values.samples.empty()) {
    to.set("samples", rounded(values.samples));
    return;
  }
  to.set("median", rounded(values.median));
  if (values.interval)
    to.add("interval", Json::array({rounded(values.interval->lo), rounded(values.interval->hi)}));
}

Json to_json(const PeerValues& peer) {
  Json object{{"name", peer.name}};
  add_text(object, "version", peer.version);
  if (peer.values) add_values(object, *peer.values);
  if (peer.ratio) {
    Json ratio = Json::object();
    add_values(ratio, *peer.ratio);
    object.add("ratio", std::move(ratio));
  }
  return object;
}

// Returns the value if it is a finite number.
std::optional<double> finite_number(const Json& value) {
  const auto number = value.number();
  return number && std::isfinite(*number) ? number : std::nullopt;
}

// Reads the fields of an object, each once. Remembers the first that is wrong.
class Fields {
 public:
  Fields(const Json& object, std::string prefix) : object_(object), prefix_(std::move(prefix)) {}

  bool contains(const char* name) const { return object_.contains(name); }

  // Returns the field and marks it as known, or returns null. `wanted` is said if it is missing.
  const Json* find(const char* name, const char* wanted, bool required) {
    known_.insert(name);
    const Json* found = object_.find(name);
    if (found == nullptr && required)
      fail_with(fmt::format("{}{} is missing; allowed: {}", prefix_, name, wanted));
    return found;
  }

  void text(const char* name, std::string& out, bool required) {
    const Json* value = find(name, "a text", required);
    if (value == nullptr) return;
    const auto* text = value->string();
    if (text == nullptr || text->empty()) return refuse(name, *value, "a text");
    out = *text;
  }
  void boolean(const char* name, bool& out, bool required) {
    const Json* value = find(name, "true or false", required);
    if (value == nullptr) return;
    const auto boolean = value->boolean();
    if (!boolean) return refuse(name, *value, "true or false");
    out = *boolean;
  }
  void number(const char* name, double& out) {
    const Json* value = find(name, "a number", true);
    if (value == nullptr) return;
    const auto number = finite_number(*value);
    if (!number) return refuse(name, *value, "a number");
    out = *number;
  }
  void count(const char* name, int& out) {
    constexpr int kMost = 1'000'000;
    const Json* value = find(name, "", false);
    if (value == nullptr) return;
    const auto count = value->integer();
    if (!count || *count < 1 || *count > kMost)
      return refuse(name, *value, fmt::format("1 to {}", kMost));
    out = static_cast<int>(*count);
  }
  void numbers(const char* name, std::vector<double>& out) {
    const Json* value = find(name, "an array of numbers", true);
    if (value == nullptr) return;
    if (!value->is_array() || value->empty()) return refuse(name, *value, "an array of numbers");
    for (const Json& one : *value) {
      const auto number = finite_number(one);
      if (!number) return refuse(name, *value, "an array of numbers");
      out.push_back(*number);
    }
  }
  // Calls read(fields) for an object.
  void object(const char* name, bool required, const auto& read) {
    const Json* value = find(name, "an object", required);
    if (value == nullptr) return;
    if (!value->is_object()) return refuse(name, *value, "an object");
    enter(*value, name, read);
  }
  // Calls read(fields) for each object of an array.
  void objects(const char* name, const auto& read) {
    const Json* value = find(name, "", false);
    if (value == nullptr) return;
    if (!value->is_array()) return refuse(name, *value, "an array of objects");
    for (std::size_t i = 0; i < value->size(); ++i) {
      if (!value->at(i).is_object()) return refuse(name, *value, "an array of objects");
      enter(value->at(i), fmt::format("{}[{}]", name, i), read);
    }
  }

  void refuse(const std::string& name, const Json& value, const std::string& allowed) {
    constexpr std::size_t kMostShown = 60;
    std::string text = value.dump();
    if (text.size() > kMostShown) text = text.substr(0, kMostShown) + "...";
    fail_with(fmt::format("{}{} is {}; allowed: {}", prefix_, name, text, allowed));
  }

  // Refuses fields that nobody has read. Returns the first error, or an empty text.
  std::string finish() {
    for (const auto& [name, value] : object_.items()) {
      if (!known_.contains(name))
        fail_with(fmt::format("{}{} is not a field of a record", prefix_, name));
    }
    return error_;
  }

 private:
  void enter(const Json& value, const std::string& name, const auto& read) {
    Fields inner(value, prefix_ + name + ".");
    read(inner);
    fail_with(inner.finish());
  }
  void fail_with(const std::string& sentence) {
    if (error_.empty()) error_ = sentence;
  }

  const Json& object_;
  std::string prefix_;
  std::set<std::string> known_;
  std::string error_;
};

void read_values(Fields& fields, Measured& values) {
  if (fields.contains("samples")) {
    fields.numbers("samples", values.samples);
    if (!values.samples.empty()) values = measured(std::move(values.samples));
    return;
  }
  fields.number("median", values.median);
  if (!fields.contains("interval")) return;
  std::vector<double> ends;
  fields.numbers("interval", ends);
  if (ends.size() == 2 && ends[0] <= ends[1]) {
    values.interval = Interval{ends[0], ends[1]};
  } else {
    fields.refuse("interval", Json(ends), "two numbers, the lower first");
  }
}

void read_peer(Fields& fields, bool is_of_ratios, PeerValues& peer) {
  fields.text("name", peer.name, true);
  fields.text("version", peer.version, false);
  const bool has_values = fields.contains("samples") || fields.contains("median");
  if (!is_of_ratios && (has_values || !fields.contains("ratio")))
    read_values(fields, peer.values.emplace());
  fields.object("ratio", false, [&](Fields& ratio) { read_values(ratio, peer.ratio.emplace()); });
}

void read_details(Fields& fields, Json& details) {
  const Json* value = fields.find("details", "", false);
  if (value == nullptr) return;
  const bool good =
      value->is_object() && std::ranges::all_of(value->items(), [](const Json::Member& one) {
        return one.value.string() != nullptr || finite_number(one.value) || one.value.boolean();
      });
  if (!good) {
    fields.refuse("details", *value, "an object of texts, numbers, true and false");
    return;
  }
  details = *value;
}

void read_date(Fields& fields, std::string& date) {
  constexpr std::string_view kForm = "0000-00-00T00:00:00Z", kDay = "0000-00-00";
  fields.text("date", date, true);
  std::string form = date;
  std::ranges::replace_if(form, is_digit, '0');
  if (!date.empty() && form != kForm && form != kDay)
    fields.refuse("date", Json(date), "2026-11-26 or 2026-11-26T20:15:00Z");
}

void read_protocol(Fields& fields, Protocol& protocol) {
  fields.text("timing", protocol.timing, true);
  fields.count("rounds", protocol.rounds);
  fields.boolean("interleaved", protocol.interleaved, true);
  fields.text("l2", protocol.l2, false);
  if (!protocol.l2.empty() && protocol.l2 != "cold" && protocol.l2 != "warm")
    fields.refuse("l2", Json(protocol.l2), "cold, warm");
  fields.text("note", protocol.note, false);
}

void read_record(Fields& fields, Record& record) {
  int version = 0;
  fields.count("record", version);
  if (version != kRecordVersion)
    fields.refuse("record", version == 0 ? Json() : Json(version), std::to_string(kRecordVersion));
  fields.text("tool", record.tool, true);
  fields.text("what", record.what, true);
  fields.text("part", record.part, false);
  fields.object("card", true, [&](Fields& card) {
    card.text("name", record.card.name, true);
    card.text("capability", record.card.capability, false);
    card.text("driver", record.card.driver, false);
  });
  fields.text("library", record.version, false);
  fields.text("commit", record.commit, false);
  read_date(fields, record.date);
  fields.object("protocol", true,
                [&](Fields& protocol) { read_protocol(protocol, record.protocol); });
  fields.text("unit", record.unit, true);
  read_values(fields, record.values);
  const bool is_ratio = record.unit == kRatioUnit;
  fields.objects("peers",
                 [&](Fields& peer) { read_peer(peer, is_ratio, record.peers.emplace_back()); });
  fields.boolean("ok", record.ok, true);
  fields.text("check", record.check, false);
  read_details(fields, record.details);
}

Result<Record> parse_record(std::string_view line) {
  const auto parsed = parse_json(line, kMostDepth);
  const Json object = parsed ? *parsed : Json();
  if (!object.is_object())
    return fail(ErrorCode::kInvalidArgument, "the line is not a JSON object");
  Record record;
  Fields fields(object, "");
  read_record(fields, record);
  if (const std::string error = fields.finish(); !error.empty())
    return fail(ErrorCode::kInvalidArgument, error);
  return record;
}

std::string now_text() {
  return fmt::format(
      "{:%Y-%m-%dT%H:%M:%SZ}",
      fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
}

}  // namespace

Measured measured(std::vector<double> samples) {
  Measured values{std::move(samples), 0, {}};
  values.median = median(values.samples);
  values.interval = median_interval(values.samples);
  return values;
}

Record new_record(const std::string& tool, const DeviceSpec& device, const std::string& driver) {
  Record record;
  record.tool = tool;
  record.card = {device.full_name, device.capability(), driver};
  record.version =
      fmt::format("{}.{}.{}", OCTILE_VERSION_MAJOR, OCTILE_VERSION_MINOR, OCTILE_VERSION_PATCH);
  record.commit = environment_value("OCTILE_COMMIT").value_or("");
  record.date = now_text();
  return record;
}

Record new_record(const std::string& tool, const GpuSession& gpu) {
  return new_record(tool, gpu.spec(), gpu.driver()->version_text());
}

Protocol replay_protocol(int rounds, bool is_cold) {
  return {"graph", rounds, true, is_cold ? "cold" : "warm", ""};
}

PeerValues peer_of(const Timing& timing, const std::string& version) {
  return {timing.name, version, measured(timing.rounds_us), {}};
}

Measured first_peer_values(const Record& record) {
  const Measured none{{}, std::numeric_limits<double>::quiet_NaN(), {}};
  return record.peers.empty() ? none : record.peers.front().values.value_or(none);
}

Measured ratio_of(const Record& record, const PeerValues& peer) {
  if (peer.ratio) return *peer.ratio;
  if (!peer.values) return record.values;
  const std::vector<double>&samples = record.values.samples, &peer_samples = peer.values->samples;
  if (samples.empty() || samples.size() != peer_samples.size())
    return {{}, peer.values->median / record.values.median, {}};
  std::vector<double> ratios;
  for (std::size_t i = 0; i < samples.size(); ++i) ratios.push_back(peer_samples[i] / samples[i]);
  return measured(std::move(ratios));
}

Json to_json(const Record& record) {
  Json card{{"name", record.card.name}};
  add_text(card, "capability", record.card.capability);
  add_text(card, "driver", record.card.driver);
  Json protocol{{"timing", record.protocol.timing}};
  if (record.protocol.rounds > 0) protocol.set("rounds", record.protocol.rounds);
  protocol.set("interleaved", record.protocol.interleaved);
  add_text(protocol, "l2", record.protocol.l2);
  add_text(protocol, "note", record.protocol.note);
  Json object{{"record", kRecordVersion}, {"tool", record.tool}, {"what", record.what}};
  add_text(object, "part", record.part);
  object.set("card", std::move(card));
  add_text(object, "library", record.version);
  add_text(object, "commit", record.commit);
  object.set("date", record.date);
  object.set("protocol", std::move(protocol));
  object.set("unit", record.unit);
  add_values(object, record.values);
  if (!record.peers.empty()) {
    Json peers = Json::array();
    for (const PeerValues& peer : record.peers) peers.push_back(to_json(peer));
    object.add("peers", std::move(peers));
  }
  object.set("ok", record.ok);
  add_text(object, "check", record.check);
  if (!record.details.empty()) object.set("details", record.details);
  return object;
}

std::string to_json_line(const Record& record) {
  // A device's name need not be UTF-8.
  return to_json(record).dump();
}

Result<std::vector<Record>> parse_records(std::string_view text, const std::string& name) {
  std::vector<Record> records;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.empty()) continue;
    auto record = parse_record(line);
    if (!record) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} line {}: {}", name, number, record.error().message));
    }
    records.push_back(std::move(*record));
  }
  return records;
}

Result<std::vector<Record>> read_records(const std::string& path) {
  const auto ops = cache::or_system(nullptr);
  const auto bytes = cache::read_file(*ops, AT_FDCWD, path, kMostBytes, path);
  if (!bytes) {
    if (bytes.error().code == ENOENT) return std::vector<Record>();
    return fail(ErrorCode::kInvalidArgument, bytes.error().sentence);
  }
  return parse_records({reinterpret_cast<const char*>(bytes->data()), bytes->size()}, path);
}

Status append_records(const std::string& path, const std::vector<Record>& records) {
  std::string text;
  for (const Record& record : records) text += to_json_line(record) + "\n";
  const auto ops = cache::or_system(nullptr);
  auto file = cache::open_regular(*ops, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT, kFileMode,
                                  path, nullptr);
  if (!file) return fail(ErrorCode::kInternal, file.error().sentence);
  const auto written = cache::write_and_close(
      *ops, *file, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}, path);
  if (!written) return fail(ErrorCode::kInternal, written.error().sentence);
  return {};
}

}  // namespace octile
