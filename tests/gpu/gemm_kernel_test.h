// Tests of GEMM kernels by the default configuration of a token count.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>

#include "generator/families.h"
#include "tests/gpu/session.h"

namespace octile::tests {

// Case: GemmBatchCase or GemmGroupCase.
template <typename Case>
class GemmKernelTest : public GpuTest {
 protected:
  GemmConfig pick(const GemmProblem& problem, std::int64_t tokens) {
    return default_config(problem, tokens, gpu().device());
  }
  void run(Case& c, const GemmConfig& config) {
    c.poison_output();
    c.run_config(config, gpu().stream());
    gpu().synchronize();
  }
  // Expects that the configuration of each token count gives the right D, and its bits sixty times.
  void expect_bit_equal_repeats(Case& c, std::initializer_list<std::int64_t> token_counts) {
    for (const std::int64_t tokens : token_counts) {
      const GemmConfig config = pick(c.problem(), tokens);
      run(c, config);
      c.judge();
      const auto first = c.bytes_of_d();
      for (int i = 0; i < 60; ++i) {
        run(c, config);
        ASSERT_EQ(c.bytes_of_d(), first) << to_text(c.problem()) << "\n" << to_text(config);
      }
    }
  }
};

}  // namespace octile::tests
