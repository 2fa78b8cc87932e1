// The one table of environment variables. No other file of the library reads the environment.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octile {

enum class SettingKind {
  kText,
  kSwitch,  // parse_switch()
  kBytes,   // parse_bytes()
  kTuning,  // parse_tuning()
};

struct EnvironmentVariable {
  std::string_view name;
  std::string_view meaning;  // one line, with the default
  SettingKind kind = SettingKind::kText;
};
std::span<const EnvironmentVariable> environment_variables();

// Returns the value of a variable of the table, or nullopt if it is unset or empty, or if the
// program has more rights than its caller (secure_getenv(3)). Asking for a name outside the table
// is a defect and returns nullopt.
std::optional<std::string> environment_value(std::string_view name);

// Returns a value that is the path of a file. A relative one with a slash is meant from the folder
// that the process had when the library was loaded, so that a later chdir() does not change it. One
// without a slash is returned as it is.
std::optional<std::string> environment_path(std::string_view name);

// Returns what the variable says, or `otherwise` if it says nothing or something that is not
// allowed, of which environment_warnings() has a sentence.
bool environment_switch(std::string_view name, bool otherwise);
std::int64_t environment_bytes(std::string_view name, std::int64_t otherwise);

// What OCTILE_TUNING says.
struct TuningSetting {
  bool records = true;            // tuning records choose configurations
  bool prepare = false;           // every prepare first searches what has no record
  std::optional<double> seconds;  // that a prepare may search; nothing: what it needs
  friend bool operator==(const TuningSetting&, const TuningSetting&) = default;
};
TuningSetting environment_tuning();

// Returns true if the variable is set, and to something that is allowed.
bool environment_decides(std::string_view name);

// Returns a sentence for each variable of the table whose value is not allowed, and for each
// variable that begins with OCTILE_ and is not in the table. Empty in a program that has more
// rights than its caller.
std::vector<std::string> environment_warnings();

// Reads 1, true, yes or on, and 0, false, no or off, in capitals too.
inline constexpr std::string_view kSwitchRule = "1, true, yes or on; 0, false, no or off";
std::optional<bool> parse_switch(std::string_view text);

// Reads a switch, of whether there are records, "prepare" and "prepare:30".
inline constexpr std::string_view kTuningRule =
    "1, true, yes or on; 0, false, no or off; prepare, or prepare:SECONDS, more than 0";
std::optional<TuningSetting> parse_tuning(std::string_view text);
std::string to_text(const TuningSetting& setting);  // "off", "on", "prepare", "prepare:30"

// Reads "4096", "64K", "200M", "5G" and "1T"; units are powers of 1024.
inline constexpr std::string_view kBytesRule =
    "a whole number of bytes, or one followed by K, M, G or T (powers of 1024), such as 200M";
std::optional<std::int64_t> parse_bytes(std::string_view text);

// Returns the name of the table that differs from this one in the fewest letters, if these are few.
std::optional<std::string_view> nearest_variable(std::string_view name);

}  // namespace octile
