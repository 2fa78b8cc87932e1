// The search space of a family as data: axes to enumerate and named constraints to prune by. Every
// removed candidate is counted for the constraint that removed it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "generator/core/device_spec.h"

namespace octile {

// A problem at a token count, on a device.
template <typename Problem>
struct Setting {
  const Problem& problem;
  std::int64_t tokens;  // kDynamic if only the problem's numerics are asked about
  const DeviceSpec& device;
};

template <typename Problem, typename Config>
struct Constraint {
  std::string_view name;    // "fits_shared_memory"
  std::string_view reason;  // one sentence with the rule's source
  bool (*admits)(const Config&, const Setting<Problem>&);
};

// How many candidates one constraint removed. A candidate counts for the first that refuses it.
struct Removal {
  std::string_view name, reason;  // the constraint's
  std::size_t count = 0;
};

template <typename Config>
struct CandidatesOf {
  std::vector<Config> admitted;
  std::size_t enumerated = 0;
  std::vector<Removal> removed;  // one for each constraint of the table, in its order
};

// Returns the first constraint that refuses the configuration, or nullptr if all admit it.
template <typename Problem, typename Config>
const Constraint<Problem, Config>* first_refusal(
    std::span<const Constraint<Problem, Config>> constraints, const Config& config,
    const Setting<Problem>& setting) {
  const auto it = std::ranges::find_if(
      constraints, [&](const auto& rule) { return !rule.admits(config, setting); });
  return it == constraints.end() ? nullptr : &*it;
}

// Counts configurations, admitted or removed, into the candidates of a family.
template <typename Problem, typename Config>
class Census {
 public:
  explicit Census(std::span<const Constraint<Problem, Config>> constraints)
      : constraints_(constraints) {
    for (const auto& rule : constraints) counted_.removed.push_back({rule.name, rule.reason, 0});
  }

  void admit(const Config& config) {
    ++counted_.enumerated;
    counted_.admitted.push_back(config);
  }

  // `configurations` that one constraint of the table refuses alike.
  void remove(const Constraint<Problem, Config>& refusal, std::size_t configurations = 1) {
    counted_.enumerated += configurations;
    counted_.removed[static_cast<std::size_t>(&refusal - constraints_.data())].count +=
        configurations;
  }

  CandidatesOf<Config> result() && { return std::move(counted_); }

 private:
  std::span<const Constraint<Problem, Config>> constraints_;
  CandidatesOf<Config> counted_;
};

}  // namespace octile
