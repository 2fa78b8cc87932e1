// The report that a user of a card that nobody has measured can send: one JSON of the card's
// properties and results.
#pragma once

#include <string>

#include "runtime/engine/target.h"
#include "tools/common/handles.h"
#include "tools/doctor/surroundings.h"

namespace octile::tools {

// Tests the units and the quantisers of a device, "cuda" or "cuda:N", measures its speeds, and
// times ten GEMMs beside cuBLASLt, in a minute. The JSON names the parts that cannot be tested or
// measured, and what the cache keeps of earlier tests. It has nothing of the machine but the card,
// its driver and NVRTC: a path is its last part, or <cache> or ~. Errors: those of opening the
// device.
Result<Json> card_report(const LibraryHandle& library, const Surroundings& surroundings,
                         const std::string& device);

}  // namespace octile::tools
