// Inspects everything that a kernel under test wrote: it must write nothing outside its window and
// everything inside. Compares the result with another one of the same problem.
//
//   buffer, other:  [elements], poisoned before the kernel ran; the window is rows x cols elements
//                   from `first` on, rows `stride` elements apart
//   report[0]       elements outside the window that are no longer poison
//   report[1]       elements inside the window that are still kUnwritten; with kAdds only those
//                   whose neighbour is, too
//   report[2]       elements inside whose bits differ from those of `other`, unless it is null
//   report[3]       the part of report[2] that is further apart than
//                   allowed + |larger| * kUlpShare; all of it if elements are FP8 codes
//   report[4]       elements inspected
//   report[5]       1 + the index of the last element that counts in report[3]; 0: none
//
// A grid of any size strides over the buffer, a piece of a row at a time, so that no element needs
// a division. The host clears the report first.
#ifndef OCTILE_EMITTED
#include "lib/launch.cuh"
#include "lib/types.cuh"
#define OCTILE_KERNEL_NAME octile_bench_inspect
namespace cfg {
constexpr int kThreads = 256;
constexpr int kElementBytes = 2;
constexpr int kMantissaBits = 7;
constexpr unsigned kUnwritten = 0xFFFF;
constexpr bool kAdds = false;
}  // namespace cfg
#endif

namespace inspect {
static_assert(cfg::kElementBytes == 1 || cfg::kMantissaBits == 7 || cfg::kMantissaBits == 10 ||
                  cfg::kMantissaBits == 23,
              "FP8, bf16, fp16 or fp32");
// A NaN of any type.
constexpr u32 kPoison = cfg::kElementBytes == 1   ? 0xFFu
                        : cfg::kElementBytes == 2 ? 0xFFFFu
                                                  : 0xFFFFFFFFu;
// Half a unit in the last place of each of two results.
constexpr double kUlpShare = 1.0 / (1 << cfg::kMantissaBits);
// Elements of a row that a block looks at before it goes on.
constexpr i64 kPiece = 16 * cfg::kThreads;

__device__ __forceinline__ u32 load(const void* buffer, i64 i) {
  if constexpr (cfg::kElementBytes == 1) {
    return static_cast<const u8*>(buffer)[i];
  } else if constexpr (cfg::kElementBytes == 2) {
    return static_cast<const u16*>(buffer)[i];
  } else {
    return static_cast<const u32*>(buffer)[i];
  }
}

__device__ __forceinline__ double value_of(u32 bits) {
  if constexpr (cfg::kMantissaBits == 10) {
    // Its exponent and mantissa as those of fp32, whose bias is 112 larger. Infinity becomes 65536.
    const double magnitude = static_cast<double>(__uint_as_float((bits & 0x7FFFu) << 13)) *
                             5192296858534827628530496329220096.0;
    return (bits & 0x8000u) != 0 ? -magnitude : magnitude;
  } else {
    return static_cast<double>(__uint_as_float(cfg::kElementBytes == 2 ? bits << 16 : bits));
  }
}
}  // namespace inspect

extern "C" __global__ void __launch_bounds__(cfg::kThreads)
    OCTILE_KERNEL_NAME(const void* buffer, const void* other, i64 elements, i64 first, i64 rows,
                       i64 cols, i64 stride, double allowed, unsigned long long* report) {
  using namespace inspect;
  wait_for_previous_kernel();
  unsigned long long outside = 0, unwritten = 0, differing = 0, apart = 0, looked_at = 0, last = 0;
  const auto look = [&](i64 i, bool inside, i64 col) {
    ++looked_at;
    const u32 bits = load(buffer, i);
    if (!inside) {
      outside += bits != kPoison;
      return;
    }
    // Adding a sum of exactly zero leaves an element as it was, and a large D has a few such sums.
    // Kernels store an element together with its neighbour. So an unchanged element counts only if
    // its neighbour is unchanged, too.
    unwritten += bits == cfg::kUnwritten &&
                 (!cfg::kAdds || load(buffer, col % 2 == 0 ? i + 1 : i - 1) == bits);
    if (other == nullptr) return;
    const u32 expected = load(other, i);
    if (bits == expected) return;
    ++differing;
    // Codes mean nothing without their scales, so that all that differ count as apart.
    bool is_apart = true;
    if constexpr (cfg::kElementBytes != 1) {
      const double x = value_of(bits);
      const double y = value_of(expected);
      const double larger = fmax(fabs(x), fabs(y));
      // A NaN counts as further apart than any number.
      is_apart = !(fabs(x - y) <= allowed + larger * kUlpShare);
    }
    if (!is_apart) return;
    ++apart;
    last =
        last > static_cast<unsigned long long>(i) ? last : static_cast<unsigned long long>(i) + 1;
  };
  const i64 thread = static_cast<i64>(blockIdx.x) * cfg::kThreads + threadIdx.x;
  const i64 threads = static_cast<i64>(gridDim.x) * cfg::kThreads;
  const i64 end = first + rows * stride;
  for (i64 i = thread; i < first; i += threads) look(i, false, 0);
  for (i64 i = end + thread; i < elements; i += threads) look(i, false, 0);
  const i64 pieces = (stride + kPiece - 1) / kPiece;
  for (i64 piece = blockIdx.x; piece < rows * pieces; piece += gridDim.x) {
    const i64 row = piece / pieces;
    const i64 begin = piece % pieces * kPiece;
    const i64 behind = begin + kPiece < stride ? begin + kPiece : stride;
    for (i64 col = begin + threadIdx.x; col < behind; col += cfg::kThreads)
      look(first + row * stride + col, col < cols, col);
  }
  if (outside != 0) atomicAdd(report, outside);
  if (unwritten != 0) atomicAdd(report + 1, unwritten);
  if (differing != 0) atomicAdd(report + 2, differing);
  if (apart != 0) {
    atomicAdd(report + 3, apart);
    atomicMax(report + 5, last);
  }
  atomicAdd(report + 4, looked_at);
}
