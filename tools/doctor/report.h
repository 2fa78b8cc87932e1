// The report that a user of a card that nobody has measured can send: one JSON of the card's
// properties and results.
#pragma once

#include <string>

#include "runtime/engine/target.h"
#include "tools/common/handles.h"
#include "tools/doctor/surroundings.h"

namespace octile::tools {

// Outcomes of the known-answer tests of a device, each run in octile-prover now.
struct CardTests {
  Json units = Json::array();  // of each: "unit", "ok", "tested", "verdict", "sum_bits" (or null)
  Json quantisers;             // "ok", "tested", "verdict"
  bool ok = true;              // nothing is wrong
};
CardTests test_card(const LibraryHandle& library, const Target& target);

// Tests the units and the quantisers of a device, "cuda" or "cuda:N", measures its speeds, and
// times ten GEMMs beside cuBLASLt, in a minute. The JSON names the parts that cannot be tested or
// measured, and has nothing of the machine but the card, its driver and NVRTC. Errors: those of
// opening the device.
Result<Json> card_report(const LibraryHandle& library, const Surroundings& surroundings,
                         const std::string& device);

}  // namespace octile::tools
