// The inspector of verifiers, templates/bench/inspect.cu, on the host: its own text.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "tests/fake_driver/fake_driver.h"
#include "tests/support/fake_device.h"

namespace {

// The parts of CUDA that templates/bench/inspect.cu needs, for one thread that is the whole grid.
// NOLINTBEGIN: these names are CUDA's.
struct Dim {
  unsigned x = 0;
};
const Dim threadIdx{0}, blockIdx{0}, gridDim{1};
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using i64 = std::int64_t;
inline float __uint_as_float(u32 bits) { return std::bit_cast<float>(bits); }
inline void atomicMax(unsigned long long* to, unsigned long long value) {
  *to = *to > value ? *to : value;
}
inline void atomicAdd(unsigned long long* to, unsigned long long value) { *to += value; }
inline void wait_for_previous_kernel() {}
using std::fabs;
using std::fmax;
#define __device__
#define __forceinline__ inline
#define __global__ __attribute__((weak))  // of the C language, so all includers define it
#define __launch_bounds__(...)
#define OCTILE_EMITTED
#define OCTILE_KERNEL_NAME inspect_on_host
namespace cfg {
constexpr int kThreads = 1;
constexpr int kElementBytes = 2;
constexpr int kMantissaBits = 7;
constexpr unsigned kUnwritten = 0xFFFF;
constexpr bool kAdds = false;
}  // namespace cfg
#include "templates/bench/inspect.cu"
#undef OCTILE_KERNEL_NAME
namespace sums {
#define OCTILE_KERNEL_NAME inspect_sums_on_host
namespace cfg {
constexpr int kThreads = 1;
constexpr int kElementBytes = 2;
constexpr int kMantissaBits = 7;
constexpr unsigned kUnwritten = 0x0101;
constexpr bool kAdds = true;
}  // namespace cfg
#include "templates/bench/inspect.cu"
#undef OCTILE_KERNEL_NAME
}  // namespace sums
namespace codes {
#define OCTILE_KERNEL_NAME inspect_codes_on_host
namespace cfg {
constexpr int kThreads = 1;
constexpr int kElementBytes = 1;
constexpr int kMantissaBits = 3;
constexpr unsigned kUnwritten = 0xFF;
constexpr bool kAdds = false;
}  // namespace cfg
#include "templates/bench/inspect.cu"
#undef OCTILE_KERNEL_NAME
}  // namespace codes
namespace words {
#define OCTILE_KERNEL_NAME inspect_words_on_host
namespace cfg {
constexpr int kThreads = 1;
constexpr int kElementBytes = 4;
constexpr int kMantissaBits = 23;
constexpr unsigned kUnwritten = 0;
constexpr bool kAdds = false;
}  // namespace cfg
#include "templates/bench/inspect.cu"
#undef OCTILE_KERNEL_NAME
}  // namespace words
#undef OCTILE_EMITTED
#undef __launch_bounds__
#undef __global__
#undef __forceinline__
#undef __device__
// NOLINTEND

// Runs a launch of the inspector by one of its instances.
template <typename Inspect>
CUresult run_inspect(const fake_cuda_launch& launch, const Inspect& inspect) {
  using octile::test::parameter;
  inspect(parameter<const void*>(launch, 0), parameter<const void*>(launch, 1),
          parameter<i64>(launch, 2), parameter<i64>(launch, 3), parameter<i64>(launch, 4),
          parameter<i64>(launch, 5), parameter<i64>(launch, 6), parameter<double>(launch, 7),
          parameter<unsigned long long*>(launch, 8));
  return CUDA_SUCCESS;
}

}  // namespace
