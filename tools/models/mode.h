// The use of a model, and its token counts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "generator/core/error.h"
#include "generator/gemm/passes.h"

namespace octile::tools {

enum class Mode {
  kDecode,   // 1, 2, 4, ... 256 tokens; experts in masked groups, kv_b_proj absorbed
  kPrefill,  // 512, 1024, ... 16384 tokens; experts in contiguous groups
  kTraining  // 2048, 4096, 8192, 16384 tokens, three passes
};
const char* name_of(Mode mode);
std::vector<std::string> mode_names();

// Returns the modes that --mode names; `serving` is decode and prefill, which are also those of an
// empty list. Errors: kInvalidArgument, naming --mode.
Result<std::vector<Mode>> modes_of_option(const std::vector<std::string>& names);

std::vector<std::int64_t> counts_of(Mode mode);
std::vector<Pass> passes_of(Mode mode);
// Returns those of the counts that a mode of several is asked for. If decode and prefill are both
// among them, as serving is, a count is of one of the two: of decode up to 256 tokens.
std::vector<std::int64_t> counts_in(Mode mode, const std::vector<Mode>& modes,
                                    std::vector<std::int64_t> counts);

}  // namespace octile::tools
