#include "tools/models/mode.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "generator/core/nearest.h"

namespace octile::tools {
namespace {

constexpr std::array kModes{Mode::kDecode, Mode::kPrefill, Mode::kTraining};
constexpr std::array<std::string_view, 4> kModeNames{"decode", "prefill", "training", "serving"};
constexpr std::int64_t kMostDecoded = 256;

std::vector<std::int64_t> doublings(std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> counts;
  for (std::int64_t count = first; count <= last; count *= 2) counts.push_back(count);
  return counts;
}

}  // namespace

const char* name_of(Mode mode) { return kModeNames.at(static_cast<std::size_t>(mode)).data(); }

std::vector<std::string> mode_names() { return {kModeNames.begin(), kModeNames.end()}; }

Result<std::vector<Mode>> modes_of_option(const std::vector<std::string>& names) {
  std::vector<Mode> modes;
  const auto add = [&](Mode mode) {
    if (std::ranges::find(modes, mode) == modes.end()) modes.push_back(mode);
  };
  for (const std::string& name : names) {
    const auto* const found = std::ranges::find(kModeNames, name);
    if (found == kModeNames.end()) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--mode is '{}'{}; allowed: {}", name, did_you_mean(name, kModeNames),
                              fmt::join(kModeNames, ", ")));
    }
    const auto index = static_cast<std::size_t>(found - kModeNames.begin());
    if (index < kModes.size()) {
      add(kModes.at(index));
    } else {
      add(Mode::kDecode), add(Mode::kPrefill);
    }
  }
  if (modes.empty()) modes = {Mode::kDecode, Mode::kPrefill};
  return modes;
}

std::vector<std::int64_t> counts_of(Mode mode) {
  switch (mode) {
    case Mode::kDecode:
      return doublings(1, kMostDecoded);
    case Mode::kPrefill:
      return doublings(2 * kMostDecoded, 16384);
    case Mode::kTraining:
      return doublings(2048, 16384);
  }
  return {};
}

std::vector<Pass> passes_of(Mode mode) {
  if (mode == Mode::kTraining) return {Pass::kFprop, Pass::kDgrad, Pass::kWgrad};
  return {Pass::kFprop};
}

std::vector<std::int64_t> counts_in(Mode mode, const std::vector<Mode>& modes,
                                    std::vector<std::int64_t> counts) {
  const auto used = [&](Mode m) { return std::ranges::find(modes, m) != modes.end(); };
  if (mode == Mode::kTraining || !used(Mode::kDecode) || !used(Mode::kPrefill)) return counts;
  std::erase_if(counts, [&](std::int64_t count) {
    return (count <= kMostDecoded) != (mode == Mode::kDecode);
  });
  return counts;
}

}  // namespace octile::tools
