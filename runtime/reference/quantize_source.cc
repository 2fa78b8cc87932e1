#include "runtime/reference/quantize_source.h"

#include "runtime/reference/quantize_kernels.h"

namespace octile::reference {

void QuantizeSource::read(std::int64_t row, std::int64_t col, std::int64_t count,
                          float* out) const {
  widen(args_.x, problem_.x.dtype, row * ldx_ + col, count, out);
}

}  // namespace octile::reference
