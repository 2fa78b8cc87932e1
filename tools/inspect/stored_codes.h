// The FP8 weights of a checkpoint: codes and scales as they are stored.
#pragma once

#include <cstdint>
#include <vector>

#include "generator/core/error.h"
#include "tools/inspect/subjects.h"

namespace octile::tools {

// Codes that share a scale.
struct StoredBlock {
  std::int64_t matrix = 0, row = 0, col = 0;  // of the first code
  std::int64_t rows = 0, cols = 0;
  double zero_share = 0;
  double largest = 0;  // the largest finite magnitude of its codes' values, without the scale
};

struct StoredCodes {
  std::int64_t elements = 0, zeros = 0, nans = 0, infinities = 0;
  std::int64_t at_largest = 0;  // codes of the format's largest value
  std::int64_t blocks = 0;      // with a code that is not zero
  std::int64_t set_by_one = 0;  // every other code is at most half as large as the largest
  // The largest code is at most half the format's largest value: the scale is larger than need be.
  std::int64_t half_used = 0;
  std::int64_t scales = 0, not_pow2 = 0;
  std::int64_t bad_scales = 0;     // zero, negative, NaN or infinite
  std::vector<StoredBlock> worst;  // blocks with the largest shares of zeros, the largest first

  StoredCodes& operator+=(const StoredCodes& other);
  double share(std::int64_t count) const {
    return elements == 0 ? 0.0 : static_cast<double>(count) / static_cast<double>(elements);
  }
};

// Reads the codes and scales of a subject in FP8. A tensor without scales that fit is one block.
// Errors: those of its files.
Result<StoredCodes> read_stored_codes(const Subject& subject);

// Returns sentences about scales that are wrong, or not powers of two although the checkpoint's
// config states that (`states_pow2`).
std::vector<std::string> remarks_of(const Subject& subject, const StoredCodes& codes,
                                    bool states_pow2);

}  // namespace octile::tools
