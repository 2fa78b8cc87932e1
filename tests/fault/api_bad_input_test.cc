// What callers get wrong, each with the sentence that says so. Nothing is compiled or launched
// here: a call refused leaves its outputs and the device untouched.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/api_handles.h"
#include "tests/support/fake_driver_control.h"

namespace octile::test {
namespace {

class BadInput : public ::testing::Test {
 protected:
  octile_gemm_desc gemm_desc() const {
    octile_gemm_desc desc = {};
    desc.struct_size = sizeof(desc);
    desc.n = 256;
    desc.k = 384;
    desc.a_dtype = desc.b_dtype = OCTILE_E4M3;
    desc.a_granularity = OCTILE_SCALE_1X128;
    desc.b_granularity = OCTILE_SCALE_128X128;
    desc.d_dtype = OCTILE_BF16;
    return desc;
  }
  octile_quantize_desc quantize_desc() const {
    octile_quantize_desc desc = {};
    desc.struct_size = sizeof(desc);
    desc.cols = 384;
    desc.x_dtype = OCTILE_BF16;
    desc.q_dtype = OCTILE_E4M3;
    desc.granularity = OCTILE_SCALE_1X128;
    return desc;
  }
  // Both descriptions are refused before a device is looked for, so "host" will do.
  void refuses(const octile_gemm_desc& desc, octile_status status,
               const std::vector<std::string>& parts) {
    octile_plan* plan = nullptr;
    expect_refused(octile_gemm_plan_create(library.get(), "host", &desc, &plan), status, parts);
    EXPECT_EQ(plan, nullptr);
  }
  void refuses(const octile_quantize_desc& desc, octile_status status,
               const std::vector<std::string>& parts) {
    octile_plan* plan = nullptr;
    expect_refused(octile_quantize_plan_create(library.get(), "host", &desc, &plan), status, parts);
    EXPECT_EQ(plan, nullptr);
  }

  LibraryHandle library{""};
  PlanHandle gemm = make_plan(library, "host", kGemmText);
  PlanHandle quantize = make_plan(library, "host", kQuantizeText);
  GemmOperands g;
  QuantizeOperands q;

