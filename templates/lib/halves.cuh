// The minimum and the maximum of two 16-bit integers at once, on GPUs that lack the instructions of
// arithmetic.cuh. In namespace quantize, arithmetic::min_u16x2 is this one.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/arithmetic.cuh"
#endif

namespace quantize::arithmetic {

using namespace ::arithmetic;

__device__ __forceinline__ u32 min_u16x2(u32 a, u32 b) { return __vminu2(a, b); }
__device__ __forceinline__ u32 max_u16x2(u32 a, u32 b) { return __vmaxu2(a, b); }

}  // namespace quantize::arithmetic
