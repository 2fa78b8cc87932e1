// Runs cases of GEMMs on tensors that begin or end where mapped memory does.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "generator/families.h"
#include "tests/gpu/guarded_memory.h"
#include "tests/gpu/session.h"

namespace octile::tests {

inline constexpr std::array kEnds{GuardedEnd::kFirst, GuardedEnd::kLast};

class GemmGuardedPages : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    for (auto& memory : memory_) {
      std::string why;
      memory = GuardedMemory::allocate(kBytes, why);
      ASSERT_NE(memory, nullptr) << why;
    }
  }
  void TearDown() override {
    for (auto& memory : memory_) memory.reset();
    GpuTest::TearDown();
  }

  // Runs the case on guarded copies of its tensors, then on its own, which get the same bits.
  template <typename Case>
  void compare(Case& c, const GemmConfig& config, GuardedEnd end) {
    c.poison_output();
    GemmArguments call = c.args();
    const std::size_t d_bytes = c.d().bytes() - 2 * Case::kGuardBytes;
    call.a = copy(0, call.a, c.a().bytes(), end);
    call.b = copy(1, call.b, c.b().bytes(), end);
    call.a_scale = copy(2, call.a_scale, c.a_scale().bytes(), end);
    call.b_scale = copy(3, call.b_scale, c.b_scale().bytes(), end);
    call.d = copy(4, call.d, d_bytes, end);
    if (HasFailure()) return;
    c.run_call(config, call, gpu().stream());
    c.run_config(config, gpu().stream());
    std::vector<std::uint8_t> guarded(d_bytes);
    std::vector<std::uint8_t> own(d_bytes);
    download(call.d, guarded);
    download(c.args().d, own);
    gpu().synchronize();
    EXPECT_TRUE(guarded == own) << to_text(c.problem()) << "\n" << to_text(config);
  }

 private:
  static constexpr std::size_t kBytes = 32 << 20;

  void* copy(std::size_t tensor, const void* from, std::size_t bytes, GuardedEnd end) {
    const GuardedMemory& memory = *memory_.at(tensor);
    EXPECT_LE(bytes, memory.bytes());
    if (HasFailure()) return nullptr;
    const CUdeviceptr to = memory.at(end, bytes);
    EXPECT_EQ(
        (*gpu().driver())
            ->cuMemcpyDtoDAsync(to, reinterpret_cast<CUdeviceptr>(from), bytes, gpu().stream()),
        CUDA_SUCCESS);
    return reinterpret_cast<void*>(to);
  }

  void download(const void* from, std::vector<std::uint8_t>& to) {
    ASSERT_EQ((*gpu().driver())
                  ->cuMemcpyDtoHAsync(to.data(), reinterpret_cast<CUdeviceptr>(from), to.size(),
                                      gpu().stream()),
              CUDA_SUCCESS);
  }

  std::array<std::unique_ptr<GuardedMemory>, 5> memory_;
};

}  // namespace octile::tests
