// The emulation of a cluster reports what a kernel does wrong. A small kernel with the GEMM's
// protocol is right under every schedule; each mistake in it is seen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/reference/cast.h"
#include "tests/emulation/cluster.h"
#include "tests/emulation/cluster_test_kernel.h"
#include "tests/emulation/emulation_test.h"
#include "tests/fake_driver/fake_driver.h"

namespace octile {
namespace {

using emulation::small::Mistakes;
using testing::HasSubstr;

constexpr int kBlocks = 7;
constexpr int kK = kBlocks * 128;
constexpr int kSchedules = 60;

struct Outcome {
  int wrong = 0;       // schedules that gave a wrong D
  int with_fault = 0;  // that reported a fault
  std::string faults;
};

TensorMap map_of(void* base, CUtensorMapDataType type, std::array<std::uint64_t, 2> extents,
                 std::array<std::uint32_t, 2> box, CUtensorMapSwizzle swizzle) {
  fake_cuda_tensor_map map{};
  map.magic = FAKE_CUDA_TENSOR_MAP_MAGIC;
  map.data_type = static_cast<std::uint8_t>(type);
  map.rank = 2;
  map.swizzle = static_cast<std::uint8_t>(swizzle);
  map.address = reinterpret_cast<std::uintptr_t>(base);
  std::ranges::copy(extents, map.dims);
  map.strides_bytes[0] = extents[0] * (type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : 4);
  std::ranges::copy(box, map.box);
  TensorMap bytes{};
  std::memcpy(&bytes, &map, sizeof map);
  return bytes;
}

class ClusterEmulation : public emulation::EmulationTest {
 protected:
  ClusterEmulation() {
    emulation::Schedule random(1);
    for (auto* codes : {&a_, &b_}) {
      for (std::uint8_t& code : *codes) {
        code = reference::to_fp8(static_cast<float>(random.next() % 5), DType::kE4M3);
      }
    }
  }

  float expected(int row, int column) const {
    float sum = 0;
    for (int i = 0; i < kK; ++i) {
      const auto at = [&](const std::vector<std::uint8_t>& codes, int r) {
        return reference::from_fp8(codes[static_cast<std::size_t>(r * kK + i)], DType::kE4M3);
      };
      sum += at(a_, row) * at(b_, column);
    }
    return sum;
  }

  Outcome run(const Mistakes& mistakes) {
    constexpr auto k8Bit = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    const TensorMap a = map_of(a_.data(), k8Bit, {kK, 64}, {128, 64}, CU_TENSOR_MAP_SWIZZLE_128B);
    const TensorMap b = map_of(b_.data(), k8Bit, {kK, 16}, {128, 16}, CU_TENSOR_MAP_SWIZZLE_128B);
    std::vector<float> wanted(64 * 16);
    for (int i = 0; i < 64 * 16; ++i) {
      wanted[static_cast<std::size_t>(i)] = expected(i / 16, i % 16);
    }
    wanted.resize(128 * 16, -1.0F);
    Outcome outcome;
    for (std::uint64_t seed = 0; seed < kSchedules; ++seed) {
      std::vector<float> result(128 * 16, 0.0F);
      const TensorMap d = map_of(result.data(), CU_TENSOR_MAP_DATA_TYPE_FLOAT32, {16, 128},
                                 {16, 64}, CU_TENSOR_MAP_SWIZZLE_NONE);
      emulation::readable = {emulation::bytes(a_.data(), 64 * kK),
                             emulation::bytes(b_.data(), 16 * kK)};
      emulation::writable = {emulation::bytes(result.data(), std::ssize(result) * 4)};
      emulation::ClusterLaunch launch;
      launch.threads = emulation::small::kThreads;
      launch.smem_bytes = emulation::small::kSharedBytes;
      launch.seed = seed;
      const auto faults = emulation::run_clusters(
          launch, [&] { emulation::small::kernel({&a, &b, &d, kBlocks, mistakes}); });
      outcome.with_fault += faults.empty() ? 0 : 1;
      for (const std::string& fault : faults) outcome.faults += fault + "\n";
      outcome.wrong += result == wanted ? 0 : 1;
    }
    return outcome;
  }

