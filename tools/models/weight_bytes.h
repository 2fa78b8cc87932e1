// The bytes of a weight.
#pragma once

#include "tools/models/config/model.h"

namespace octile::tools {

// Return the elements of one matrix [n, k], and the bytes of its scales in its recipe; 0 without
// one.
double elements_of(const Weight& weight);
double scale_bytes_of(const Weight& weight);

}  // namespace octile::tools
