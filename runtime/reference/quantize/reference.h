// The quantise family on the host, bit for bit as docs/numerics.md defines it, with several threads
// over blocks. The reference executor runs it instead of a launch, and every GPU quantiser is
// compared with it.
#pragma once

#include "generator/core/error.h"
#include "generator/quantize/problem.h"
#include "runtime/reference/quantize/call.h"
#include "runtime/reference/quantize/reference_scale.h"

namespace octile::reference {

// Runs a complete call that has work. Writes every byte of the layout, including padding (scales 1,
// data 0). Gaps between rows that come from the caller's ldq or scale_ld stay untouched. threads 0:
// one per core. Errors: kUnsupported for types and layouts that docs/numerics.md does not define;
// kInvalidArgument for offsets or counts beyond the rows; kOutOfMemory.
Status quantize(const QuantizeProblem&, const QuantizeCall&, int threads = 0);

}  // namespace octile::reference
