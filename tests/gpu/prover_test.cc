// octile-prover on a real GPU: kernels that are right, wrong, write where they may not, trap, read
// what there is not, and do not end, while this process computes on the same GPU.
#include "runtime/proof/prover.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/compiler/nvrtc.h"
#include "runtime/engine/known_answers.h"
#include "runtime/engine/unit_answers.h"
#include "runtime/proof/recorder.h"
#include "tests/gpu/session.h"

namespace octile::tests {
namespace {

using ::testing::HasSubstr;

// Each adds `value` to the integers of a block of 1024.
constexpr const char* kSource = R"(
struct Args { int* memory; int value; };
__device__ int& own(const Args& a) { return a.memory[blockIdx.x * blockDim.x + threadIdx.x]; }
extern "C" __global__ void right(Args a) { own(a) += a.value; }
extern "C" __global__ void wrong(Args a) { own(a) += a.value + (threadIdx.x == 7 ? 1 : 0); }
extern "C" __global__ void beyond(Args a) { own(a) += a.value; a.memory[gridDim.x * blockDim.x + 5] = 1; }
extern "C" __global__ void traps(Args a) { own(a) += a.value; if (threadIdx.x == 3) __trap(); }
extern "C" __global__ void reads_nothing(Args a) { own(a) += *reinterpret_cast<int*>(16); }
extern "C" __global__ void does_not_end(Args a) {
  while (*reinterpret_cast<volatile int*>(&own(a)) != a.value - 1) {}
}
)";

struct Args {
  std::uint64_t memory;
  std::int32_t value;
};
constexpr std::size_t kThreads = 1024, kBlocks = 4, kGuards = 1024;
constexpr std::int32_t kBefore = 100, kAdded = 17;

class ProverGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    const auto nvrtc = Nvrtc::open();
    ASSERT_TRUE(nvrtc);
    const std::vector<std::string> options{"--gpu-architecture=" + gpu().device().arch(),
                                           "--std=c++17", "-default-device"};
    auto compiled = (*nvrtc)->compile("prover_test.cu", kSource, options);
    ASSERT_TRUE(compiled) << compiled.error().message;
    cubin_ = std::move(compiled->cubin);
  }

  KernelBuild build_of(const std::string& kernel) const {
    KernelBuild build;
    build.emitted.name = kernel;
    build.emitted.parameter_bytes = {sizeof(Args)};
    build.cubin = cubin_;
    return build;
  }

  Proven<std::vector<std::int32_t>> run(const std::string& kernel, std::chrono::seconds limit) {
    if (prover_ == nullptr) {
      auto started = Prover::start(*gpu().driver(), 0, {.time_to_run = limit});
      if (!started) return tl::unexpected(started.error());
      prover_ = std::move(*started);
    }
    const KernelBuild build = build_of(kernel);
    std::vector<std::int32_t> numbers(kBlocks * kThreads + kGuards, kBefore);
    std::vector<std::uint8_t> memory(numbers.size() * sizeof numbers[0]);
    std::memcpy(memory.data(), numbers.data(), memory.size());
    const auto address = prover_->load(build, memory.size());
    if (!address) return tl::unexpected(address.error());
    LaunchRecorder recorder(*gpu().driver(), build);
    Args args{*address, kAdded};
    std::array<void*, 1> parameters{&args};
    const LaunchSite site = recorder.site();
    EXPECT_TRUE(launch(site, recorder.kernels().kernel, launch_config(site, kBlocks, kThreads),
                       parameters.data()));
    if (const auto ran = prover_->run(recorder.launches(), memory); !ran) {
      prover_.reset();
      return tl::unexpected(ran.error());
    }
    std::memcpy(numbers.data(), memory.data(), memory.size());
    return numbers;
  }

  std::vector<std::uint8_t> cubin_;
  std::unique_ptr<Prover> prover_;
};

// Computes on the GPU until it is destroyed.
class Neighbour {
 public:
  explicit Neighbour(GpuSession& gpu)
      : thread_([this, &gpu](const std::stop_token& stop) {
          const auto guard = ContextGuard::enter(*gpu.driver(), gpu.context());
          const auto stream = Stream::create(gpu.driver());
          for (; stream && !stop.stop_requested(); ++rounds_) compute(gpu, stream->get());
        }) {}

