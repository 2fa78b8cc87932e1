// Every C call on the host device, with memory or threads refused at every n-th request: the call
// succeeds or says OUT_OF_MEMORY, nothing is lost, and the next attempt gives the same bits.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/process/faults.h"
#include "tests/process/recorded_calls.h"
#include "tests/support/api_handles.h"
#include "tests/support/gemm_plan_test.h"

namespace octile::test {
namespace {

class HostCalls : public ::testing::Test {
 protected:
  void pass(Pass& p) {
    octile_library_options options = {};
    options.struct_size = sizeof(options);
    options.disable_cache = 1;
    options.compile_threads = 2;
    octile_library* library = nullptr;
    if (!p.call(octile_library_create(&options, &library))) return;
    octile_quantized_layout layout = {};
    layout.struct_size = sizeof(layout);
    p.call(octile_quantized_layout_query(OCTILE_E4M3, OCTILE_SCALE_1X128,
                                         OCTILE_SCALE_FORMAT_DEFAULT, 5, 384, 0, &layout));
    quantize(p, library);
    fused(p, library);
    delayed(p, library);
    gemm(p, library);
    p.call(octile_library_destroy(library));
  }

  void ask(Pass& p, octile_plan* plan) {
    std::size_t bytes = 0;
    char text[4096];
    p.call(octile_plan_prepare(plan, 1, 128, OCTILE_PREPARE_ASYNC));
    p.call(octile_plan_wait(plan));
    p.call(octile_plan_workspace_size(plan, 5, &bytes));
    bytes = sizeof(text);
    p.call(octile_plan_problem(plan, text, &bytes));
    bytes = sizeof(text);
    p.call(octile_plan_describe(plan, text, &bytes));
  }

  void quantize(Pass& p, octile_library* library) {
    octile_quantize_desc desc = {};
    desc.struct_size = sizeof(desc);
    desc.cols = 384;
    desc.x_dtype = OCTILE_BF16;
    desc.q_dtype = OCTILE_E4M3;
    desc.granularity = OCTILE_SCALE_1X128;
    octile_plan* plan = nullptr;
    if (!p.call(octile_quantize_plan_create(library, "host", &desc, &plan))) return;
    ask(p, plan);
    octile_quantized_layout layout = {};
    layout.struct_size = sizeof(layout);
    p.call(octile_plan_quantized_layout(plan, 5, 0, 0, &layout));
    const QuantizeArguments arguments = q_.args(128);
    const octile_quantize_args args = arguments.call();
    p.call(octile_quantize_run(plan, &args, nullptr));
    p.call(octile_plan_destroy(plan));
  }

  void fused(Pass& p, octile_library* library) {
    octile_plan* plan = nullptr;
    if (!p.call(octile_plan_create(
            library, "host", "quantize rows=? cols=384 x=bf16 q=e4m3:tensor out=row src=silu_mul",
            &plan)))
      return;
    QuantizeArguments args = q_.args(64);
    args.fused.x1 = q_.x.at();
    const octile_quantize_args call = args.call();
    p.call(octile_quantize_run(plan, &call, nullptr));
    p.call(octile_plan_destroy(plan));
  }

  void delayed(Pass& p, octile_library* library) {
    octile_quantize_desc desc = {};
    desc.struct_size = sizeof(desc);
    desc.cols = 384;
    desc.x_dtype = OCTILE_BF16;
    desc.q_dtype = OCTILE_E4M3;
    desc.granularity = OCTILE_SCALE_PER_TENSOR;
    desc.policy = OCTILE_SCALING_DELAYED;
    octile_plan* plan = nullptr;
    if (!p.call(octile_quantize_plan_create(library, "host", &desc, &plan))) return;
    float history[4] = {1, 2, 3, 4};
    float encode = 1;
    octile_scale_update_args args = {};
    args.struct_size = sizeof(args);
    args.history = history;
    args.encode_scale = &encode;
    args.tensors = 1;
    args.length = 4;
    p.call(octile_scale_update_run(plan, &args, nullptr));
    p.call(octile_plan_destroy(plan));
  }

  void gemm(Pass& p, octile_library* library) {
    octile_gemm_desc desc = e4m3_desc(256, 384, OCTILE_SCALE_1X128, OCTILE_SCALE_128X128);
    desc.d_dtype = OCTILE_BF16;
    octile_plan* plan = nullptr;
    if (!p.call(octile_gemm_plan_create(library, "host", &desc, &plan))) return;
    ask(p, plan);
    const octile_gemm_args args = g_.args(16);
    p.call(octile_gemm_run(plan, &args, nullptr));
    p.call(octile_plan_destroy(plan));
  }

  // Repeats the pass with the n-th request refused, for every n that there is.
  void every_refusal(Refuse what, Extent extent) {
    Pass whole;
    pass(whole);  // what is allocated once in a process is allocated now
    octile_plan_destroy(
        reinterpret_cast<octile_plan*>(&whole));  // the same for a thread's sentence
    for (int i = 0; i < whole.calls; ++i) ASSERT_EQ(whole.status[i], OCTILE_OK) << i;
    const std::int64_t before = live_blocks();
    std::int64_t refused = 0;
    std::int64_t statuses = 0;
    for (std::int64_t n = 1;; ++n) {
      Pass p;
      Refusal refusal(what, n, extent);
      pass(p);
      refusal.end();
      for (int i = 0; i < p.calls; ++i) {
        if (p.status[i] == OCTILE_OK) continue;
        ++statuses;
        ASSERT_EQ(p.status[i], OCTILE_OUT_OF_MEMORY)
            << "call " << i << " of the pass, request " << n << ": " << p.sentence[i];
        ASSERT_STRNE(p.sentence[i], "") << "call " << i << ", request " << n;
      }
      if (refusal.refused() == 0) break;
      ++refused;
    }
    EXPECT_EQ(live_blocks(), before) << "blocks lost in " << refused << " passes";
    EXPECT_GT(refused, what == Refuse::kMemory ? 100 : 0);
    EXPECT_EQ(statuses == 0, what == Refuse::kThreads);
    RecordProperty("refusals", static_cast<int>(refused));
    Pass again;
    pass(again);
    for (int i = 0; i < again.calls; ++i) ASSERT_EQ(again.status[i], OCTILE_OK) << i;
    EXPECT_EQ(again.calls, whole.calls);
  }

  QuantizeOperands q_;
  GemmOperands g_;
};

TEST_F(HostCalls, SurviveEveryRefusedBlock) { every_refusal(Refuse::kMemory, Extent::kOnce); }
TEST_F(HostCalls, SurviveTheEndOfMemory) { every_refusal(Refuse::kMemory, Extent::kOn); }
TEST_F(HostCalls, SurviveEveryRefusedThread) { every_refusal(Refuse::kThreads, Extent::kOnce); }
TEST_F(HostCalls, SurviveTheEndOfThreads) { every_refusal(Refuse::kThreads, Extent::kOn); }

}  // namespace
}  // namespace octile::test
