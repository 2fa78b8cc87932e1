// Times of a few GEMMs on a card, beside cuBLASLt: a part of the report that a user can send.
#pragma once

#include <string>

#include "tools/common/handles.h"

namespace octile::tools {

// Returns, for each of ten problems of layers: "problem", "tokens", "config", "us", "ok" (the
// result is within its tolerance), "cublaslt_us" (null without it), or "problem", "tokens" and
// "why_not". Takes half a minute, most of which is compiling. Errors: those of opening the device.
Result<Json> card_times(const std::string& device);

}  // namespace octile::tools
