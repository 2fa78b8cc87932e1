#include "runtime/base/environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <utility>

#include "cache/file_ops.h"
#include "cache/rights.h"
#include "generator/core/ascii.h"
#include "generator/core/nearest.h"

namespace octile {
namespace {

constexpr std::array kVariables{
    EnvironmentVariable{"OCTILE_CACHE_DIR",
                        "writable cache root, {user}: the user's number; default the XDG cache "
                        "folder"},
    EnvironmentVariable{"OCTILE_CACHE_ROOTS", "read-only cache roots, ':'-separated; default none"},
    EnvironmentVariable{"OCTILE_CACHE_MAX_BYTES",
                        "bytes of kernels in the writable root, such as 5G, the default; 0: no "
                        "bound",
                        SettingKind::kBytes},
    EnvironmentVariable{"OCTILE_OFFLINE", "on: never compile; default off", SettingKind::kSwitch},
    EnvironmentVariable{"OCTILE_TUNING",
                        "off: no tuning records, the cost model chooses; prepare[:SECONDS]: every "
                        "prepare first searches what has no record; default on",
                        SettingKind::kTuning},
    EnvironmentVariable{"OCTILE_LIBCUDA", "driver library to open; default libcuda.so.1"},
    EnvironmentVariable{"OCTILE_LIBNVRTC", "NVRTC library to open; default: searched, see doctor"},
    EnvironmentVariable{"OCTILE_COMPILER",
                        "program that compiles; in-process: none; default octile-compiler beside "
                        "the library"},
    EnvironmentVariable{"OCTILE_PROVER",
                        "program that tests a GPU's first kernels; none: no test; default "
                        "octile-prover beside the library"},
    EnvironmentVariable{"OCTILE_LIBCUBLASLT", "cuBLASLt library for `bench --baseline cublaslt`"},
    EnvironmentVariable{"OCTILE_LIBARCHIVE",
                        "libarchive for `cache export` and `cache import`; default "
                        "libarchive.so.13"},
    EnvironmentVariable{"OCTILE_COMMIT",
                        "commit that records of measurements name (--records); default none"},
    EnvironmentVariable{"OCTILE_VERDICTS",
                        "records of layers (`bench verdict --records`) that say whether FP8 "
                        "pays; default none"},
    EnvironmentVariable{"OCTILE_VLLM", "0: vLLM's FP8 layers stay with its own kernels"},
    EnvironmentVariable{"OCTILE_SGLANG", "0: SGLang's FP8 layers stay with its own kernels"},
    EnvironmentVariable{"XDG_CACHE_HOME", "parent of the default cache folder; default ~/.cache"},
    EnvironmentVariable{"HOME", "home folder, for the default cache folder"},
    EnvironmentVariable{"HF_HUB_CACHE",
                        "cache of the Hugging Face Hub, which `--model` reads; default "
                        "HF_HOME/hub"},
    EnvironmentVariable{"HF_HOME",
                        "folder of the Hugging Face libraries; default ~/.cache/huggingface"},
    EnvironmentVariable{"LD_LIBRARY_PATH", "searched for libraries by the loader; default none"},
    EnvironmentVariable{"CUDA_HOME", "toolkit folder searched for NVRTC; default /usr/local/cuda"},
    EnvironmentVariable{"CUDA_PATH", "searched for NVRTC after CUDA_HOME; default none"},
    EnvironmentVariable{"VIRTUAL_ENV", "Python environment searched for NVRTC; default none"},
    EnvironmentVariable{"PATH", "its first python3 is searched for NVRTC"},
    EnvironmentVariable{"COLUMNS", "width of tables and help; default the terminal's, else 80"},
    EnvironmentVariable{"NO_COLOR", "set: no colours on a terminal"},
};

constexpr std::string_view kOwnPrefix = "OCTILE_";

// Variables of Octile's own build and tests.
constexpr std::array<std::string_view, 7> kOfTests{
    "OCTILE_TESTS",      "OCTILE_TEST_CHILD_CACHE", "OCTILE_SWEEP",        "OCTILE_VENV",
    "OCTILE_GPU_REPORT", "OCTILE_RACE_SECONDS",     "OCTILE_ORACLE_PYTHON"};

// Never destroyed: threads may still run when the process exits.
const std::string& folder_at_load() {
  static const auto& folder = *new std::string(cache::absolute_path("."));
  return folder;
}
[[maybe_unused]] const std::string& known_at_load = folder_at_load();

// Returns what is wrong with the value of a variable of the table, or nothing.
std::optional<std::string> what_is_wrong(const EnvironmentVariable& variable) {
  const auto value = environment_value(variable.name);
  if (!value) return std::nullopt;
  std::string_view allowed;
  if (variable.kind == SettingKind::kSwitch && !parse_switch(*value)) allowed = kSwitchRule;
  if (variable.kind == SettingKind::kBytes && !parse_bytes(*value)) allowed = kBytesRule;
  if (variable.kind == SettingKind::kTuning && !parse_tuning(*value)) allowed = kTuningRule;
  if (allowed.empty()) return std::nullopt;
  return fmt::format("{} is '{}', which is taken as unset; allowed: {}", variable.name, *value,
                     allowed);
}

bool is_known(std::string_view name) {
  return std::ranges::find(kVariables, name, &EnvironmentVariable::name) != kVariables.end() ||
         std::ranges::find(kOfTests, name) != kOfTests.end();
}

}  // namespace

std::span<const EnvironmentVariable> environment_variables() { return kVariables; }

std::optional<std::string> environment_value(std::string_view name) {
  for (const EnvironmentVariable& v : kVariables) {
    if (v.name != name) continue;
    // Null in a program that runs with more rights than its caller (setuid, setgid, capabilities):
    // the caller would otherwise choose the libraries that it loads and the kernels that it runs.
    const char* value = ::secure_getenv(std::string(name).c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(value);
  }
  return std::nullopt;
}

std::optional<std::string> environment_path(std::string_view name) {
  auto value = environment_value(name);
  if (!value || value->starts_with('/') || value->find('/') == std::string::npos) return value;
  return fmt::format("{}/{}", folder_at_load(), *value);
}

bool environment_switch(std::string_view name, bool otherwise) {
  const auto value = environment_value(name);
  return value ? parse_switch(*value).value_or(otherwise) : otherwise;
}

std::int64_t environment_bytes(std::string_view name, std::int64_t otherwise) {
  const auto value = environment_value(name);
  return value ? parse_bytes(*value).value_or(otherwise) : otherwise;
}

TuningSetting environment_tuning() {
  const auto value = environment_value("OCTILE_TUNING");
  return value ? parse_tuning(*value).value_or(TuningSetting{}) : TuningSetting{};
}

bool environment_decides(std::string_view name) {
  const auto* const variable = std::ranges::find(kVariables, name, &EnvironmentVariable::name);
  return variable != kVariables.end() && environment_value(name) && !what_is_wrong(*variable);
}

std::vector<std::string> environment_warnings() {
  std::vector<std::string> sentences;
  if (cache::has_more_rights_than_caller()) return sentences;
  for (const EnvironmentVariable& variable : kVariables) {
    if (auto sentence = what_is_wrong(variable)) sentences.push_back(std::move(*sentence));
  }
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view assignment = *entry;
    const std::string_view name = assignment.substr(0, assignment.find('='));
    if (!name.starts_with(kOwnPrefix) || is_known(name)) continue;
    const auto meant = nearest_variable(name);
    sentences.push_back(fmt::format(
        "{} is set, and there is no such variable{}", name,
        meant ? fmt::format("; did you mean {}?", *meant) : "; `octile doctor` lists them"));
  }
  return sentences;
}

std::optional<bool> parse_switch(std::string_view text) {
  const std::string word = to_lower(text);
  for (const std::string_view on : {"1", "true", "yes", "on"}) {
    if (word == on) return true;
  }
  for (const std::string_view off : {"0", "false", "no", "off"}) {
    if (word == off) return false;
  }
  return std::nullopt;
}

std::optional<TuningSetting> parse_tuning(std::string_view text) {
  constexpr std::string_view kPrepare = "prepare";
  if (const auto records = parse_switch(text)) return TuningSetting{*records, false, std::nullopt};
  const std::string word = to_lower(text.substr(0, kPrepare.size()));
  if (word != kPrepare) return std::nullopt;
  TuningSetting setting{true, true, std::nullopt};
  text.remove_prefix(kPrepare.size());
  if (text.empty()) return setting;
  double seconds = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data() + 1, last, seconds);
  if (text.front() != ':' || error != std::errc() || end != last) return std::nullopt;
  if (!(seconds > 0) || seconds > std::numeric_limits<float>::max()) return std::nullopt;
  setting.seconds = seconds;
  return setting;
}