  int rounds() const { return rounds_; }
  bool is_right() const { return is_right_; }

 private:
  void compute(GpuSession& gpu, CUstream stream) {
    auto buffer = DeviceBuffer::allocate(gpu.driver(), kBytes);
    std::vector<std::uint8_t> read(kBytes);
    const bool ok = buffer && buffer->fill(0x5a, stream) &&
                    buffer->download(read.data(), read.size(), stream) &&
                    gpu.driver()->api().cuStreamSynchronize(stream) == CUDA_SUCCESS &&
                    std::ranges::all_of(read, [](std::uint8_t byte) { return byte == 0x5a; });
    if (!ok) is_right_ = false;
  }

  static constexpr std::size_t kBytes = 4096;
  std::atomic<int> rounds_ = 0;
  std::atomic<bool> is_right_ = true;
  std::jthread thread_;  // ends first
};

TEST_F(ProverGpu, TellsRightFromWrongAndHarmsNobody) {
  const Neighbour neighbour(gpu());
  std::vector<std::int32_t> expected(kBlocks * kThreads, kBefore + kAdded);
  expected.resize(expected.size() + kGuards, kBefore);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) {
    const auto numbers = run("right", std::chrono::seconds(10));
    ASSERT_TRUE(numbers) << numbers.error().sentence;
    EXPECT_EQ(*numbers, expected);
    if (i == 0)
      fmt::print("first use: {:.2f} s\n",
                 std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  auto wrong = expected;
  for (std::size_t block = 0; block < kBlocks; ++block) ++wrong[block * kThreads + 7];
  auto beyond = expected;
  beyond[kBlocks * kThreads + 5] = 1;
  for (const auto& [kernel, numbers] : {std::pair("wrong", wrong), std::pair("beyond", beyond)}) {
    const auto found = run(kernel, std::chrono::seconds(10));
    ASSERT_TRUE(found) << kernel << ": " << found.error().sentence;
    EXPECT_EQ(*found, numbers) << kernel;
  }
  for (const char* kernel : {"traps", "reads_nothing"}) {
    const auto numbers = run(kernel, std::chrono::seconds(10));
    ASSERT_FALSE(numbers) << kernel;
    EXPECT_EQ(numbers.error().trouble, ProofTrouble::kFault) << numbers.error().sentence;
    EXPECT_THAT(numbers.error().sentence, HasSubstr("CUDA_ERROR_")) << kernel;
  }
  const int before = neighbour.rounds();
  const auto hung = run("does_not_end", std::chrono::seconds(2));
  ASSERT_FALSE(hung);
  EXPECT_EQ(hung.error().trouble, ProofTrouble::kHang) << hung.error().sentence;
  EXPECT_GT(neighbour.rounds(), before) << "the GPU serves others meanwhile";
  const auto again = run("right", std::chrono::seconds(10));
  ASSERT_TRUE(again) << "behind a kernel that hangs: " << again.error().sentence;
  EXPECT_EQ(*again, expected);
  EXPECT_TRUE(neighbour.is_right());
}

// The launches of real kernels, with tensor maps and clusters, from a thread without a context.
TEST_F(ProverGpu, HasWholeKernels) {
  const Target target{TargetKind::kLive, "cuda:0", gpu().device(), gpu().driver(), 0};
  std::jthread([&] {
    ProofRun run(gpu().internals(), target, ProofRun::Earlier::kAreRepeated);
    const Answer quantisers = test_known_answers(run, target);
    EXPECT_EQ(quantisers.kind, Answer::Kind::kRight)
        << (quantisers.status ? "" : quantisers.status.error().message);
    for (const UnitAnswer& unit : test_units(run, target))
      EXPECT_EQ(unit.kind, Answer::Kind::kRight)
          << name_of(unit.unit) << ": " << (unit.status ? "" : unit.status.error().message);
  });
}

}  // namespace
}  // namespace octile::tests
