// The bits of a GEMM of small integers: sums of them are exact in any order and with any unit, so
// that D is the host executor's for all scales.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "generator/families.h"
#include "octile/octile.h"
#include "runtime/families/families.h"
#include "runtime/families/gemm/complete.h"
#include "runtime/reference/cast.h"
#include "tests/gpu/gemm_parts.h"
#include "tests/gpu/session.h"

namespace octile::tests {

// Copies of the memory that a call's pointers lead to, on the host.
class HostCopies {
 public:
  explicit HostCopies(GpuSession& gpu) : gpu_(gpu) {}
  // Returns the copy of a pointer to device memory; null of null.
  template <typename T>
  T* of(T* device, std::size_t bytes) {
    if (device == nullptr || bytes == 0) return nullptr;
    auto& copy = copies_.emplace_back(bytes);
    EXPECT_EQ((*gpu_.driver())
                  ->cuMemcpyDtoHAsync(copy.data(), reinterpret_cast<CUdeviceptr>(device), bytes,
                                      gpu_.stream()),
              CUDA_SUCCESS);
    gpu_.synchronize();
    return reinterpret_cast<T*>(copy.data());
  }

 private:
  GpuSession& gpu_;
  std::vector<std::vector<std::uint8_t>> copies_;
};

// Makes integers from -3 to 3 of the codes. Zeros stay, as the padding of groups has to.
inline void make_integers(GpuSession& gpu, DeviceBuffer& codes, DType dtype) {
  std::vector<std::uint8_t> host = bytes_of(gpu, codes);
  for (std::uint8_t& code : host) {
    code = code == 0 ? code : reference::to_fp8(static_cast<float>(code % 7 - 3), dtype);
  }
  ASSERT_TRUE(codes.upload(host.data(), host.size(), gpu.stream()));
  gpu.synchronize();
}

// FP8 D of the case, packed; none of a batch.
template <typename Case>
std::vector<std::uint8_t> scales_of_d(GpuSession& gpu, Case& c) {
  if constexpr (requires { c.d_scale(); }) return bytes_of(gpu, c.d_scale());
  return {};
}

// Makes integers of the case's operands, runs the configuration and compares every byte of D, the
// guards around it and its scales with the host executor's.
template <typename Case>
void expect_host_bits(GpuSession& gpu, Case& c, const GemmConfig& config) {
  const GemmProblem& problem = c.problem();
  make_integers(gpu, c.a(), problem.a.dtype);
  make_integers(gpu, c.b(), problem.b.dtype);
  c.poison_output();
  gpu.synchronize();
  std::vector<std::uint8_t> expected = bytes_of(gpu, c.d());
  std::vector<std::uint8_t> expected_scales = scales_of_d(gpu, c);

  HostCopies host(gpu);
  GemmArguments args = c.args();
  args.a = host.of(args.a, c.a().bytes());
  args.b = host.of(args.b, c.b().bytes());
  args.a_scale = host.of(args.a_scale, c.a_scale().bytes());
  args.b_scale = host.of(args.b_scale, c.b_scale().bytes());
  if (problem.bias) {
    args.bias = host.of(args.bias, static_cast<std::size_t>(problem.n * size_of(*problem.bias)));
  }
  const auto groups = static_cast<std::size_t>(problem.groups);
  args.groups.offsets = host.of(args.groups.offsets, (groups + 1) * sizeof(std::int32_t));
  args.groups.counts = host.of(args.groups.counts, groups * sizeof(std::int32_t));
  args.d = expected.data() + Case::kGuardBytes;
  if (is_fp8(problem.d.dtype)) {
    args.d_scales.scale = reinterpret_cast<float*>(expected_scales.data());
  }
  octile_squares squares{};
  if (has_sentry(problem)) args.monitor.sentry = &squares.sentry;
  const auto call = complete(problem, args);
  ASSERT_TRUE(call) << call.error().message;
  const Status ok = run_on_host(problem, *call);
  ASSERT_TRUE(ok) << ok.error().message;

  c.run_config(config, gpu.stream());
  const std::vector<std::uint8_t> found = bytes_of(gpu, c.d());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i], expected[i])
        << "byte " << static_cast<std::int64_t>(i) - Case::kGuardBytes << " of D";
  }
  EXPECT_TRUE(scales_of_d(gpu, c) == expected_scales) << "the scales of D";
}

}  // namespace octile::tests
