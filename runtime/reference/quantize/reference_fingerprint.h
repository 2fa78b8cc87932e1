// The fingerprint by which a quantiser with skip=unchanged knows a tensor again, as
// templates/quantize/fingerprint.cu computes it.
#pragma once

#include <array>
#include <cstdint>

namespace octile::reference {

using Fingerprint = std::array<std::uint64_t, 2>;

// Returns the fingerprint of x, whose rows have row_bytes bytes and are row_stride bytes apart.
// threads 0: one per core.
Fingerprint fingerprint(const void* x, std::int64_t rows, std::int64_t row_bytes,
                        std::int64_t row_stride, int threads = 0);

}  // namespace octile::reference
