// Base of tests of GEMM plans on the host executor, through the C API.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/api_handles.h"

namespace octile::test {

class GemmPlanTest : public ::testing::Test {
 protected:
  PlanHandle plan_of(const octile_gemm_desc& desc) {
    octile_plan* plan = nullptr;
    EXPECT_EQ(octile_gemm_plan_create(library.get(), "host", &desc, &plan), OCTILE_OK)
        << octile_last_error();
    return PlanHandle(plan);
  }
  void refuses(const octile_gemm_desc& desc, octile_status status,
               const std::vector<std::string>& parts) {
    octile_plan* plan = nullptr;
    expect_refused(octile_gemm_plan_create(library.get(), "host", &desc, &plan), status, parts);
    EXPECT_EQ(plan, nullptr);
  }

  LibraryHandle library{""};
};

}  // namespace octile::test
