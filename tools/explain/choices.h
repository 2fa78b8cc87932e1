// The choice of a problem's configurations, for `octile explain`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "generator/core/device_spec.h"
#include "runtime/engine/choice.h"
#include "tools/common/handles.h"

namespace octile::tools {

struct CountChoice {
  std::int64_t tokens = 0;
  ChosenBy by = ChosenBy::kModel;
  std::string config;
};

// Returns the choice for the token count that the problem states, else for the largest count of
// every bucket up to 16384, by the records that plans of this machine would use.
Result<std::vector<CountChoice>> choices_of(const Problem& problem, const DeviceSpec& device);

// "exact record at 64 tokens: tile=...", or by source "exact record at 1, 4 tokens; near bucket at
// 2"
std::string choices_text(const std::vector<CountChoice>& choices);
Json to_json(const std::vector<CountChoice>& choices);

}  // namespace octile::tools
