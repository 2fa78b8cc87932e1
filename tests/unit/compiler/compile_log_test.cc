#include <gtest/gtest.h>

#include "runtime/compiler/compile_log.h"

namespace octile {
namespace {

// A log of NVRTC 13.0 over two kernels, one of which calls a function that was not inlined.
constexpr const char* kLog =
    "gemm/foo.cu(77): warning #177-D: variable \"unused\" was declared but never referenced\n"
    "  int unused;\n"
    "      ^\n\n"
    "Remark: The warnings can be suppressed with \"-diag-suppress <warning-number>\"\n\n"
    "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine "
    "register count at entry.\n"
    "ptxas info    : 0 bytes gmem\n"
    "ptxas info    : Compiling entry function 'first' for 'sm_90a'\n"
    "ptxas info    : Function properties for first\n"
    "ptxas         .     520 bytes stack frame, 936 bytes spill stores, 1052 bytes spill loads\n"
    "ptxas info    : Used 32 registers, used 1 barriers, 520 bytes cumulative stack size\n"
    "ptxas info    : Function properties for helper\n"
    "ptxas         .     16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
    "ptxas info    : Compile time = 26.547 ms\n"
    "ptxas info    : Compiling entry function 'second' for 'sm_90a'\n"
    "ptxas info    : Function properties for second\n"
    "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    "ptxas info    : Used 168 registers, used 2 barriers, 256 bytes smem";

TEST(CompileLog, ReadsResourcesPerKernel) {
  const CompileLog log = parse_compile_log(kLog);
  ASSERT_EQ(log.kernels.size(), 2U);
  EXPECT_EQ(log.kernels[0].name, "first");
  EXPECT_EQ(log.kernels[0].registers, 32);
  EXPECT_EQ(log.kernels[0].stack_bytes, 520);
  EXPECT_EQ(log.kernels[0].spill_store_bytes, 940) << "the helper's spills are the kernel's";
  EXPECT_EQ(log.kernels[0].spill_load_bytes, 1060);
  EXPECT_EQ(log.kernels[1].name, "second");
  EXPECT_EQ(log.kernels[1].registers, 168);
  EXPECT_EQ(log.kernels[1].spill_store_bytes, 0);
}

TEST(CompileLog, TellsWarningsFromRemarksAndInfo) {
  const CompileLog log = parse_compile_log(kLog);
  ASSERT_EQ(log.warnings.size(), 2U);
  EXPECT_NE(log.warnings[0].find("#177-D"), std::string::npos);
  ASSERT_EQ(log.lost_schedules.size(), 1U);
  EXPECT_EQ(log.lost_schedules[0], log.warnings[1]);
  EXPECT_TRUE(log.insufficient_registers.empty());
}

TEST(CompileLog, KnowsEveryLossOfSchedule) {
  for (const char* line :
       {"ptxas info : (C7508) x", "ptxas info : (C7510) x", "ptxas info : (C7514) x",
        "ptxas info : Potential Performance Loss: wgmma.mma_async instructions are serialized"})
    EXPECT_EQ(parse_compile_log(line).lost_schedules.size(), 1U) << line;
  EXPECT_TRUE(parse_compile_log("ptxas info : (C7500) x").lost_schedules.empty());
}

TEST(CompileLog, FindsInsufficientRegisters) {
  const CompileLog log = parse_compile_log(
      "ptxas fatal   : (C7602) Insufficient registers (64) to compile instruction at line 161\n"
      "ptxas fatal   : Ptx assembly aborted due to errors\n");
  EXPECT_NE(log.insufficient_registers.find("C7602"), std::string::npos);
}

TEST(CompileLog, SurvivesNonsense) {
  EXPECT_TRUE(parse_compile_log("").kernels.empty());
  EXPECT_TRUE(parse_compile_log("\n\n\n").kernels.empty());
  const CompileLog log = parse_compile_log(
      "Compiling entry function 'k' for 'sm_90a'\n bytes spill stores\n: Used registers\n"
      "99999999999999999999 bytes spill loads\nFunction properties for ");
  ASSERT_EQ(log.kernels.size(), 1U);
  EXPECT_EQ(log.kernels[0].registers, 0);
  EXPECT_EQ(log.kernels[0].spill_load_bytes, 0);
}

}  // namespace
}  // namespace octile
