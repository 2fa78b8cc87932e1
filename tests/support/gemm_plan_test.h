// Base of tests of GEMM plans on the host executor, through the C API.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/reference/cast.h"
#include "runtime/reference/synthetic.h"
#include "tests/support/api_handles.h"

namespace octile::test {

// Returns E4M3 codes of small integers, whose sums are exact in fp32.
inline std::vector<std::uint8_t> integer_codes(std::int64_t count, std::uint64_t seed) {
  std::vector<std::uint8_t> made(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < made.size(); ++i) {
    const auto value =
        static_cast<float>(static_cast<int>(reference::random_bits(seed, i) % 7) - 3);
    made[i] = reference::to_fp8(value, DType::kE4M3);
  }
  return made;
}
// Returns scales of 1/2 and 2.
inline std::vector<float> binary_scales(std::int64_t count, std::uint64_t seed) {
  std::vector<float> made(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < made.size(); ++i)
    made[i] = reference::random_bits(seed, i) % 2 == 0 ? 0.5F : 2.0F;
  return made;
}

// Describes an fp32 D[m,n] = A B^T of E4M3 operands with these scales.
inline octile_gemm_desc e4m3_desc(std::int64_t n, std::int64_t k, octile_granularity of_a,
                                  octile_granularity of_b) {
  octile_gemm_desc desc = {};
  desc.struct_size = sizeof(desc);
  desc.n = n;
  desc.k = k;
  desc.a_dtype = desc.b_dtype = OCTILE_E4M3;
  desc.a_granularity = of_a;
  desc.b_granularity = of_b;
  desc.d_dtype = OCTILE_FP32;
  return desc;
}

class GemmPlanTest : public ::testing::Test {
 protected:
  PlanHandle plan_of(const octile_gemm_desc& desc) {
    octile_plan* plan = nullptr;
    EXPECT_EQ(octile_gemm_plan_create(library.get(), "host", &desc, &plan), OCTILE_OK)
        << octile_last_error();
    return PlanHandle(plan);
  }

  LibraryHandle library{""};
};

}  // namespace octile::test