  void refuses_run(const octile_gemm_args& args, const std::vector<std::string>& parts) {
    std::memset(g.d.at(), 0x5a, 128 * 256 * 2);
    expect_refused(octile_gemm_run(gemm.get(), &args, nullptr), OCTILE_INVALID_ARGUMENT, parts);
    for (int i = 0; i < 128 * 256 * 2; ++i)
      ASSERT_EQ(g.d.at<unsigned char>()[i], 0x5a) << "D was touched";
  }
  void refuses_run(const octile_quantize_args& args, const std::vector<std::string>& parts) {
    std::memset(q.q.at(), 0x5a, 128 * 384);
    expect_refused(octile_quantize_run(quantize.get(), &args, nullptr), OCTILE_INVALID_ARGUMENT,
                   parts);
    for (int i = 0; i < 128 * 384; ++i)
      ASSERT_EQ(q.q.at<unsigned char>()[i], 0x5a) << "q was touched";
  }
};

// ---- structs and handles

TEST_F(BadInput, StructSizeZero) {
  octile_gemm_desc desc = gemm_desc();
  desc.struct_size = 0;
  refuses(desc, OCTILE_INVALID_ARGUMENT, {"desc->struct_size is 0", "allowed"});
}

TEST_F(BadInput, StructSizeUninitialised) {
  octile_quantize_desc desc = quantize_desc();
  desc.struct_size = 0xdeadbeefdeadbeef;
  refuses(desc, OCTILE_INVALID_ARGUMENT, {"desc->struct_size is 16045690984833335023", "4096"});
}

TEST_F(BadInput, StructTailNotZero) {
  struct {
    octile_gemm_desc desc;
    unsigned char tail[16];
  } longer = {gemm_desc(), {}};
  longer.desc.struct_size = sizeof(longer);
  octile_plan* plan = nullptr;
  EXPECT_EQ(octile_gemm_plan_create(library.get(), "host", &longer.desc, &plan), OCTILE_OK)
      << "a zero tail is another version's default";
  PlanHandle accepted(plan);
  longer.tail[3] = 7;
  plan = nullptr;
  expect_refused(octile_gemm_plan_create(library.get(), "host", &longer.desc, &plan),
                 OCTILE_INVALID_ARGUMENT,
                 {"byte " + std::to_string(sizeof(longer.desc) + 3), "0x07"});
  EXPECT_EQ(plan, nullptr);
}

TEST_F(BadInput, NullArguments) {
  octile_plan* plan = nullptr;
  const octile_gemm_desc desc = gemm_desc();
  expect_refused(octile_gemm_plan_create(nullptr, "host", &desc, &plan), OCTILE_INVALID_ARGUMENT,
                 {"library is null"});
  expect_refused(octile_gemm_plan_create(library.get(), "host", nullptr, &plan),
                 OCTILE_INVALID_ARGUMENT, {"desc is null"});
  expect_refused(octile_gemm_plan_create(library.get(), "host", &desc, nullptr),
                 OCTILE_INVALID_ARGUMENT, {"plan is null"});
  expect_refused(octile_plan_create(library.get(), "host", nullptr, &plan), OCTILE_INVALID_ARGUMENT,
                 {"problem is null"});
  expect_refused(octile_gemm_run(nullptr, nullptr, nullptr), OCTILE_INVALID_ARGUMENT,
                 {"plan is null"});
  expect_refused(octile_gemm_run(gemm.get(), nullptr, nullptr), OCTILE_INVALID_ARGUMENT,
                 {"args is null"});
  expect_refused(octile_plan_prepare(nullptr, 0, 1, 0), OCTILE_INVALID_ARGUMENT, {"plan is null"});
  expect_refused(octile_plan_wait(nullptr), OCTILE_INVALID_ARGUMENT, {"plan is null"});
  expect_refused(octile_plan_describe(gemm.get(), nullptr, nullptr), OCTILE_INVALID_ARGUMENT,
                 {"size is null"});
  expect_refused(octile_plan_workspace_size(gemm.get(), 1, nullptr), OCTILE_INVALID_ARGUMENT,
                 {"bytes is null"});
  expect_refused(octile_library_create(nullptr, nullptr), OCTILE_INVALID_ARGUMENT,
                 {"library is null"});
  EXPECT_EQ(octile_plan_destroy(nullptr), OCTILE_OK);
  EXPECT_EQ(octile_library_destroy(nullptr), OCTILE_OK);
}

TEST_F(BadInput, LibraryOptions) {
  octile_library* made = nullptr;
  octile_library_options options = {};
  options.struct_size = sizeof(options);
  options.compile_threads = -1;
  expect_refused(octile_library_create(&options, &made), OCTILE_INVALID_ARGUMENT,
                 {"options->compile_threads is -1", "0 (one per core) to 1024"});
  options.compile_threads = 0;
  const int level = 9;
  std::memcpy(&options.log_level, &level, sizeof(level));
  expect_refused(octile_library_create(&options, &made), OCTILE_INVALID_ARGUMENT,
                 {"options->log_level is 9"});
  EXPECT_EQ(made, nullptr);
}

TEST_F(BadInput, LibraryWithPlans) {
  expect_refused(octile_library_destroy(library.get()), OCTILE_INVALID_ARGUMENT,
                 {"library has 2 plans", "destroy them first"});
  const octile_gemm_args args = g.args(1);
  EXPECT_EQ(octile_gemm_run(gemm.get(), &args, nullptr), OCTILE_OK) << "nothing was destroyed";
}

TEST_F(BadInput, PrepareFlagsAndRange) {
  expect_refused(octile_plan_prepare(gemm.get(), 0, 1, 6), OCTILE_INVALID_ARGUMENT,
                 {"flags is 0x6", "OCTILE_PREPARE_ASYNC"});
  expect_refused(octile_plan_prepare(gemm.get(), -1, 1, 0), OCTILE_INVALID_ARGUMENT, {"lo is -1"});
  expect_refused(octile_plan_prepare(gemm.get(), 5, 4, 0), OCTILE_INVALID_ARGUMENT,
                 {"lo is 5", "hi is 4", "lo <= hi"});
  expect_refused(octile_plan_prepare(gemm.get(), 0, std::int64_t{1} << 31, 0),
                 OCTILE_INVALID_ARGUMENT, {"hi is 2147483648", "2147483647"});
}

TEST_F(BadInput, BufferTooSmall) {
  char text[8] = "before";
  std::size_t size = sizeof(text);
  expect_refused(octile_plan_problem(gemm.get(), text, &size), OCTILE_INVALID_ARGUMENT,
                 {"*size is 8", "allowed: " + std::to_string(kGemmText.size() + 1)});
  EXPECT_STREQ(text, "before");
  EXPECT_EQ(size, sizeof(text));
}

// ---- descriptions

TEST_F(BadInput, EnumOutsideItsRange) {
  octile_gemm_desc desc = gemm_desc();
  const int value = 99;
  std::memcpy(&desc.a_dtype, &value, sizeof(value));
  refuses(desc, OCTILE_INVALID_ARGUMENT, {"desc->a_dtype is 99", "octile_dtype, 1 to 5"});
  octile_quantize_desc quantise = quantize_desc();
  std::memcpy(&quantise.granularity, &value, sizeof(value));
  refuses(quantise, OCTILE_INVALID_ARGUMENT, {"desc->granularity is 99"});
}

TEST_F(BadInput, SizesNegativeOrUneven) {
  octile_gemm_desc desc = gemm_desc();
  desc.n = -8;
  refuses(desc, OCTILE_INVALID_ARGUMENT, {"n is -8"});
  desc = gemm_desc();
  desc.n = 12;
  refuses(desc, OCTILE_INVALID_ARGUMENT, {"n is 12", "multiples of 8"});
  desc = gemm_desc();
  desc.k = 24;
  refuses(desc, OCTILE_INVALID_ARGUMENT, {"k is 24", "multiples of 16"});
  desc = gemm_desc();
  desc.k = std::int64_t{1} << 40;
  refuses(desc, OCTILE_INVALID_ARGUMENT, {"k is 1099511627776"});
  octile_quantize_desc quantise = quantize_desc();
  quantise.cols = -2;
  refuses(quantise, OCTILE_INVALID_ARGUMENT, {"cols is -2"});
  quantise = quantize_desc();
  const int unknown = 2;  // beyond what a cast to the enum may make
  std::memcpy(&quantise.e8m0_rounding, &unknown, sizeof unknown);
  refuses(quantise, OCTILE_INVALID_ARGUMENT, {"desc->e8m0_rounding is 2"});
  quantise.e8m0_rounding = OCTILE_E8M0_OCP_FLOOR;
  refuses(quantise, OCTILE_INVALID_ARGUMENT, {"round is ocp_floor", "only e8m0 scales"});
}

TEST_F(BadInput, ScaleFormatsTheLayoutsLack) {
  octile_quantize_desc desc = quantize_desc();
  desc.scale_format = OCTILE_SCALE_E8M0;
  refuses(desc, OCTILE_UNSUPPORTED, {"e4m3:1x128:e8m0", "no such scale format"});
  desc = quantize_desc();
  desc.granularity = OCTILE_SCALE_128X128;
  desc.scale_format = OCTILE_SCALE_PACKED_POW2;
  refuses(desc, OCTILE_UNSUPPORTED, {"e4m3:128x128:packed"});
}

TEST_F(BadInput, UnsupportedPair) {
  octile_gemm_desc desc = gemm_desc();
  desc.b_granularity = OCTILE_SCALE_PER_ROW;
  refuses(desc, OCTILE_UNSUPPORTED, {"e4m3:row"});
  desc = gemm_desc();
  desc.a_dtype = OCTILE_BF16;
  desc.a_granularity = OCTILE_SCALE_NONE;
  refuses(desc, OCTILE_UNSUPPORTED, {"bf16"});
}

TEST_F(BadInput, EpsilonNotFinite) {
  octile_quantize_desc desc = quantize_desc();
  desc.amax_epsilon = std::numeric_limits<float>::quiet_NaN();
  refuses(desc, OCTILE_INVALID_ARGUMENT, {"eps", "nan"});
}

TEST_F(BadInput, ProblemText) {
  octile_plan* plan = nullptr;
  expect_refused(octile_plan_create(library.get(), "host", "gemm m=? n=8 kk=16", &plan),
                 OCTILE_INVALID_ARGUMENT, {"kk"});
  EXPECT_EQ(plan, nullptr);
}

TEST_F(BadInput, UnknownDevice) {
  octile_plan* plan = nullptr;
  for (const char* device : {"h9000", "", "cuda:", "cuda:x", "cuda:-1", "CUDA"})
    expect_refused(octile_plan_create(library.get(), device, kGemmText.c_str(), &plan),
                   OCTILE_INVALID_ARGUMENT,
                   {std::string("device is \"") + device + "\"", "h200", "host"});
  EXPECT_EQ(plan, nullptr);
}

TEST_F(BadInput, LayoutQuery) {
  octile_quantized_layout layout = {};
  layout.struct_size = sizeof(layout);
  const octile_quantized_layout before = layout;
  expect_refused(octile_quantized_layout_query(OCTILE_E4M3, OCTILE_SCALE_1X128,
                                               OCTILE_SCALE_FORMAT_DEFAULT, -3, 8, 0, &layout),
                 OCTILE_INVALID_ARGUMENT, {"rows is -3"});
  expect_refused(octile_quantized_layout_query(OCTILE_BF16, OCTILE_SCALE_NONE,
                                               OCTILE_SCALE_FORMAT_DEFAULT, 8, 8, 0, &layout),
                 OCTILE_UNSUPPORTED, {"bf16"});
  expect_refused(octile_quantized_layout_query(OCTILE_E4M3, OCTILE_SCALE_1X128,
                                               OCTILE_SCALE_FORMAT_DEFAULT, 8, 8, 0, nullptr),
                 OCTILE_INVALID_ARGUMENT, {"layout is null"});
  EXPECT_EQ(std::memcmp(&layout, &before, sizeof(layout)), 0);
}

// ---- arguments of a run

TEST_F(BadInput, GemmPointersNull) {
  const auto without = [&](auto member, const char* name) {
    octile_gemm_args args = g.args(64);
    args.*member = nullptr;
    refuses_run(args, {std::string(name) + " is null"});
  };
  without(&octile_gemm_args::a, "a");
  without(&octile_gemm_args::a_scale, "a_scale");
  without(&octile_gemm_args::b, "b");
  without(&octile_gemm_args::b_scale, "b_scale");
  without(&octile_gemm_args::d, "d");
}

TEST_F(BadInput, GemmPointersMisaligned) {
  octile_gemm_args args = g.args(64);
  args.a = g.a.at(8);
  refuses_run(args, {"a is 0x", "a multiple of 16 bytes"});
  args = g.args(64);
  args.b = g.b.at(1);
  refuses_run(args, {"b is 0x", "a multiple of 16 bytes"});
  args = g.args(64);
  args.d = g.d.at(2);
  refuses_run(args, {"d is 0x", "a multiple of 16 bytes"});
  args = g.args(64);
  args.a_scale = g.a_scale.at(4);
  refuses_run(args, {"a_scale is 0x", "a multiple of 16 bytes"});
  args = g.args(64);
  args.b_scale = g.b_scale.at(2);
  refuses_run(args, {"b_scale is 0x", "a multiple of 4 bytes"});
}

TEST_F(BadInput, GemmLeadingDimensions) {
  octile_gemm_args args = g.args(64);
  args.lda = 368;
  refuses_run(args, {"lda is 368", "from 384 on"});
  args = g.args(64);
  args.ldb = 392;
  refuses_run(args, {"ldb is 392", "multiple of 16"});
  args = g.args(64);
  args.ldd = 260;
  refuses_run(args, {"ldd is 260", "multiple of 8"});
  args = g.args(61);
  args.flags = 2;
  refuses_run(args, {"flags is 0x2", "OCTILE_RUN_OVERLAP (0x1)"});
  args.flags = 0;
  args.a_scale_ld = 61;
  refuses_run(args, {"a_scale_ld is 61", "multiple of 4 from 64 on"});
  args = g.args(64);
  args.b_scale_ld = 2;
  refuses_run(args, {"b_scale_ld is 2", "from 3 on"});
  args = g.args(64);
  args.lda = -384;
  refuses_run(args, {"lda is -384"});
}

TEST_F(BadInput, GemmCounts) {
  octile_gemm_args args = g.args(-1);
  refuses_run(args, {"m is -1", "0 to 2147483647"});
  args = g.args(std::int64_t{1} << 31);
  refuses_run(args, {"m is 2147483648", "0 to 2147483647"});
}

TEST_F(BadInput, GemmBeyond63Bits) {
  // 2^31 - 1 rows, 2^39 elements apart: past 2^63 bytes.
  octile_gemm_args args = g.args(0x7fffffff);
  args.ldd = std::int64_t{1} << 38;
  refuses_run(args, {"m is 2147483647", "ldd is 274877906944", "2^63 - 1"});
  args = g.args(64);
  args.lda = std::int64_t{1} << 40;
  refuses_run(args, {"lda is 1099511627776", "2^40"});
}

TEST_F(BadInput, QuantizeArguments) {
  octile_quantize_args args = q.args(64);
  args.x = nullptr;
  refuses_run(args, {"x is null"});
  args = q.args(64);
  args.x = q.x.at(1);
  refuses_run(args, {"x is 0x", "a multiple of 2 bytes"});
  args = q.args(64);
  args.scale = q.scale.at(2);
  refuses_run(args, {"scale is 0x", "a multiple of 4 bytes"});
  args = q.args(64);
  args.ldx = 383;
  refuses_run(args, {"ldx is 383", "384"});
  args = q.args(64);
  args.ldq = 1;
  refuses_run(args, {"ldq is 1", "384"});
  args = q.args(64);
  args.scale_ld = 60;
  refuses_run(args, {"scale_ld is 60", "64"});
  args = q.args(-5);
  refuses_run(args, {"rows is -5"});
  args = q.args(64);
  args.q_transposed = q.q.at();
  refuses_run(args, {"q_transposed is given", "no transposed output"});
  args = q.args(0x7fffffff);
  args.ldx = std::int64_t{1} << 62;
  refuses_run(args, {"rows is 2147483647", "ldx is 4611686018427387904", "2^63 - 1"});
}

TEST_F(BadInput, FusedSources) {
  octile_quantize_desc desc = quantize_desc();
  desc.source = "swish";
  refuses(desc, OCTILE_INVALID_ARGUMENT, {"src: a source is 'swish'", "silu_mul", "x0 to x3"});
  desc.source = "mul(x0,x5)";
  refuses(desc, OCTILE_INVALID_ARGUMENT, {"src: expression input is x5", "x0 to x3"});
  desc.source = nullptr;
  desc.tap = 1;
  refuses(desc, OCTILE_INVALID_ARGUMENT, {"tap is 1", "0 without src"});

  const PlanHandle fused = make_plan(
      library, "host", "quantize rows=? cols=384 x=bf16 q=e4m3:1x128 out=row src=silu_mul tap=1");
  std::vector<float> tap(64 * 384);
  const auto refused = [&](const octile_quantize_args& args,
                           const std::vector<std::string>& parts) {
    expect_refused(octile_quantize_run(fused.get(), &args, nullptr), OCTILE_INVALID_ARGUMENT,
                   parts);
  };
  octile_quantize_args args = q.args(64);
  args.x1 = q.x.at();
  args.tap = tap.data();
  EXPECT_EQ(octile_quantize_run(fused.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
  args.x1 = nullptr;
  refused(args, {"x1 is null"});
  args.x1 = q.x.at(1);
  refused(args, {"x1 is 0x", "a multiple of 2 bytes"});
  args.x1 = q.x.at();
  args.ldx1 = 383;
  refused(args, {"ldx1 is 383", "384"});
  args.ldx1 = 0;
  args.x2 = q.x.at();
  refused(args, {"x2 is given", "a source of fewer inputs"});
  args.x2 = nullptr;
  args.tap = nullptr;
  refused(args, {"tap is null"});
  const PlanHandle normed = make_plan(
      library, "host", "quantize rows=? cols=384 x=bf16 q=e4m3:1x128 out=row src=rmsnorm");
  args = q.args(64);
  args.x1 = q.x.at();
  expect_refused(octile_quantize_run(normed.get(), &args, nullptr), OCTILE_INVALID_ARGUMENT,
                 {"rstd is null"});
  args.rstd = tap.data();
  EXPECT_EQ(octile_quantize_run(normed.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
  const PlanHandle summed =
      make_plan(library, "host", "quantize rows=? cols=384 x=bf16 q=e4m3:1x128 out=row dbias=1");
  args = q.args(64);
  expect_refused(octile_quantize_run(summed.get(), &args, nullptr), OCTILE_INVALID_ARGUMENT,
                 {"bias_gradient is null"});
  args.bias_gradient = tap.data();
  EXPECT_EQ(octile_quantize_run(summed.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
  args.rstd = tap.data();
  expect_refused(octile_quantize_run(summed.get(), &args, nullptr), OCTILE_INVALID_ARGUMENT,
                 {"rstd is given", "norms no rows"});
  args = q.args(64);
  args.bias_gradient = tap.data();
  refuses_run(args, {"bias_gradient is given", "sums no bias gradient"});
  args = q.args(64);
  args.x1 = q.x.at();
  refuses_run(args, {"x1 is given", "allowed: null"});
  args = q.args(64);
  args.tap = tap.data();
  refuses_run(args, {"tap is given", "no tap"});
}

TEST_F(BadInput, RunOfTheOtherOperation) {
  const octile_gemm_args args = g.args(1);
  expect_refused(octile_gemm_run(quantize.get(), &args, nullptr), OCTILE_INVALID_ARGUMENT,
                 {"plan is 'quantize", "octile_gemm_run"});
}

TEST_F(BadInput, CountOtherThanThePlanStates) {
  const PlanHandle fixed =
      make_plan(library, "host",
                "gemm m=64 n=256 k=384 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128");
  octile_gemm_args args = g.args(65);
  expect_refused(octile_gemm_run(fixed.get(), &args, nullptr), OCTILE_INVALID_ARGUMENT,
                 {"m is 65", "allowed: 64"});
  args = g.args(64);
  EXPECT_EQ(octile_gemm_run(fixed.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
}

// ---- what is missing on the machine

TEST(MissingParts, NoDriver) {
  setenv("OCTILE_LIBCUDA", "/nonexistent/libcuda.so.1", 1);
  const LibraryHandle library("");
  octile_plan* plan = nullptr;
  expect_refused(octile_plan_create(library.get(), nullptr, kGemmText.c_str(), &plan),
                 OCTILE_NO_DRIVER, {"/nonexistent/libcuda.so.1"});
  EXPECT_EQ(plan, nullptr);
}

TEST(MissingParts, DeviceWithoutFp8Wgmma) {
  const FakeDriver fake("a100");
  setenv("OCTILE_LIBCUDA", OCTILE_FAKE_DRIVER_PATH, 1);
  const LibraryHandle library("");
  octile_plan* plan = nullptr;
  expect_refused(octile_plan_create(library.get(), "cuda:0", kGemmText.c_str(), &plan),
                 OCTILE_UNSUPPORTED, {"cuda:0", "A100", "8.0", "9.0"});
  EXPECT_EQ(plan, nullptr);
}

TEST(MissingParts, NoSuchDevice) {
  const FakeDriver fake("h200");
  setenv("OCTILE_LIBCUDA", OCTILE_FAKE_DRIVER_PATH, 1);
  const LibraryHandle library("");
  octile_plan* plan = nullptr;
  expect_refused(octile_plan_create(library.get(), "cuda:7", kGemmText.c_str(), &plan),
                 OCTILE_INVALID_ARGUMENT, {"7"});
  EXPECT_EQ(plan, nullptr);
}

TEST(MissingParts, NoCompiler) {
  setenv("OCTILE_LIBNVRTC", "/nonexistent/libnvrtc.so", 1);
  const LibraryHandle library("");
  const PlanHandle plan = make_plan(library, "h200", kQuantizeText);
  expect_refused(octile_plan_prepare(plan.get(), 1, 1, 0), OCTILE_NO_COMPILER,
                 {"octile_quantize", "sm_90a", "not in the cache", "/nonexistent/libnvrtc.so"});
  unsetenv("OCTILE_LIBNVRTC");
}

TEST(MissingParts, Offline) {
  const TempFolder cache;
  const LibraryHandle library(cache.path(), true);
  const PlanHandle plan = make_plan(library, "h200", kQuantizeText);
  expect_refused(octile_plan_prepare(plan.get(), 1, 1, 0), OCTILE_OFFLINE,
                 {"octile_quantize", "sm_90a", cache.path(), "offline", kQuantizeText});
}

TEST(LastError, IsOfTheThreadsLastFailure) {
  const LibraryHandle library("");
  octile_plan* plan = nullptr;
  ASSERT_EQ(octile_plan_create(library.get(), "host", "nonsense", &plan), OCTILE_INVALID_ARGUMENT);
  const std::string sentence = octile_last_error();
  EXPECT_NE(sentence, "");
  std::string other = "unset";
  std::thread([&] { other = octile_last_error(); }).join();
  EXPECT_EQ(other, "") << "another thread has failed at nothing";
  PlanHandle made = make_plan(library, "host", kGemmText);
  EXPECT_EQ(octile_last_error(), sentence) << "success does not change it";
}

TEST(StatusName, KnowsEveryValueAndNoOther) {
  EXPECT_STREQ(octile_status_name(OCTILE_OK), "OCTILE_OK");
  EXPECT_STREQ(octile_status_name(OCTILE_INTERNAL), "OCTILE_INTERNAL");
  octile_status unknown = OCTILE_OK;
  const int value = -4;
  std::memcpy(&unknown, &value, sizeof(value));
  EXPECT_STREQ(octile_status_name(unknown), "unknown octile_status");
}

TEST(BadEnvironment, ABoundOfTheCacheThatIsNoNumber) {
  for (const char* text : {"5G", "-1", "1e9", " 1", "99999999999999999999"}) {
    setenv("OCTILE_CACHE_MAX_BYTES", text, 1);
    octile_library* made = nullptr;
    expect_refused(octile_library_create(nullptr, &made), OCTILE_INVALID_ARGUMENT,
                   {"OCTILE_CACHE_MAX_BYTES", std::string("'") + text + "'", "number of bytes"});
    EXPECT_EQ(made, nullptr);
  }
  unsetenv("OCTILE_CACHE_MAX_BYTES");
}

}  // namespace
}  // namespace octile::test
