// Plans on the fake device: prepare, run, capture, threads, devices, handles, and every driver call
// that can fail. NVRTC compiles the kernels; without it these tests skip.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "runtime/compiler/nvrtc.h"
#include "runtime/driver/buffer.h"
#include "tests/support/api_handles.h"
#include "tests/support/fake_device.h"

namespace octile::test {
namespace {

class PlanTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Nvrtc::open()) GTEST_SKIP() << "no NVRTC";
  }
  octile_status prepare(const PlanHandle& plan, std::int64_t lo, std::int64_t hi,
                        std::uint32_t flags = OCTILE_PREPARE_DEFAULT) {
    return octile_plan_prepare(plan.get(), lo, hi, flags);
  }
  octile_status run(const PlanHandle& plan, std::int64_t rows, void* stream = nullptr) {
    const QuantizeArguments args = q.args(rows);
    return run_quantize(plan.get(), args, stream);
  }

  FakeDevice device;
  TempFolder cache;
  GemmOperands g;
  QuantizeOperands q;
};

template <typename T>
void fill_random(T* values, std::size_t count, unsigned mask) {
  std::mt19937 random(7);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<T>(random() & mask);
}

// One scale per tensor needs two launches in order, with a workspace between them.
TEST_F(PlanTest, AFirstPassRunsBeforeTheCastAndNeedsItsWorkspace) {
  const LibraryHandle library(cache.path());
  const std::string text = "quantize rows=? cols=96 x=bf16 q=e4m3:tensor out=row";
  const PlanHandle plan = make_plan(library, "cuda:0", text);
  const PlanHandle host = make_plan(library, "host", text);
  constexpr std::int64_t kRows = 512;  // fewer are one cluster's
  ASSERT_EQ(prepare(plan, kRows, kRows), OCTILE_OK) << octile_last_error();
  std::size_t bytes = 0;
  ASSERT_EQ(octile_plan_workspace_size(host.get(), kRows, &bytes), OCTILE_OK);
  EXPECT_EQ(bytes, 0U);
  ASSERT_EQ(octile_plan_workspace_size(plan.get(), kRows, &bytes), OCTILE_OK);
  ASSERT_GT(bytes, 0U);

  QuantizeArguments args = q.args(kRows);
  expect_refused(run_quantize(plan.get(), args), OCTILE_INVALID_ARGUMENT, {"workspace is null"});
  Bytes workspace(bytes + 16);
  args.workspace = workspace.at(8);
  args.workspace_bytes = bytes;
  expect_refused(run_quantize(plan.get(), args), OCTILE_INVALID_ARGUMENT,
                 {"workspace is 0x", "a multiple of 16 bytes"});
  args.workspace = workspace.at();
  args.workspace_bytes = bytes - 1;
  expect_refused(run_quantize(plan.get(), args), OCTILE_INVALID_ARGUMENT,
                 {"workspace_bytes is", "octile_plan_workspace_size"});
  EXPECT_EQ(device.fake.launch_count(), 0U);

  args.workspace_bytes = bytes;
  fill_random(q.x.at<std::uint16_t>(), kRows * 96, 0x3fff);
  ASSERT_EQ(run_quantize(plan.get(), args), OCTILE_OK) << octile_last_error();
  ASSERT_EQ(device.fake.launch_count(), 2U);
  fake_cuda_launch first{}, second{};
  ASSERT_TRUE(device.fake.get_launch(0, &first));
  ASSERT_TRUE(device.fake.get_launch(1, &second));
  EXPECT_EQ(std::string(first.kernel), "octile_amax_bf16_tensor");
  EXPECT_TRUE(std::string(second.kernel).starts_with("octile_quantize_bf16_e4m3_tensor_f32_row"));
  Bytes codes(kRows * 96), scale(16);
  QuantizeArguments on_host = q.args(kRows);
  on_host.q = codes.at();
  on_host.scale = scale.at();
  ASSERT_EQ(run_quantize(host.get(), on_host), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(std::memcmp(q.q.at(), codes.at(), kRows * 96), 0);
}

TEST_F(PlanTest, ASmallTensorIsOneClustersAndKeepsItsWorkspace) {
  const LibraryHandle library(cache.path());
  const std::string text = "quantize rows=? cols=384 x=bf16 q=e4m3:tensor out=row";
  const PlanHandle plan = make_plan(library, "cuda:0", text);
  const PlanHandle host = make_plan(library, "host", text);
  ASSERT_EQ(prepare(plan, 64, 64), OCTILE_OK) << octile_last_error();
  std::size_t bytes = 0;
  ASSERT_EQ(octile_plan_workspace_size(plan.get(), 64, &bytes), OCTILE_OK);
  QuantizeArguments args = q.args(64);
  Bytes workspace(bytes);
  args.workspace = workspace.at();
  args.workspace_bytes = bytes;
  fill_random(q.x.at<std::uint16_t>(), 64 * 384, 0x3fff);
  ASSERT_EQ(run_quantize(plan.get(), args), OCTILE_OK) << octile_last_error();
  ASSERT_EQ(device.fake.launch_count(), 1U);
  fake_cuda_launch launch{};
  ASSERT_TRUE(device.fake.get_launch(0, &launch));
  EXPECT_TRUE(std::string(launch.kernel).ends_with("_cluster8")) << launch.kernel;
  EXPECT_EQ(launch.grid[0], 8U);
  EXPECT_EQ(launch.cluster[0], 8U);
  Bytes codes(64 * 384), scale(16);
  QuantizeArguments on_host = q.args(64);
  on_host.q = codes.at();
  on_host.scale = scale.at();
  ASSERT_EQ(run_quantize(host.get(), on_host), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(std::memcmp(q.q.at(), codes.at(), 64 * 384), 0);
}

// A further launch orders the 1x32 scales of those copies whose arrays are aligned. If no array is
// aligned, there is no further launch.
TEST_F(PlanTest, ScalesAreOrderedBehindTheTilesWhereArraysAreAligned) {
  static std::vector<std::pair<std::string, unsigned>> launches;
  device.fake.set_executor(
      [](const fake_cuda_launch* launch, void*) {
        launches.emplace_back(launch->kernel, launch->grid[0]);
        return CUDA_SUCCESS;
      },
      nullptr);
  const LibraryHandle library(cache.path());
  const PlanHandle plan =
      make_plan(library, "cuda:0", "quantize rows=? cols=1024 x=bf16 q=e4m3:1x32 out=both");
  ASSERT_EQ(prepare(plan, 16384, 17000), OCTILE_OK) << octile_last_error();
  const auto grid_behind = [&](std::int64_t rows, std::int64_t scale_ld, int shift) {
    QuantizeArguments args = q.args(rows);  // no data are read
    args.scale = q.scale.at(static_cast<std::size_t>(shift));
    args.scale_ld = scale_ld;
    args.q_transposed = q.q.at(16);
    args.scale_transposed = q.scale.at(16);
    launches.clear();
    EXPECT_EQ(run_quantize(plan.get(), args), OCTILE_OK) << octile_last_error();
    if (launches.empty() || launches.size() > 2) return -1;
    EXPECT_TRUE(launches[0].first.ends_with("_ordered")) << launches[0].first;
    if (launches.size() == 1) return 0;
    EXPECT_EQ(launches[1].first, "octile_scale_order_both");
    return static_cast<int>(launches[1].second);
  };
  EXPECT_EQ(grid_behind(16384, 0, 0), 128 + 8 * 2);
  EXPECT_EQ(grid_behind(16500, 0, 0), 128);  // 516 scales for each column
  EXPECT_EQ(grid_behind(16384, 36, 0), 8 * 2);
  EXPECT_EQ(grid_behind(16384, 0, 4), 8 * 2);
  EXPECT_EQ(grid_behind(16500, 36, 0), 0);
}

// Two steps of delayed scaling leave the same state on the fake device as on the host.
TEST_F(PlanTest, DelayedScalingGivesTheReferencesBits) {
  const LibraryHandle library(cache.path());
  const std::string text = "quantize rows=? cols=384 x=bf16 q=e4m3:tensor out=row policy=delayed";
  fill_random(q.x.at<std::uint16_t>(), 64 * 384, 0x3fff);
  std::vector<std::vector<float>> states;  // the history, then the encode scale
  for (const char* on : {"cuda:0", "host"}) {
    const PlanHandle plan = make_plan(library, on, text);
    ASSERT_EQ(prepare(plan, 64, 64), OCTILE_OK) << octile_last_error();
    std::vector<float>& state = states.emplace_back(std::vector<float>{0, 0, 0, 1});
    QuantizeArguments args = q.args(64);
    args.delayed.encode_scale = &state[3];
    args.monitor.amax = state.data();
    octile_scale_update_args update = {};
    update.struct_size = sizeof update;
    update.history = state.data();
    update.encode_scale = &state[3];
    update.tensors = 1;
    update.length = 3;
    for (int step = 0; step < 2; ++step) {
      ASSERT_EQ(run_quantize(plan.get(), args), OCTILE_OK) << octile_last_error();
      ASSERT_EQ(octile_scale_update_run(plan.get(), &update, nullptr), OCTILE_OK)
          << octile_last_error();
    }
  }
  EXPECT_EQ(device.fake.launch_count(), 4U);
  EXPECT_NE(states[0][3], 1.0F);
  EXPECT_EQ(states[0], states[1]);
}

TEST_F(PlanTest, GemmGivesTheReferencesBits) {
  const LibraryHandle library(cache.path());
  const PlanHandle live = make_plan(library, "cuda:0", kGemmText);
  const PlanHandle host = make_plan(library, "host", kGemmText);
  ASSERT_EQ(prepare(live, 1, 128), OCTILE_OK) << octile_last_error();
  fill_random(g.a.at<std::uint8_t>(), 128 * 384, 0x77);  // these are not NaN codes
  fill_random(g.b.at<std::uint8_t>(), 256 * 384, 0xf7);
  for (int i = 0; i < 3 * 128; ++i) g.a_scale.at<float>()[i] = 1.0F / static_cast<float>(1 + i);
  for (int i = 0; i < 8; ++i) g.b_scale.at<float>()[i] = static_cast<float>(1 + i);
  for (const std::int64_t m : {1, 3, 63, 64, 77, 128}) {
    octile_gemm_args args = g.args(m);
    ASSERT_EQ(octile_gemm_run(live.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
    Bytes expected(128 * 256 * 2);
    args.d = expected.at();
    ASSERT_EQ(octile_gemm_run(host.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
    EXPECT_EQ(std::memcmp(g.d.at(), expected.at(), static_cast<std::size_t>(m) * 256 * 2), 0);
  }
  EXPECT_EQ(device.fake.launch_count(), 6U);
}

TEST_F(PlanTest, GemmHonoursStrides) {
  const LibraryHandle library(cache.path());
  const PlanHandle live = make_plan(library, "cuda", kGemmText);
  ASSERT_EQ(prepare(live, 5, 5), OCTILE_OK) << octile_last_error();
  Bytes d(5 * 264 * 2);
  octile_gemm_args args = g.args(5);
  args.d = d.at();
  args.ldd = 264;
  args.a_scale_ld = 12;
  args.b_scale_ld = 3;
  ASSERT_EQ(octile_gemm_run(live.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
  fake_cuda_launch launch = {};
  ASSERT_EQ(device.fake.get_launch(0, &launch), 1);
  EXPECT_EQ(gemm_args(launch).scale_a_ld, 12);
  EXPECT_EQ(gemm_args(launch).scale_b_ld, 3);
  EXPECT_EQ(gemm_args(launch).ldd, 264);
  EXPECT_LE(launch.grid[0], 132U) << "persistent";
}

// Operands come into L2 by 128 bytes up to 256 rows, and by 256 bytes beyond.
TEST_F(PlanTest, CopiesBringMoreIntoL2BeyondFewRows) {
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(library, "cuda", kGemmText);
  ASSERT_EQ(prepare(plan, 256, 257), OCTILE_OK) << octile_last_error();
  Bytes a(257 * 384), a_scale(3 * 260 * 4), d(257 * 256 * 2);
  octile_gemm_args args = g.args(5);
  args.a = a.at();
  args.a_scale = static_cast<const float*>(a_scale.at());
  args.d = d.at();
  for (const bool many : {false, true}) {
    args.tokens = many ? 257 : 256;
    ASSERT_EQ(octile_gemm_run(plan.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
    fake_cuda_launch launch = {};
    ASSERT_EQ(device.fake.get_launch(many ? 1 : 0, &launch), 1);
    EXPECT_EQ(encoded(gemm_args(launch).b_map.tma).l2_promotion,
              many ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  }
}

// One flag allows weights to be prefetched before the previous kernel has ended. A programmatic
// launch alone does not allow it, because the kernel waits by itself.
TEST_F(PlanTest, OverlapIsAskedForByFlag) {
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(library, "cuda", kGemmText);
  ASSERT_EQ(prepare(plan, 5, 5), OCTILE_OK) << octile_last_error();
  octile_gemm_args args = g.args(5);
  Bytes d(5 * 256 * 2);
  args.d = d.at();
  for (const bool overlap : {false, true}) {
    args.flags = overlap ? OCTILE_RUN_B_READY : OCTILE_RUN_DEFAULT;
    ASSERT_EQ(octile_gemm_run(plan.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
    fake_cuda_launch launch = {};
    ASSERT_EQ(device.fake.get_launch(overlap ? 1 : 0, &launch), 1);
    EXPECT_EQ(launch.programmatic, 1);
    const std::int32_t stages = gemm_args(launch).early_stages;
    EXPECT_TRUE(overlap ? stages > 0 : stages == 0) << stages << " stages of weights";
  }
}

// With several rows of tiles, the kernel does not let its successor start early and prefetches
// nothing early.
TEST_F(PlanTest, KernelsThatLetNothingStartDoNotOverlap) {
  constexpr std::int64_t kM = 2048, kN = 5376, kK = 2048;
  const LibraryHandle library(cache.path());
  const PlanHandle plan =
      make_plan(library, "cuda",
                "gemm m=? n=5376 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128");
  ASSERT_EQ(prepare(plan, kM, kM), OCTILE_OK) << octile_last_error();
  Bytes a(kM * kK), a_scale(kK / 128 * kM * 4), b(kN * kK), b_scale(kN / 128 * (kK / 128) * 4),
      d(kM * kN * 2);
  octile_gemm_args args = {};
  args.struct_size = sizeof(args);
  args.tokens = kM;
  args.a = a.at();
  args.a_scale = static_cast<const float*>(a_scale.at());
  args.b = b.at();
  args.b_scale = static_cast<const float*>(b_scale.at());
  args.d = d.at();
  args.flags = OCTILE_RUN_B_READY;
  ASSERT_EQ(octile_gemm_run(plan.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
  fake_cuda_launch launch = {};
  ASSERT_EQ(device.fake.get_launch(0, &launch), 1);
  EXPECT_EQ(launch.programmatic, 1);
  EXPECT_EQ(gemm_args(launch).early_stages, 0);
}

TEST_F(PlanTest, EmptyProductsLaunchNothing) {
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
  octile_gemm_args nothing = {};
  nothing.struct_size = sizeof(nothing);
  EXPECT_EQ(octile_gemm_run(plan.get(), &nothing, nullptr), OCTILE_OK) << octile_last_error();
  const PlanHandle no_columns = make_plan(
      library, "cuda:0", "gemm m=? n=0 k=384 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128");
  EXPECT_EQ(prepare(no_columns, 0, 4), OCTILE_OK) << octile_last_error();
  nothing.tokens = 4;
  EXPECT_EQ(octile_gemm_run(no_columns.get(), &nothing, nullptr), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(device.fake.launch_count(), 0U);
}

TEST_F(PlanTest, AnEmptySumIsZero) {
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(
      library, "cuda:0", "gemm m=? n=16 k=0 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128");
  ASSERT_EQ(prepare(plan, 2, 2), OCTILE_OK) << octile_last_error();
  auto [context, current] = device.enter();
  auto d = DeviceBuffer::allocate(device.driver, 2 * 24 * 2);
  ASSERT_TRUE(d->fill(0x5a, nullptr));
  octile_gemm_args args = {};
  args.struct_size = sizeof(args);
  args.tokens = 2;
  args.d = d->pointer();
  args.ldd = 24;
  ASSERT_EQ(octile_gemm_run(plan.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
  std::array<std::uint8_t, 2 * 24 * 2> got{};
  ASSERT_TRUE(d->download(got.data(), got.size(), nullptr));
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_EQ(got[i], i % 48 < 32 ? 0 : 0x5a) << "byte " << i;
  EXPECT_EQ(device.fake.launch_count(), 0U);
}

TEST_F(PlanTest, UnpreparedCountsAreRefused) {
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kQuantizeText);
  expect_refused(run(plan, 5), OCTILE_NOT_PREPARED, {"5 tokens", "octile_plan_prepare"});
  ASSERT_EQ(prepare(plan, 5, 5), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(run(plan, 5), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(run(plan, 8), OCTILE_OK) << "the same bucket: " << octile_last_error();
  expect_refused(run(plan, 9), OCTILE_NOT_PREPARED, {"9 tokens"});
  EXPECT_EQ(device.fake.launch_count(), 2U);
}

TEST_F(PlanTest, ABucketAbove128IsHalfADoubling) {
  q = {Bytes(384 * 384 * 2), Bytes(384 * 384), Bytes(3 * 384 * 4)};
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kQuantizeText);
  ASSERT_EQ(prepare(plan, 300, 300), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(run(plan, 257), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(run(plan, 384), OCTILE_OK) << octile_last_error();
  expect_refused(run(plan, 256), OCTILE_NOT_PREPARED, {"256 tokens"});
  expect_refused(run(plan, 385), OCTILE_NOT_PREPARED, {"385 tokens"});
  EXPECT_EQ(device.fake.launch_count(), 2U);
}

TEST_F(PlanTest, ADeviceNameCompilesAndDoesNotRun) {
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(library, "h200", kQuantizeText);
  ASSERT_EQ(prepare(plan, 1, 16), OCTILE_OK) << octile_last_error();
  expect_refused(run(plan, 1), OCTILE_DEVICE_ERROR, {"\"h200\"", "a name to compile for"});
  EXPECT_EQ(device.fake.call_count("cuLibraryLoadData"), 0U);
}

TEST_F(PlanTest, DescribeSaysWhatWasPrepared) {
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(library, "h200", kQuantizeText);
  EXPECT_EQ(describe(plan.get())["kernels"].size(), 0U);
  ASSERT_EQ(prepare(plan, 1, 1), OCTILE_OK) << octile_last_error();
  const nlohmann::json first = describe(plan.get());
  EXPECT_EQ(first["problem"], kQuantizeText);
  EXPECT_EQ(first["device"], "h200");
  ASSERT_EQ(first["kernels"].size(), 1U);
  const nlohmann::json& kernel = first["kernels"][0];
  EXPECT_EQ(kernel["cache"], "miss");
  EXPECT_EQ(kernel["buckets"], nlohmann::json::array({1}));
  EXPECT_GT(kernel["registers"], 0);
  EXPECT_GT(kernel["compile_ms"], 0.0);
  EXPECT_GT(kernel["cubin_bytes"], 0);
  EXPECT_EQ(kernel["spill_store_bytes"], 0);
  // Another handle finds the kernel on disk.
  const LibraryHandle second(cache.path());
  const PlanHandle again = make_plan(second, "h200", kQuantizeText);
  ASSERT_EQ(prepare(again, 1, 1), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(describe(again.get())["kernels"][0]["cache"], "hit");
  EXPECT_EQ(describe(again.get())["kernels"][0]["source_digest"], kernel["source_digest"]);
}

TEST_F(PlanTest, PrepareIsIdempotent) {
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kQuantizeText);
  ASSERT_EQ(prepare(plan, 1, 64), OCTILE_OK) << octile_last_error();
  const std::size_t loads = device.fake.call_count("cuLibraryLoadData");
  const nlohmann::json before = describe(plan.get());
  ASSERT_EQ(prepare(plan, 1, 64), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(device.fake.call_count("cuLibraryLoadData"), loads);
  EXPECT_EQ(describe(plan.get()), before);
}

TEST_F(PlanTest, AsyncServesTheWholeRangeAtOnce) {
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
  ASSERT_EQ(prepare(plan, 1, 128, OCTILE_PREPARE_ASYNC), OCTILE_OK) << octile_last_error();
  for (const std::int64_t m : {1, 2, 17, 128}) {
    const octile_gemm_args args = g.args(m);
    EXPECT_EQ(octile_gemm_run(plan.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
  }
  EXPECT_EQ(octile_plan_wait(plan.get()), OCTILE_OK) << octile_last_error();
  const PlanHandle strict = make_plan(library, "cuda:0", kGemmText);
  ASSERT_EQ(prepare(strict, 1, 128), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(describe(plan.get())["kernels"].size(), describe(strict.get())["kernels"].size())
      << "in the end each bucket has the kernel chosen for it";
}

TEST_F(PlanTest, DestroyingAPlanDropsItsBackgroundWork) {
  const LibraryHandle library(cache.path(), false, 1);
  PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
  ASSERT_EQ(prepare(plan, 1, 4096, OCTILE_PREPARE_ASYNC), OCTILE_OK) << octile_last_error();
  plan.reset();  // the library handle is destroyed next, while jobs are queued or running
}

// ---- captures

TEST_F(PlanTest, RunsInsideACapture) {
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kQuantizeText);
  ASSERT_EQ(prepare(plan, 4, 4), OCTILE_OK) << octile_last_error();
  auto [context, current] = device.enter();
  auto stream = Stream::create(device.driver);
  auto graph = Graph::capture(device.driver, stream->get(), [&]() -> Status {
    EXPECT_EQ(run(plan, 4, stream->get()), OCTILE_OK) << octile_last_error();
    EXPECT_EQ(device.fake.launch_count(), 0U);
    return {};
  });
  ASSERT_TRUE(graph) << graph.error().message;
  ASSERT_TRUE(graph->launch(stream->get()));
  EXPECT_EQ(device.fake.launch_count(), 1U);
}

TEST_F(PlanTest, UnpreparedInsideACaptureIsRefusedAndTheCaptureGoesOn) {
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kQuantizeText);
  auto [context, current] = device.enter();
  auto stream = Stream::create(device.driver);
  auto graph = Graph::capture(device.driver, stream->get(), [&]() -> Status {
    expect_refused(run(plan, 4, stream->get()), OCTILE_CAPTURING,
                   {"4 tokens", "capturing", "before the capture begins"});
    return {};
  });
  EXPECT_TRUE(graph) << graph.error().message;
}

TEST_F(PlanTest, PreparesWhileAnyStreamCaptures) {
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kQuantizeText);
  auto [context, current] = device.enter();
  auto stream = Stream::create(device.driver);
  const Driver& driver = *device.driver;
  int count = 1;
  for (const CUstreamCaptureMode mode :
       {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
    ASSERT_EQ(driver->cuStreamBeginCapture(stream->get(), mode), CUDA_SUCCESS);
    const PlanHandle other = make_plan(library, "cuda:0", kQuantizeText);
    EXPECT_EQ(prepare(other, count, count), OCTILE_OK) << octile_last_error();
    CUgraph graph = nullptr;
    EXPECT_EQ(driver->cuStreamEndCapture(stream->get(), &graph), CUDA_SUCCESS)
        << "the capture was spoilt";
    driver->cuGraphDestroy(graph);
    count *= 64;
  }
}

// ---- threads, devices, handles

TEST_F(PlanTest, ThreadsShareAPlan) {
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kQuantizeText);
  ASSERT_EQ(prepare(plan, 1, 2), OCTILE_OK) << octile_last_error();
  std::atomic<int> refused = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      QuantizeOperands mine;
      if (t == 0 && prepare(plan, 1, 128) != OCTILE_OK) ++refused;
      for (int i = 0; i < 50; ++i) {
        const QuantizeArguments args = mine.args(1 + i % 2);
        if (run_quantize(plan.get(), args) != OCTILE_OK) ++refused;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(device.fake.launch_count(), 200U);
}

TEST_F(PlanTest, ThreadsCompileAKernelOnce) {
  const LibraryHandle library(cache.path(), false, 4);
  std::vector<PlanHandle> plans;
  for (int i = 0; i < 4; ++i) plans.push_back(make_plan(library, "cuda:0", kQuantizeText));
  std::vector<std::thread> threads;
  for (const PlanHandle& plan : plans)
    threads.emplace_back([&] { EXPECT_EQ(prepare(plan, 1, 1), OCTILE_OK) << octile_last_error(); });
  for (std::thread& thread : threads) thread.join();
  const std::vector<std::string> lines = library.log.of(OCTILE_LOG_INFO);
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                          [](const std::string& line) { return line.starts_with("compiled "); }),
            1);
  EXPECT_EQ(device.fake.call_count("cuLibraryLoadData"), 1U);
}

TEST_F(PlanTest, EachDeviceGetsItsLaunches) {
  const LibraryHandle library(cache.path());
  const PlanHandle first = make_plan(library, "cuda:0", kQuantizeText);
  const PlanHandle second = make_plan(library, "cuda:1", kQuantizeText);
  ASSERT_EQ(prepare(first, 1, 1), OCTILE_OK) << octile_last_error();
  ASSERT_EQ(prepare(second, 1, 1), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(device.fake.call_count("cuLibraryLoadData"), 1U) << "loaded once per process";
  auto [context, current] = device.enter(0);
  ASSERT_EQ(run(first, 1), OCTILE_OK) << octile_last_error();
  ASSERT_EQ(run(second, 1), OCTILE_OK) << "not the current device: " << octile_last_error();
  CUdevice after = -1;
  (*device.driver)->cuCtxGetDevice(&after);
  EXPECT_EQ(after, 0) << "the caller's context is current again";
  fake_cuda_launch launch = {};
  ASSERT_EQ(device.fake.get_launch(0, &launch), 1);
  EXPECT_EQ(launch.device, 0);
  ASSERT_EQ(device.fake.get_launch(1, &launch), 1);
  EXPECT_EQ(launch.device, 1);
}

TEST_F(PlanTest, LaunchesInAContextThatIsNotThePrimaryOne) {
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kQuantizeText);
  ASSERT_EQ(prepare(plan, 1, 1), OCTILE_OK) << octile_last_error();
  const auto own = ContextGuard::enter(*device.driver, device.fake.make_context(0));
  ASSERT_TRUE(own.has_value());
  const std::size_t pushed = device.fake.call_count("cuCtxPushCurrent_v2");
  EXPECT_EQ(run(plan, 1), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(device.fake.call_count("cuCtxPushCurrent_v2"), pushed) << "the caller's serves";
  EXPECT_EQ(device.fake.launch_count(), 1U);
}

TEST_F(PlanTest, CudaMeansTheCurrentContextsDevice) {
  const LibraryHandle library("");
  EXPECT_EQ(describe(make_plan(library, nullptr, kQuantizeText).get())["device"], "cuda:0");
  auto [context, current] = device.enter(1);
  EXPECT_EQ(describe(make_plan(library, "cuda", kQuantizeText).get())["device"], "cuda:1");
}

TEST_F(PlanTest, HandlesAreIndependent) {
  const LibraryHandle kept(cache.path());
  const PlanHandle plan = make_plan(kept, "cuda:0", kQuantizeText);
  ASSERT_EQ(prepare(plan, 1, 1), OCTILE_OK) << octile_last_error();
  {
    const LibraryHandle other(cache.path());
    const PlanHandle same = make_plan(other, "cuda:0", kQuantizeText);
    ASSERT_EQ(prepare(same, 1, 1), OCTILE_OK) << octile_last_error();
    EXPECT_EQ(device.fake.live_libraries(), 2U);
  }
  EXPECT_EQ(device.fake.live_libraries(), 1U) << "the other handle unloads its own";
  EXPECT_EQ(run(plan, 1), OCTILE_OK) << octile_last_error();
}

// ---- driver calls that fail

class DriverFault : public PlanTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(DriverFault, OfPrepareIsNamedAndCanBeTriedAgain) {
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kQuantizeText);
  device.fake.fail(GetParam(), CUDA_ERROR_UNKNOWN, 1);
  expect_refused(prepare(plan, 1, 1), OCTILE_DEVICE_ERROR, {GetParam(), "CUDA_ERROR_UNKNOWN"});
  expect_refused(run(plan, 1), OCTILE_NOT_PREPARED, {});
  ASSERT_EQ(prepare(plan, 1, 1), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(run(plan, 1), OCTILE_OK) << octile_last_error();
}
INSTANTIATE_TEST_SUITE_P(Calls, DriverFault,
                         ::testing::Values("cuDevicePrimaryCtxRetain", "cuLibraryLoadData",
                                           "cuLibraryGetKernel", "cuKernelSetAttribute",
                                           "cuKernelGetFunction"),
                         [](const auto& call) { return std::string(call.param); });

TEST_F(PlanTest, OutOfDeviceMemoryIsToldApart) {
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kQuantizeText);
  device.fake.fail("cuLibraryLoadData", CUDA_ERROR_OUT_OF_MEMORY, 1);
  expect_refused(prepare(plan, 1, 1), OCTILE_OUT_OF_MEMORY, {"cuLibraryLoadData"});
}

TEST_F(PlanTest, DriverFaultsOfRunAreNamed) {
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
  ASSERT_EQ(prepare(plan, 1, 1), OCTILE_OK) << octile_last_error();
  const octile_gemm_args args = g.args(1);
  for (const char* call : {"cuCtxPushCurrent_v2", "cuTensorMapEncodeTiled", "cuLaunchKernelEx"}) {
    device.fake.fail(call, CUDA_ERROR_UNKNOWN, 1);
    expect_refused(
        octile_gemm_run(plan.get(), &args, nullptr), OCTILE_DEVICE_ERROR,
        {std::string(call).substr(0, std::string(call).find('_')), "CUDA_ERROR_UNKNOWN"});
    EXPECT_EQ(octile_gemm_run(plan.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
  }
}

TEST_F(PlanTest, BackgroundFailureIsToldByWaitOnce) {
  const LibraryHandle library(cache.path());
  const PlanHandle plan = make_plan(library, "cuda:0", kGemmText);
  ASSERT_EQ(prepare(plan, 4096, 4096), OCTILE_OK) << octile_last_error();
  device.fake.fail("cuLibraryLoadData", CUDA_ERROR_UNKNOWN, 0);
  ASSERT_EQ(prepare(plan, 1, 4096, OCTILE_PREPARE_ASYNC), OCTILE_OK) << octile_last_error();
  expect_refused(octile_plan_wait(plan.get()), OCTILE_DEVICE_ERROR, {"cuLibraryLoadData"});
  EXPECT_EQ(octile_plan_wait(plan.get()), OCTILE_OK);
  const octile_gemm_args args = g.args(1);
  EXPECT_EQ(octile_gemm_run(plan.get(), &args, nullptr), OCTILE_OK)
      << "the generic kernel serves: " << octile_last_error();
}

}  // namespace
}  // namespace octile::test