std::string to_text(const TuningSetting& setting) {
  if (!setting.prepare) return setting.records ? "on" : "off";
  return setting.seconds ? fmt::format("prepare:{}", *setting.seconds) : "prepare";
}

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  constexpr std::string_view kUnits = "KMGT";
  std::int64_t number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || last - end > 1) return std::nullopt;
  if (end == last) return number;
  const std::size_t unit = kUnits.find(*end);
  if (unit == std::string_view::npos) return std::nullopt;
  const std::int64_t factor = std::int64_t{1} << (10 * (unit + 1));
  if (number > std::numeric_limits<std::int64_t>::max() / factor) return std::nullopt;
  return number * factor;
}

std::optional<std::string_view> nearest_variable(std::string_view name) {
  // The prefix is the same, so it says nothing.
  if (!name.starts_with(kOwnPrefix)) return std::nullopt;
  std::vector<std::string_view> names;
  for (const EnvironmentVariable& v : kVariables) {
    if (v.name.starts_with(kOwnPrefix)) names.push_back(v.name.substr(kOwnPrefix.size()));
  }
  const auto found = nearest(name.substr(kOwnPrefix.size()), names);
  if (!found) return std::nullopt;
  for (const EnvironmentVariable& v : kVariables) {
    if (v.name.starts_with(kOwnPrefix) && v.name.substr(kOwnPrefix.size()) == *found) return v.name;
  }
  return std::nullopt;
}

}  // namespace octile