  std::vector<std::uint8_t> a_ = std::vector<std::uint8_t>(64 * kK);
  std::vector<std::uint8_t> b_ = std::vector<std::uint8_t>(16 * kK);
};

TEST_F(ClusterEmulation, ARightKernelIsRightUnderEverySchedule) {
  const Outcome outcome = run({});
  EXPECT_EQ(outcome.faults, "");
  EXPECT_EQ(outcome.wrong, 0);
}

TEST_F(ClusterEmulation, AStageReleasedBeforeItsProductGivesWrongSums) {
  EXPECT_GT(run({.releases_before_wait = true}).wrong, kSchedules / 6);
}

TEST_F(ClusterEmulation, SumsReadBeforeTheirWaitAreWrong) {
  EXPECT_EQ(run({.promotes_before_wait = true}).wrong, kSchedules);
}

TEST_F(ClusterEmulation, GroupsThatAddToThoseInFlightAreRightUnderEverySchedule) {
  const Outcome outcome = run({.sums_all = true});
  EXPECT_EQ(outcome.faults, "");
  EXPECT_EQ(outcome.wrong, 0);
}

TEST_F(ClusterEmulation, MistakesWithGroupsThatAddAreSeen) {
  EXPECT_GT(run({.releases_before_wait = true, .sums_all = true}).wrong, kSchedules / 6);
  EXPECT_EQ(run({.promotes_before_wait = true, .sums_all = true}).wrong, kSchedules);
}

TEST_F(ClusterEmulation, AnnouncedBytesThatNeverComeAreADeadlock) {
  const Outcome outcome = run({.bytes_too_many = 16});
  EXPECT_EQ(outcome.with_fault, kSchedules);
  EXPECT_THAT(outcome.faults,
              HasSubstr("block 0 warp 3: 32 threads from 96 wait for the mbarrier"));
}

TEST_F(ClusterEmulation, BytesThatWereNotAnnouncedAreAFault) {
  const Outcome outcome = run({.bytes_too_many = -16});
  EXPECT_EQ(outcome.with_fault, kSchedules);
  EXPECT_THAT(outcome.faults, HasSubstr("more bytes than announced"));
}

TEST_F(ClusterEmulation, ArrivalsBeyondTheCountAreSeen) {
  const Outcome outcome = run({.arrives_twice = true});
  EXPECT_GT(outcome.with_fault + outcome.wrong, kSchedules / 2);
}

TEST_F(ClusterEmulation, AMissingFenceIsAFault) {
  const Outcome outcome = run({.has_no_fence = true});
  EXPECT_EQ(outcome.with_fault, kSchedules);
  EXPECT_THAT(outcome.faults, HasSubstr("without a fence"));
}

TEST_F(ClusterEmulation, StagingThatIsOverwrittenTooEarlyGivesAWrongResult) {
  EXPECT_GT(run({.overwrites_staging = true}).wrong, kSchedules / 6);
}

TEST_F(ClusterEmulation, ABlockThatEndsBeforeItsStoreIsReadIsAFault) {
  const Outcome outcome = run({.ends_before_store_is_read = true});
  EXPECT_GT(outcome.with_fault, kSchedules / 6);
  EXPECT_THAT(outcome.faults, HasSubstr("the block ends before a store of TMA"));
}

// ---- single instructions ------------------------------------------------------------------------

// Runs one warp in each block of a cluster, of 1 KB of shared memory each, and returns the faults.
std::string faults_of(unsigned blocks, const std::function<void()>& body) {
  emulation::ClusterLaunch launch;
  launch.grid = launch.cluster = blocks;
  launch.threads = 32;
  launch.smem_bytes = 1024;
  std::string all;
  for (const std::string& fault : emulation::run_clusters(launch, body)) all += fault + "\n";
  return all;
}

constexpr u32 kBase = emulation::kSharedBase;

TEST_F(ClusterEmulation, AccessesOutsideSharedMemoryAreFaults) {
  EXPECT_EQ(faults_of(1, [] { load_shared_16(kBase + 1008); }), "");
  EXPECT_THAT(faults_of(1, [] { load_shared_16(kBase + 1024); }), HasSubstr("outside shared"));
  EXPECT_THAT(faults_of(1, [] { load_shared_f32(0); }), HasSubstr("outside shared"));
  EXPECT_THAT(faults_of(1, [] { load_shared_f32(kBase + 2); }), HasSubstr("misaligned"));
  EXPECT_THAT(faults_of(1, [] { load_shared_f32(cluster_address(kBase, 1)); }),
              HasSubstr("outside shared"));
}

// Each lane copies 16 bytes of which the last four do not exist, and a warp waits for all of them.
TEST_F(ClusterEmulation, CopiesOfLanesHaveComeOnceTheirArrivalsHave) {
  constexpr u32 kFull = kBase + 1016;
  alignas(16) static std::array<std::uint8_t, 512> source;
  source.fill(7);
  emulation::readable = {emulation::bytes(source.data(), std::ssize(source))};
  const auto faults = [](bool arrives, bool waits, std::uint64_t seed) {
    static std::uint32_t others;
    others = 0;
    emulation::ClusterLaunch launch;
    launch.threads = 64;
    launch.smem_bytes = 1024;
    launch.seed = seed;
    std::string all;
    for (const std::string& fault : emulation::run_clusters(launch, [=] {
           if (threadIdx.x == 0) {
             mbarrier::init(kFull, 32);
             mbarrier::fence_init();
           }
           __syncthreads();
           const u32 at = threadIdx.x % 32 * 16;
           if (threadIdx.x < 32) {
             cp_async::copy_16(kBase + at, source.data() + at, 12);
             if (arrives) cp_async::arrive(kFull);
           } else {
             if (waits) mbarrier::wait(kFull, 0);
             others += load_shared<u32>(kBase + at + 8) == 0x07070707U ? 0U : 1U;
             others += load_shared<u32>(kBase + at + 12) == 0 ? 0U : 1U;
           }
         }))
      all += fault + "\n";
    return all + (others > 0 ? "other bytes" : "");
  };
  int unseen = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    EXPECT_EQ(faults(true, true, seed), "");
    EXPECT_THAT(faults(false, true, seed), HasSubstr("wait for the mbarrier"));
    unseen += faults(true, false, seed).empty() ? 1 : 0;
  }
  EXPECT_LT(unseen, 4) << "copies that nobody waits for have mostly not come";
}

TEST_F(ClusterEmulation, CopiesOfLanesStayInsideTensorsAndAreAwaited) {
  alignas(16) static std::array<std::uint8_t, 32> source;
  emulation::readable = {emulation::bytes(source.data(), 24)};
  const auto copy = [](std::size_t from, u32 bytes) {
    return faults_of(1, [=] {
      if (threadIdx.x != 0) return;
      mbarrier::init(kBase + 64, 1);
      mbarrier::fence_init();
      cp_async::copy_16(kBase, source.data() + from, bytes);
      cp_async::arrive(kBase + 64);
      mbarrier::wait(kBase + 64, 0);
    });
  };
  EXPECT_EQ(copy(0, 16), "");
  EXPECT_EQ(copy(16, 8), "");
  EXPECT_THAT(copy(16, 9), HasSubstr("reads outside a tensor"));
  EXPECT_THAT(copy(8, 4), HasSubstr("16 aligned bytes"));
  emulation::ClusterLaunch late;
  late.threads = 32;
  late.smem_bytes = 1024;  // of a schedule that carries nothing out at once
  EXPECT_THAT(emulation::run_clusters(
                  late, [] { cp_async::copy_16(kBase + threadIdx.x * 16, source.data(), 16); }),
              testing::Contains(HasSubstr("for which it arrives nowhere")));
}

TEST_F(ClusterEmulation, AnMbarrierIsNoDataAndNeedsItsFence) {
  const auto with_barrier = [](bool fenced, const std::function<void()>& body) {
    return faults_of(1, [=] {
      if (threadIdx.x == 0) {
        mbarrier::init(kBase + 64, 1);
        if (fenced) mbarrier::fence_init();
        body();
      }
    });
  };
  EXPECT_EQ(with_barrier(true, [] { mbarrier::arrive(kBase + 64); }), "");
  EXPECT_THAT(with_barrier(false, [] { mbarrier::arrive(kBase + 64); }), HasSubstr("before fence"));
  EXPECT_THAT(with_barrier(true, [] { mbarrier::arrive(kBase + 72); }),
              HasSubstr("there is no mbarrier"));
  EXPECT_THAT(with_barrier(true, [] { store_shared_f32(kBase + 68, 1); }),
              HasSubstr("hit an mbarrier"));
}

TEST_F(ClusterEmulation, ABlockThatHasEndedGetsNoArrivals) {
  const auto body = [](bool stays) {
    return [=] {
      if (threadIdx.x == 0) mbarrier::init(kBase, 1);
      mbarrier::fence_init();
      cluster_sync();
      if (cluster_rank() == 0) {
        for (int i = 0; i < 100; ++i) emulation::yield();
        if (threadIdx.x == 0) mbarrier::arrive_cluster(kBase, 1);
      }
      if (stays) cluster_sync();
    };
  };
  EXPECT_EQ(faults_of(2, body(true)), "");
  EXPECT_THAT(faults_of(2, body(false)), HasSubstr("a block that has ended"));
}

// Threads that have ended count as arrived at the cluster's barrier.
TEST_F(ClusterEmulation, EndedThreadsDoNotHoldUpTheClusterBarrier) {
  EXPECT_EQ(faults_of(3,
                      [] {
                        if (threadIdx.x % 3 == 1) return;
                        cluster_arrive();
                        if (threadIdx.x % 3 == 2) return;
                        cluster_wait();
                        cluster_sync();
                      }),
            "");
  EXPECT_THAT(faults_of(2,
                        [] {
                          if (threadIdx.x == 5) named_barrier(3, 64);
                          cluster_sync();
                        }),
              HasSubstr("block 1 warp 0: 1 threads from 5 wait for bar.sync 0x3"));
}

}  // namespace
}  // namespace octile
