// One measurement as a line of JSON: what was measured, the card, the code, the method, the
// samples, and the compared peers. Every tool and benchmark of Octile writes measurements in this
// form; tables and pages come from them. docs/records.md lists the fields.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/json.h"
#include "generator/core/error.h"
#include "runtime/measure/gpu_session.h"
#include "runtime/measure/statistics.h"
#include "runtime/measure/timing.h"

namespace octile {

// The measurement of one thing: the samples in their order, or their known statistics.
struct Measured {
  std::vector<double> samples;  // empty: only the median is known
  double median = 0;
  std::optional<Interval> interval;  // of the median, 95 %
  friend bool operator==(const Measured&, const Measured&) = default;
};
// Returns the samples with their median and its interval. There is at least one.
Measured measured(std::vector<double> samples);

struct Card {
  std::string name;        // "NVIDIA H200"
  std::string capability;  // "9.0"; empty: no GPU
  std::string driver;      // "13.0"; empty: no GPU
  friend bool operator==(const Card&, const Card&) = default;
};

struct Protocol {
  std::string timing;  // "graph", "stream", "host", or another word
  int rounds = 0;      // 0: not known
  // The rounds of the compared things take turns.
  bool interleaved = false;
  std::string l2;    // "cold": operands rotate beyond twice L2; "warm"; empty: not stated
  std::string note;  // what the fields before do not say
  friend bool operator==(const Protocol&, const Protocol&) = default;
};

// A thing that the measured one is compared with.
struct PeerValues {
  std::string name;     // "cublaslt", "stream"
  std::string version;  // empty: not stated
  // Absent if the record's own values are ratios, or if only `ratio` is known.
  std::optional<Measured> values;
  // This peer's value over the record's, from round to round. Absent: the medians' ratio is all
  // that is known, unless both have as many samples.
  std::optional<Measured> ratio;
  friend bool operator==(const PeerValues&, const PeerValues&) = default;
};

struct Record {
  std::string tool;  // "octile bench", "layer.py"
  std::string what;  // a problem's text with its token count, or a benchmark's name
  std::string part;  // "step", "quantise X"; empty: the whole
  Card card;
  std::string version;  // of the library: "0.1.0"; empty: not known
  std::string commit;   // empty: not known
  std::string date;     // "2026-11-26" or "2026-11-26T20:15:00Z"
  Protocol protocol;
  // "us", "bytes", ...; "ratio": the values are the one peer's over Octile's.
  std::string unit;
  Measured values;
  std::vector<PeerValues> peers;
  bool ok = true;     // false: the result was wrong, so the values mean nothing
  std::string check;  // what the result was compared with; empty: with nothing
  // Further facts by name, each a text, a number, or true or false: "config", "flop", "bytes".
  Json details = Json::object();
  friend bool operator==(const Record&, const Record&) = default;
};

inline constexpr int kRecordVersion = 1;
inline constexpr const char* kRatioUnit = "ratio";

// Returns a record of this card, library and time, of the environment's commit (OCTILE_COMMIT).
Record new_record(const std::string& tool, const DeviceSpec& device, const std::string& driver);
Record new_record(const std::string& tool, const GpuSession& gpu);

// Returns the protocol of measure().
Protocol replay_protocol(int rounds, bool is_cold);

PeerValues peer_of(const Timing& timing, const std::string& version);

// Returns the peer's value over the record's: the median of the rounds' ratios with its interval if
// they are known, else the ratio of the medians.
Measured ratio_of(const Record& record, const PeerValues& peer);

// Returns the values of the first peer. Without any the median is NaN.
Measured first_peer_values(const Record& record);

// Returns one line without the newline.
std::string to_json_line(const Record& record);
Json to_json(const Record& record);

// Returns the records of a text, one a line. `name` is the text's, for errors. Errors:
// kInvalidArgument for a line that is not a record, with its number, the field and what is allowed.
Result<std::vector<Record>> parse_records(std::string_view text, const std::string& name);

// Returns the records of a file; none if there is no file. Errors: those of parse_records();
// kInvalidArgument if the file cannot be read.
Result<std::vector<Record>> read_records(const std::string& path);

// Appends lines to a file, which is created if it is missing. Errors: kInternal, with the path and
// the system's reason.
Status append_records(const std::string& path, const std::vector<Record>& records);

}  // namespace octile
