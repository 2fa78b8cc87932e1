// The functions of the expression tree that no single instruction gives, in fp32 operations every
// device and host rounds alike: the same bits everywhere. templates/lib/math.cuh is the same text
// for a device, and a test holds the two together.
#pragma once

namespace octile::elementary {

// Within 2 ulp of the correctly rounded value for every x; NaN for a NaN; subnormal results kept.
float exp(float x);
float tanh(float x);

// 1 / (1 + exp(-x)), within 2 ulp of the correctly rounded value from x = -87 on; below, where it
// would become subnormal, that of -87 (1.6e-38).
float sigmoid(float x);

// 1 / sqrt(x), correctly rounded: infinite for a zero (of its sign), NaN below.
float rsqrt(float x);

// NaN where either is NaN; -0 < +0.
float min(float x, float y);
float max(float x, float y);

}  // namespace octile::elementary
