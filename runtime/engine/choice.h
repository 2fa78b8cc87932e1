// Chooses the configuration for a token count, and gives the reason.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cache/tuning_set.h"
#include "generator/families.h"

namespace octile {

// The reasons for a configuration, the best first.
enum class ChosenBy : std::uint8_t { kRecord, kNearBucket, kNearShape, kSisterCard, kModel };
// "exact record", "near bucket", "near shape", "sister card", "cost model"
std::string_view name_of(ChosenBy by);

struct Choice {
  KernelConfig config;
  ChosenBy by = ChosenBy::kModel;
  std::optional<cache::TuningRecord> record;  // nothing if the cost model chose
  std::string reason;  // for a person; it says which records were passed over and why
};

// Returns the configuration for a token count: the winner of the best record that is exact or near
// and whose configuration the problem and the device admit, else the cost model's. First of the
// near records is that of the same bucket of the problem that is tuned alike. Any other near
// record's winner is passed over if the cost model expects it to be slower than its own pick by
// more than 5 %, or by more than 2 % above 128 tokens. Behind these, the same holds for the record
// of a sister card: another device of as many SMs, if the family's cost model estimates time. Other
// devices' records are mentioned and not used. A batch-invariant problem takes only configurations
// with the numerics of the model's, which are the same for every token count.
Choice choose_config(const Problem& problem, std::int64_t tokens, const DeviceSpec& device,
                     const cache::TuningSet& records);

// Returns the problem's text in tuning records: the canonical text with dynamic tokens.
std::string tuning_text(const Problem& problem);

}  // namespace octile
