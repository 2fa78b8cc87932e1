// Shared by tests of emulated quantise kernels: the kernels, their launches, and the check that no
// thread touched memory outside its tensors.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "generator/families.h"
#include "generator/quantize/config.h"
#include "generator/quantize/kernel_args.h"
#include "tests/emulation/quantize_kernels.h"
#include "tests/support/device_emulation.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OCTILE_NO_FIBERS 1
#endif

namespace octile::emulation {

class EmulationTest : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef OCTILE_NO_FIBERS
    GTEST_SKIP() << "this sanitizer does not follow ucontext switches";
#endif
  }
};

// An emitted kernel with its parsed texts.
struct Variant {
  QuantizeProblem problem;
  QuantizeConfig config;
  EmittedQuantizer kernels;
  std::string name() const { return to_text(Problem(problem)) + " / " + to_text(config); }
};

// Returns the variants whose problem is wanted.
template <typename Wanted>
std::vector<Variant> variants_of(const Wanted& wanted) {
  std::vector<Variant> made;
  for (const EmittedQuantizer& kernels : emitted_quantizers()) {
    const auto problem = std::get<QuantizeProblem>(parse_problem(kernels.problem).value());
    if (!wanted(problem)) continue;
    made.push_back({problem, parse_quantize_config(kernels.config).value(), kernels});
  }
  return made;
}

inline void run_blocks(std::int64_t blocks, int threads, QuantizeKernel kernel,
                       const QuantizeKernelArgs& args) {
  const auto device_args = std::bit_cast<quantize::Args>(args);
  for (std::int64_t b = 0; b < blocks; ++b) {
    run_block(
        static_cast<unsigned>(b), threads, [&] { kernel(device_args); },
        static_cast<unsigned>(blocks));
  }
}

// Runs the blocks of one cluster together.
inline void run_cluster(int blocks, int threads, QuantizeKernel kernel,
                        const QuantizeKernelArgs& args) {
  const auto device_args = std::bit_cast<quantize::Args>(args);
  Surroundings surroundings;
  cluster_threads = blocks * threads;
  const Blocks all{.count = blocks, .threads = threads, .grid = static_cast<unsigned>(blocks)};
  EXPECT_EQ(run_blocks_together(all, [&] { kernel(device_args); }, surroundings), "");
}

// Returns a watch of `count` bytes without gaps.
inline Watched bytes(const void* p, std::int64_t count) {
  return {static_cast<const char*>(p), 1, count, count};
}

inline void expect_no_stray_access() {
  EXPECT_EQ(std::exchange(stray_accesses, 0), 0) << "accesses outside the elements of a tensor";
  EXPECT_EQ(std::exchange(misaligned_accesses, 0), 0);
}

}  // namespace octile::emulation
