// The report that a user of a card that nobody has measured can send: one JSON of the card's
// properties and results.
#pragma once

#include <string>

#include "runtime/engine/target.h"
#include "tools/common/handles.h"
#include "tools/doctor/surroundings.h"

namespace octile::tools {

// Returns each matrix unit's verdict and the bits that it keeps of a sum: "unit", "ok", "verdict",
// "sum_bits" (null if they were not read off).
Json units_json(const LibraryHandle& library, const Target& target);

// Tests the units and the quantisers of a device, "cuda" or "cuda:N", and measures its speeds, in
// half a minute. The JSON names the parts that cannot be tested or measured. Errors: those of
// opening the device.
Result<Json> card_report(const LibraryHandle& library, const Surroundings& surroundings,
                         const std::string& device);

}  // namespace octile::tools
