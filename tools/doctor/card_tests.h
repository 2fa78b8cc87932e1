// The known-answer tests of one card, as `octile doctor` runs and shows them.
#pragma once

#include <string>
#include <vector>

#include "cache/proofs.h"
#include "runtime/engine/target.h"
#include "tools/common/handles.h"

namespace octile::tools {

// Outcomes of the tests of a device, each run in octile-prover now. A part that cannot be tested
// now also has the outcome of an earlier test, if the cache keeps one: it decides what serves.
struct CardTests {
  // Members of each unit: "unit", "ok", "tested", "verdict", "sum_bits" (or null), "remembered" (or
  // null): "verdict", "date".
  Json units = Json::array();
  Json quantisers;          // the same without "unit" and "sum_bits"
  std::string first_wrong;  // a sentence
  bool ok() const { return first_wrong.empty(); }
};
CardTests test_card(const LibraryHandle& library, const Target& target);

// Returns the outcomes that the cache keeps of a device, the newest last, with all drivers.
std::vector<cache::Proof> kept_outcomes(const LibraryHandle& library, const Target& target);

}  // namespace octile::tools
