// Shortlisted configurations of quantisers compile, and hardly any spills: a search discards
// kernels that spill, so their compile time is lost.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "generator/quantize/emit.h"
#include "runtime/compiler/nvrtc.h"
#include "runtime/engine/engine.h"
#include "runtime/tuner/exploration.h"

namespace octile {
namespace {

struct Compiled {
  int all = 0, spilled = 0;
};

void compile(const Nvrtc& nvrtc, const tuner::TuningTask& task, const QuantizeConfig& config,
             Compiled& count) {
  SCOPED_TRACE(tuner::to_text(task) + " / " + to_text(config));
  const auto& problem = std::get<QuantizeProblem>(task.problem);
  const auto kernel = emit(problem, config, *find_device("h200"), embedded_templates());
  ASSERT_TRUE(kernel) << kernel.error().message;
  const auto output = nvrtc.compile("quantize", kernel->source, kernel->options);
  ASSERT_TRUE(output) << output.error().message;
  const KernelResources* r = output->find(kernel->name);
  ASSERT_NE(r, nullptr);
  const bool spills = r->spill_store_bytes + r->spill_load_bytes + r->stack_bytes > 0;
  ++count.all;
  count.spilled += spills ? 1 : 0;
  if (spills) fmt::print("spills: {} / {}\n", tuner::to_text(task), to_text(config));
}

TEST(QuantizeCandidatesNvrtc, HardlyAnyOfAShortlistSpills) {
  const auto nvrtc = Nvrtc::open();
  if (!nvrtc) GTEST_SKIP() << "NVRTC cannot be opened";
  Compiled count;
  for (const char* text : {"quantize rows=? cols=7168 x=bf16 q=e4m3:1x128 out=row",
                           "quantize rows=? cols=7168 x=bf16 q=e4m3:1x128 out=both",
                           "quantize rows=? cols=7168 x=fp32 q=e4m3:128x128 out=row",
                           "quantize rows=? cols=7168 x=bf16 q=e4m3:row out=row"}) {
    const tuner::TuningTask task{*parse_problem(text), 4096};
    const auto list = explore(task, *find_device("h200"), {.liked = 4, .different = 1}).shortlist;
    ASSERT_EQ(list.size(), 5U) << text;
    for (const tuner::Ranked& ranked : list)
      compile(**nvrtc, task, std::get<QuantizeConfig>(ranked.config), count);
  }
  fmt::print("{} compiled, {} spill\n", count.all, count.spilled);
  EXPECT_LE(4 * count.spilled, count.all);
}

}  // namespace
}  // namespace octile
