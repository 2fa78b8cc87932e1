// How calls may be made: streams, plans, graphs, repetition.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

#include "runtime/prove/gemm/tolerance.h"
#include "tests/gpu/gemm_case.h"
#include "tests/support/gemm_call.h"

namespace octile::tests {
namespace {

constexpr const char* kProblem =
    "gemm m=? n=2112 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128";

class GemmCalls : public GpuTest {
 protected:
  octile_plan* make_plan(const char* problem, std::int64_t lo, std::int64_t hi) {
    octile_plan* plan = nullptr;
    expect_ok(octile_plan_create(gpu().library(), "cuda:0", problem, &plan), "octile_plan_create");
    expect_ok(octile_plan_prepare(plan, lo, hi, OCTILE_PREPARE_DEFAULT), "octile_plan_prepare");
    return plan;
  }
  // Returns a graph of one call of a prepared plan.
  Result<Graph> capture(octile_plan* plan, const GemmCase& c, CUstream stream) {
    return Graph::capture(gpu().driver(), stream, [&]() -> Status {
      const GemmArguments args = c.args();
      if (tests::run_gemm(plan, args, stream) != OCTILE_OK) {
        return fail(ErrorCode::kInternal, octile_last_error());
      }
      return {};
    });
  }
  // As a kernel, which programmatic launches can overlap.
  void copy(DeviceBuffer& to, const DeviceBuffer& from, const char* kernel = "copy_bytes") {
    const void* source = from.pointer();
    void* target = to.pointer();
    auto bytes = static_cast<std::int64_t>(from.bytes());
    gpu().launch(kernel, 64, 256, {&source, &target, &bytes});
  }
  // Adds the bytes that differ to a counter on the device.
  void count_differences(const DeviceBuffer& x, const DeviceBuffer& y, void* counter) {
    const void* px = x.pointer();
    const void* py = y.pointer();
    auto bytes = static_cast<std::int64_t>(x.bytes());
    gpu().launch("count_differences", 1024, 256, {&px, &py, &bytes, &counter});
  }
  std::uint64_t differences(const DeviceBuffer& x, const DeviceBuffer& y) {
    DeviceBuffer count = gpu().zeroed(8);
    count_differences(x, y, count.pointer());
    return gpu().read_counter(count);
  }
};

TEST_F(GemmCalls, TwoStreamsShareAPlan) {
  octile_plan* plan = make_plan(kProblem, 1, 512);
  auto first = Stream::create(gpu().driver());
  auto second = Stream::create(gpu().driver());
  ASSERT_TRUE(first && second);
  GemmCase x(gpu(), {}, {77, 2112, 7168}, 21);
  GemmCase y(gpu(), {}, {500, 2112, 7168}, 22);
  gpu().synchronize();
  for (int i = 0; i < 20; ++i) {
    const GemmArguments ax = x.args();
    const GemmArguments ay = y.args();
    expect_ok(tests::run_gemm(plan, ax, first->get()), "first stream");
    expect_ok(tests::run_gemm(plan, ay, second->get()), "second stream");
  }
  ASSERT_TRUE(first->synchronize());
  ASSERT_TRUE(second->synchronize());
  x.judge(reference::tolerance_c(128));
  y.judge(reference::tolerance_c(128));
  expect_ok(octile_plan_destroy(plan), "octile_plan_destroy");
}

TEST_F(GemmCalls, TwoPlansInterleave) {
  octile_plan* wide = make_plan(kProblem, 1, 512);
  octile_plan* narrow = make_plan(
      "gemm m=? n=576 k=1152 a=e4m3:1x128 b=e5m2:128x128 d=bf16 acc=0 promote=128", 1, 512);
  GemmProblem mixed;
  mixed.b.dtype = DType::kE5M2;
  GemmCase x(gpu(), {}, {129, 2112, 7168}, 23);
  GemmCase y(gpu(), mixed, {200, 576, 1152}, 24);
  for (int i = 0; i < 20; ++i) {
    const GemmArguments ax = x.args();
    const GemmArguments ay = y.args();
    expect_ok(tests::run_gemm(wide, ax, gpu().stream()), "wide");
    expect_ok(tests::run_gemm(narrow, ay, gpu().stream()), "narrow");
  }
  x.judge(reference::tolerance_c(128));
  y.judge(reference::tolerance_c(128));
  expect_ok(octile_plan_destroy(wide), "octile_plan_destroy");
  expect_ok(octile_plan_destroy(narrow), "octile_plan_destroy");
}

TEST_F(GemmCalls, CapturedAndReplayed) {
  octile_plan* plan = make_plan(kProblem, 1, 512);
  GemmCase c(gpu(), {}, {300, 2112, 7168}, 25);
  gpu().synchronize();
  const auto graph = capture(plan, c, gpu().stream());
  ASSERT_TRUE(graph) << graph.error().message;
  for (int i = 0; i < 3; ++i) {
    c.poison_output();
    ASSERT_TRUE(graph->launch(gpu().stream()));
    c.judge(reference::tolerance_c(128));
  }
  expect_ok(octile_plan_destroy(plan), "octile_plan_destroy");
}

// One plan, graphs of two token counts replayed on two streams at once.
TEST_F(GemmCalls, WeightGradientsReplayOnTwoStreams) {
  octile_plan* plan = make_plan(
      "gemm m=576 n=2112 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128", 1, 8192);
  GemmCase few(gpu(), weight_gradient(), {576, 2112, 77}, 26);
  GemmCase many(gpu(), weight_gradient(), {576, 2112, 8001}, 27);
  auto first = Stream::create(gpu().driver());
  auto second = Stream::create(gpu().driver());
  ASSERT_TRUE(first && second);
  const auto of_few = capture(plan, few, first->get());
  const auto of_many = capture(plan, many, second->get());
  ASSERT_TRUE(of_few && of_many);
  for (int i = 0; i < 5; ++i) {
    few.poison_output();
    many.poison_output();
    gpu().synchronize();
    ASSERT_TRUE(of_few->launch(first->get()));
    ASSERT_TRUE(of_many->launch(second->get()));
    ASSERT_TRUE(first->synchronize());
    ASSERT_TRUE(second->synchronize());
    few.judge(reference::tolerance_c(128));
    many.judge(reference::tolerance_c(128));
  }
  expect_ok(octile_plan_destroy(plan), "octile_plan_destroy");
}

TEST_F(GemmCalls, UnpreparedInsideCaptureIsRefusedAndTheCaptureSurvives) {
  octile_plan* plan = nullptr;
  expect_ok(octile_plan_create(gpu().library(), "cuda:0", kProblem, &plan), "octile_plan_create");
  GemmCase c(gpu(), {}, {64, 2112, 7168}, 26);
  gpu().synchronize();
  auto graph = Graph::capture(gpu().driver(), gpu().stream(), [&]() -> Status {
    const GemmArguments args = c.args();
    EXPECT_NE(tests::run_gemm(plan, args, gpu().stream()), OCTILE_OK);
    return {};
  });
  EXPECT_TRUE(graph) << graph.error().message;
  expect_ok(octile_plan_destroy(plan), "octile_plan_destroy");
}

// A kernel that overlaps the preceding one must not read what that one still writes. The stream
// copies the second GEMM's A just before it, with other content every time.
TEST_F(GemmCalls, OverlapReadsWhatTheKernelBeforeWrote) {
  for (const GemmShape shape :
       {GemmShape{64, 2112, 7168}, GemmShape{16, 4096, 2048}, GemmShape{300, 576, 1152}}) {
    GemmCase x(gpu(), {}, shape, 51);
    GemmCase y(gpu(), {}, shape, 52);
    octile_plan* plan = make_plan(to_text(Problem(x.problem())).c_str(), shape.m, shape.m);
    DeviceBuffer plain_x = gpu().allocate(x.d().bytes());
    DeviceBuffer plain_y = gpu().allocate(x.d().bytes());
    // Both GEMMs with y's weights, call by call.
    GemmArguments args = y.args();
    const auto run = [&](GemmCase& from, std::uint32_t flags) {
      copy(y.a(), from.a());
      copy(y.a_scale(), from.a_scale());
      args.flags = flags;
      expect_ok(tests::run_gemm(plan, args, gpu().stream()), "octile_gemm_run");
    };
    GemmCase y_inputs(gpu(), {}, shape, 52);
    run(x, OCTILE_RUN_DEFAULT);
    copy(plain_x, y.d());
    run(y_inputs, OCTILE_RUN_DEFAULT);
    copy(plain_y, y.d());
    for (int i = 0; i < 100; ++i) {
      y.poison_output();
      run(x, OCTILE_RUN_B_READY);
      ASSERT_EQ(differences(plain_x, y.d()), 0U) << to_text(shape) << " at repeat " << i;
      y.poison_output();
      run(y_inputs, OCTILE_RUN_B_READY);
      // Back to back: the second call may start while the first still runs.
      expect_ok(tests::run_gemm(plan, args, gpu().stream()), "octile_gemm_run");
      ASSERT_EQ(differences(plain_y, y.d()), 0U) << to_text(shape) << " at repeat " << i;
    }
    expect_ok(octile_plan_destroy(plan), "octile_plan_destroy");
  }
}

// Every launch is programmatic, and a GEMM without OCTILE_RUN_B_READY keeps the stream's order
// itself. The stream copies all of its operands just before it and its result just after it. A GEMM
// with the flag runs between two of them and lets the next start early.
TEST_F(GemmCalls, OrderIsKeptWithoutTheFlag) {
  for (const GemmShape shape : {GemmShape{64, 2112, 7168}, GemmShape{300, 576, 1152}}) {
    const std::array<std::unique_ptr<GemmCase>, 2> inputs{
        std::make_unique<GemmCase>(gpu(), GemmProblem{}, shape, 61),
        std::make_unique<GemmCase>(gpu(), GemmProblem{}, shape, 62)};
    GemmCase work(gpu(), {}, shape, 63);
    GemmCase other(gpu(), {}, shape, 64);
    octile_plan* plan = make_plan(to_text(Problem(work.problem())).c_str(), shape.m, shape.m);
    std::vector<DeviceBuffer> expected, results;
    for (const auto& from : inputs) {
      expected.push_back(gpu().allocate(from->d().bytes()));
      results.push_back(gpu().allocate(from->d().bytes()));
      from->poison_output();
      const GemmArguments args = from->args();
      expect_ok(tests::run_gemm(plan, args, gpu().stream()), "octile_gemm_run");
      copy(expected.back(), from->d());
    }
    gpu().synchronize();
    GemmArguments early = other.args();
    early.flags = OCTILE_RUN_B_READY;
    const GemmArguments args = work.args();
    work.poison_output();
    for (int i = 0; i < 100; ++i) {
      for (std::size_t j = 0; j < inputs.size(); ++j) {
        copy(work.a(), inputs[j]->a());
        copy(work.a_scale(), inputs[j]->a_scale());
        copy(work.b(), inputs[j]->b());
        copy(work.b_scale(), inputs[j]->b_scale());
        if (i % 2 == 1) {
          expect_ok(tests::run_gemm(plan, early, gpu().stream()), "octile_gemm_run");
        }
        expect_ok(tests::run_gemm(plan, args, gpu().stream()), "octile_gemm_run");
        copy(results[j], work.d());
      }
      for (std::size_t j = 0; j < inputs.size(); ++j) {
        ASSERT_EQ(differences(expected[j], results[j]), 0U) << to_text(shape) << " at repeat " << i;
      }
    }
    expect_ok(octile_plan_destroy(plan), "octile_plan_destroy");
  }
}

// A GEMM prefetches its first weights into L2 while the preceding kernel still runs, and then loads
// what that kernel has written since. With the flag it loads them at once. Some of those results
// must come from the earlier weights: they show that the GEMM starts early enough for this test.
TEST_F(GemmCalls, WeightsAskedForEarlyAreReadAsWritten) {
  const GemmShape shape{64, 7168, 2048};
  GemmCase work(gpu(), {}, shape, 81);
  octile_plan* plan = make_plan(to_text(Problem(work.problem())).c_str(), shape.m, shape.m);
  GemmArguments args = work.args();
  const std::array<std::unique_ptr<GemmCase>, 2> weights{
      std::make_unique<GemmCase>(gpu(), GemmProblem{}, shape, 82),
      std::make_unique<GemmCase>(gpu(), GemmProblem{}, shape, 83)};
  std::array<DeviceBuffer, 2> expected;
  for (const std::size_t i : {0U, 1U}) {
    copy(work.b(), weights[i]->b());
    gpu().synchronize();
    expect_ok(tests::run_gemm(plan, args, gpu().stream()), "octile_gemm_run");
    expected[i] = gpu().zeroed(work.d().bytes());
    copy(expected[i], work.d());
  }
  EXPECT_GT(differences(expected[0], expected[1]), 0U);
  const auto wrong = [&](std::uint32_t flags) {
    args.flags = flags;
    int count = 0;
    for (std::size_t i = 0; i < 100; ++i) {
      work.poison_output();
      copy(work.b(), weights[i % 2]->b(), "copy_bytes_late");
      expect_ok(tests::run_gemm(plan, args, gpu().stream()), "octile_gemm_run");
      count += differences(expected[i % 2], work.d()) > 0 ? 1 : 0;
    }
    return count;
  };
  EXPECT_EQ(wrong(OCTILE_RUN_DEFAULT), 0);
  EXPECT_GT(wrong(OCTILE_RUN_B_READY), 0);
  expect_ok(octile_plan_destroy(plan), "octile_plan_destroy");
}

// A quantiser and the GEMM of its output run in turn on two tensors, through the same codes and
// scales, with nothing between the launches. The GEMM lets the next quantiser start early, which
// must not write what the GEMM still reads.
TEST_F(GemmCalls, AChainWithQuantisersKeepsItsOrder) {
  const GemmShape shape{64, 2112, 7168};
  GemmCase work(gpu(), {}, shape, 71);
  QuantizeProblem recipe;
  recipe.x = {DType::kBF16};
  recipe.q = work.problem().a;
  recipe.cols = shape.k;
  octile_plan* product = make_plan(to_text(Problem(work.problem())).c_str(), shape.m, shape.m);
  octile_plan* quantiser = make_plan(to_text(Problem(recipe)).c_str(), shape.m, shape.m);
  GemmArguments multiply = work.args();
  octile_quantize_args quantise = {};
  quantise.struct_size = sizeof(quantise);
  quantise.rows = shape.m;
  quantise.q = const_cast<void*>(multiply.a);
  quantise.scale = const_cast<void*>(multiply.a_scale);
  const std::array<std::unique_ptr<GemmCase>, 2> sources{
      std::make_unique<GemmCase>(gpu(), GemmProblem{}, GemmShape{shape.m, shape.k, 512}, 72),
      std::make_unique<GemmCase>(gpu(), GemmProblem{}, GemmShape{shape.m, shape.k, 512}, 73)};
  std::array<DeviceBuffer, 2> expected, results;
  for (DeviceBuffer& d : expected) d = gpu().zeroed(work.d().bytes());
  for (DeviceBuffer& d : results) d = gpu().zeroed(work.d().bytes());
  const auto turn = [&](std::size_t i, DeviceBuffer& d) {
    quantise.x = sources[i]->args().d;
    multiply.d = d.pointer();
    expect_ok(octile_quantize_run(quantiser, &quantise, gpu().stream()), "octile_quantize_run");
    expect_ok(tests::run_gemm(product, multiply, gpu().stream()), "octile_gemm_run");
  };
  for (const std::size_t i : {0U, 1U}) {
    sources[i]->run_plan(gpu().stream());
    gpu().synchronize();
    turn(i, expected[i]);
    gpu().synchronize();
  }
  EXPECT_GT(differences(expected[0], expected[1]), 0U);
  for (int repeat = 0; repeat < 20; ++repeat) {
    for (int i = 0; i < 20; ++i) {
      turn(0, results[0]);
      turn(1, results[1]);
    }
    for (const std::size_t i : {0U, 1U}) {
      ASSERT_EQ(differences(expected[i], results[i]), 0U) << "repeat " << repeat;
    }
  }
  expect_ok(octile_plan_destroy(quantiser), "octile_plan_destroy");
  expect_ok(octile_plan_destroy(product), "octile_plan_destroy");
}

// Batch-invariant: a row's bits are those it has alone, for every token count.
TEST_F(GemmCalls, BatchInvariantRowsKeepTheirBits) {
  GemmProblem problem;
  problem.invariant = true;
  constexpr std::int64_t kMost = 4096;
  GemmCase c(gpu(), problem, {kMost, 2112, 7168}, 53);
  octile_plan* plan = make_plan(to_text(Problem(c.problem())).c_str(), 1, kMost);
  GemmArguments args = c.args();
  expect_ok(tests::run_gemm(plan, args, gpu().stream()), "octile_gemm_run");
  DeviceBuffer all = gpu().allocate(c.d().bytes());
  ASSERT_EQ(
      (*gpu().driver())->cuMemcpyDtoDAsync(all.get(), c.d().get(), c.d().bytes(), gpu().stream()),
      CUDA_SUCCESS);
  for (const std::int64_t m : {1, 2, 7, 16, 33, 64, 100, 128, 200, 511, 1000, 2048, 3000, 4095}) {
    args.tokens = m;
    c.poison_output();
    expect_ok(tests::run_gemm(plan, args, gpu().stream()), "octile_gemm_run");
    // The rows that were written are those of the whole; the rest is still poison.
    const void* x = static_cast<const char*>(all.pointer()) + c.d_offset();
    const void* y = static_cast<const char*>(c.d().pointer()) + c.d_offset();
    std::int64_t bytes = m * c.ldd() * 2;
    DeviceBuffer count = gpu().zeroed(8);
    void* counter = count.pointer();
    gpu().launch("count_differences", 1024, 256, {&x, &y, &bytes, &counter});
    ASSERT_EQ(gpu().read_counter(count), 0U) << m << " tokens";
  }
  expect_ok(octile_plan_destroy(plan), "octile_plan_destroy");
}

// See bulk_ring in checker.cu: under racecheck the first is clean and the second is reported.
class BulkRing : public GpuTest, public ::testing::WithParamInterface<int> {};

TEST_P(BulkRing, HandsEveryStageOver) {
  int turns = 64;
  int one_arrival = GetParam();
  DeviceBuffer source = gpu().allocate(static_cast<std::size_t>(turns) * 128);
  std::vector<float> ones(static_cast<std::size_t>(turns) * 32, 1.0F);
  ASSERT_TRUE(source.upload(ones.data(), ones.size() * 4, gpu().stream()));
  DeviceBuffer out = gpu().zeroed(128);
  const void* s = source.pointer();
  void* o = out.pointer();
  gpu().launch("bulk_ring", 1, 64, {&s, &turns, &one_arrival, &o});
  std::array<float, 32> sums{};
  ASSERT_TRUE(out.download(sums.data(), 128, gpu().stream()));
  gpu().synchronize();
  for (const float sum : sums) EXPECT_EQ(sum, 64.0F);
}
INSTANTIATE_TEST_SUITE_P(ArrivalsOfAWarp, BulkRing, ::testing::Values(0, 1));

// Same plan, same inputs, same bits.
TEST_F(GemmCalls, ThousandRepeatsAreBitEqual) {
  const std::array<GemmShape, 6> shapes{{{64, 2112, 7168},
                                         {128, 7168, 2048},
                                         {77, 576, 16384},
                                         {1, 4096, 7168},
                                         {1000, 2112, 1152},
                                         {4096, 7168, 144}}};
  std::uint64_t seed = 30;
  for (const GemmShape& shape : shapes) {
    GemmCase c(gpu(), {}, shape, ++seed);
    octile_plan* plan = make_plan(to_text(Problem(c.problem())).c_str(), shape.m, shape.m);
    const GemmArguments args = c.args();
    DeviceBuffer first = gpu().allocate(c.d().bytes());
    constexpr std::size_t kRepeats = 1000;
    std::vector<std::uint64_t> different(kRepeats);
    const DeviceBuffer counters = gpu().zeroed(kRepeats * sizeof different.front());
    for (std::size_t i = 0; i < kRepeats; ++i) {
      c.poison_output();
      expect_ok(tests::run_gemm(plan, args, gpu().stream()), "octile_gemm_run");
      if (i == 0) {
        ASSERT_EQ((*gpu().driver())
                      ->cuMemcpyDtoDAsync(first.get(), c.d().get(), c.d().bytes(), gpu().stream()),
                  CUDA_SUCCESS);
      } else {
        count_differences(first, c.d(), static_cast<std::uint64_t*>(counters.pointer()) + i);
      }
    }
    ASSERT_TRUE(counters.download(different.data(), counters.bytes(), gpu().stream()));
    gpu().synchronize();
    for (std::size_t i = 0; i < kRepeats; ++i) {
      ASSERT_EQ(different[i], 0U) << to_text(shape) << " differs at repeat " << i;
    }
    c.judge(reference::tolerance_c(128));
    expect_ok(octile_plan_destroy(plan), "octile_plan_destroy");
  }
}

}  // namespace
}  // namespace octile::tests
