// Which configuration serves a token count, and why that one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cache/tuning_set.h"
#include "generator/families.h"

namespace octile {

enum class ChosenBy : std::uint8_t { kRecord, kNearRecord, kModel };
std::string_view name_of(ChosenBy by);  // "record", "near record", "model"

struct Choice {
  KernelConfig config;
  ChosenBy by = ChosenBy::kModel;
  std::optional<cache::TuningRecord> record;  // absent: kModel
  std::string reason;  // a sentence for a person; what was passed over and why is part of it
};

// The winner of the best record that is exact or near, and whose configuration the problem and the
// device admit; else the cost model's. A near record's winner is passed over where the cost model
// expects it to be more than a twentieth slower than its own pick. Another device's record is
// mentioned and never taken. A batch-invariant problem takes no configuration whose numerics differ
// from the model's, which are the same for every token count.
Choice choose_config(const Problem& problem, std::int64_t tokens, const DeviceSpec& device,
                     const cache::TuningSet& records);

// The cost model's choice, which a token count without a record gets.
KernelConfig model_config(const Problem& problem, std::int64_t tokens, const DeviceSpec& device);

// What a record of this problem says of it: the canonical text with the token count open.
std::string tuning_text(const Problem& problem);

}  // namespace octile
