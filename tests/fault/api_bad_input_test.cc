// Errors of callers, each with its sentence. Nothing is compiled or launched here: a refused call
// leaves its outputs and the device untouched.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "tests/support/api_handles.h"
#include "tests/support/fake_driver_control.h"
#include "tests/support/gemm_plan_test.h"

namespace octile::test {
namespace {

class BadInput : public ::testing::Test {
 protected:
  octile_gemm_desc gemm_desc() const {
    octile_gemm_desc desc = e4m3_desc(256, 384, OCTILE_SCALE_1X128, OCTILE_SCALE_128X128);
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
  // Both descriptions are refused before a device is needed, so "host" suffices.
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

  // Expects a refusal of arguments for 64 rows, or of a description, that are valid except for one
  // field.
  template <typename Args, typename T>
  void refuses_run_with(T Args::* field, std::type_identity_t<T> value,
                        const std::vector<std::string>& parts) {
    Args args;
    make_valid(args);
    args.*field = value;
    refuses_run(args, parts);
  }
  template <typename Desc, typename T>
  void refuses_with(T Desc::* field, std::type_identity_t<T> value, octile_status status,
                    const std::vector<std::string>& parts) {
    Desc desc;
    make_valid(desc);
    desc.*field = value;
    refuses(desc, status, parts);
  }

 private:
  void make_valid(octile_gemm_args& args) { args = g.args(64); }
  void make_valid(octile_quantize_args& args) { args = (valid = q.args(64)).call(); }
  QuantizeArguments valid;
  void make_valid(octile_gemm_desc& desc) const { desc = gemm_desc(); }
  void make_valid(octile_quantize_desc& desc) const { desc = quantize_desc(); }
};

// ---- structs and handles

TEST_F(BadInput, StructSizeZero) {
  refuses_with(&octile_gemm_desc::struct_size, 0, OCTILE_INVALID_ARGUMENT,
               {"desc->struct_size is 0", "allowed"});
}

TEST_F(BadInput, StructSizeUninitialised) {
  refuses_with(&octile_quantize_desc::struct_size, 0xdeadbeefdeadbeef, OCTILE_INVALID_ARGUMENT,
               {"desc->struct_size is 16045690984833335023", "4096"});
}

// No struct ends inside a field, so that no part of a pointer is read that the caller did not
// write.
TEST_F(BadInput, StructThatEndsInsideAPointer) {
  octile_quantize_args args = q.args(64).call();
  for (std::size_t bytes = sizeof args + 1; bytes < sizeof args + sizeof(void*); ++bytes) {
    args.struct_size = bytes;
    refuses_run(args, {"args->struct_size is " + std::to_string(bytes), "a multiple of 8 from"});
  }
  refuses_with(&octile_gemm_desc::struct_size, sizeof(octile_gemm_desc) - 4,
               OCTILE_INVALID_ARGUMENT, {"a multiple of 8 from"});
}

TEST_F(BadInput, StructShorterThanItsFirstVersion) {
  octile_quantize_args args = q.args(64).call();
  args.struct_size = sizeof args - sizeof(void*);
  refuses_run(args, {"args->struct_size is " + std::to_string(args.struct_size),
                     "a multiple of 8 from " + std::to_string(sizeof args)});
}

// Reading it would be undefined, although most hosts would do it.
TEST_F(BadInput, StructMisaligned) {
  const octile_gemm_desc desc = gemm_desc();
  std::vector<unsigned char> memory(sizeof desc + 8);
  std::memcpy(&memory[1], &desc, sizeof desc);
  octile_plan* plan = nullptr;
  expect_refused(
      octile_gemm_plan_create(library.get(), "host",
                              reinterpret_cast<const octile_gemm_desc*>(&memory[1]), &plan),
      OCTILE_INVALID_ARGUMENT, {"desc is at address 0x", "allowed: a multiple of 8"});
  EXPECT_EQ(plan, nullptr);
}

// The sentence would quote it, in full.
TEST_F(BadInput, TextsBeyondReason) {
  const std::string text(std::size_t{200} << 20, 'x');
  octile_plan* plan = nullptr;
  expect_refused(octile_plan_create(library.get(), "host", text.c_str(), &plan),
                 OCTILE_INVALID_ARGUMENT, {"problem has more than 65536 bytes"});
  expect_refused(octile_plan_create(library.get(), text.c_str(), kGemmText.c_str(), &plan),
                 OCTILE_INVALID_ARGUMENT, {"device has more than 65536 bytes"});
  const std::string longest(65536, 'x');
  expect_refused(octile_plan_create(library.get(), longest.c_str(), kGemmText.c_str(), &plan),
                 OCTILE_INVALID_ARGUMENT, {"device is \"xxx"});
  EXPECT_EQ(std::strlen(octile_last_error()), 8191U);
  EXPECT_EQ(plan, nullptr);
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
  expect_refused(octile_plan_prepare(gemm.get(), 0, 1, 12), OCTILE_INVALID_ARGUMENT,
                 {"flags is 0xc", "OCTILE_PREPARE_ASYNC"});
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
  const auto invalid = OCTILE_INVALID_ARGUMENT;
  refuses_with(&octile_gemm_desc::n, -8, invalid, {"n is -8"});
  refuses_with(&octile_gemm_desc::n, 12, invalid, {"n is 12", "multiples of 8"});
  refuses_with(&octile_gemm_desc::k, std::int64_t{1} << 40, invalid, {"k is 1099511627776"});
  refuses_with(&octile_quantize_desc::cols, -2, invalid, {"cols is -2"});
}

TEST_F(BadInput, RoundingUnknownOrOfNothing) {
  octile_quantize_desc desc = quantize_desc();
  const int unknown = 2;  // beyond the values that a cast to the enum may make
  std::memcpy(&desc.e8m0_rounding, &unknown, sizeof unknown);
  refuses(desc, OCTILE_INVALID_ARGUMENT, {"desc->e8m0_rounding is 2"});
  refuses_with(&octile_quantize_desc::e8m0_rounding, OCTILE_E8M0_OCP_FLOOR, OCTILE_INVALID_ARGUMENT,
               {"round is ocp_floor", "only e8m0 scales"});
}

TEST_F(BadInput, ScaleFormatsTheLayoutsLack) {
  refuses_with(&octile_quantize_desc::scale_format, OCTILE_SCALE_E8M0, OCTILE_UNSUPPORTED,
               {"e4m3:1x128:e8m0", "no such scale format"});
  octile_quantize_desc desc = quantize_desc();
  desc.granularity = OCTILE_SCALE_128X128;
  desc.scale_format = OCTILE_SCALE_UE8M0X4;
  refuses(desc, OCTILE_UNSUPPORTED, {"e4m3:128x128:ue8m0x4"});
}

TEST_F(BadInput, UnsupportedPair) {
  refuses_with(&octile_gemm_desc::b_granularity, OCTILE_SCALE_PER_ROW, OCTILE_UNSUPPORTED,
               {"e4m3:row"});
  octile_gemm_desc desc = gemm_desc();
  desc.a_dtype = OCTILE_BF16;
  desc.a_granularity = OCTILE_SCALE_NONE;
  refuses(desc, OCTILE_UNSUPPORTED, {"bf16"});
}

TEST_F(BadInput, EpsilonNotFinite) {
  refuses_with(&octile_quantize_desc::amax_epsilon, std::numeric_limits<float>::quiet_NaN(),
               OCTILE_INVALID_ARGUMENT, {"eps", "nan"});
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

TEST(Recipes, AreWrittenByIndexUpToTheFirstThatIsRefused) {
  octile_recipe recipe = {};
  recipe.struct_size = sizeof(recipe);
  std::vector<std::string> names;
  while (octile_recipe_at(static_cast<std::int32_t>(names.size()), &recipe) == OCTILE_OK) {
    names.emplace_back(recipe.name);
    EXPECT_NE(recipe.gradient.granularity, OCTILE_SCALE_NONE) << recipe.name;
  }
  ASSERT_EQ(names.size(), 11);
  EXPECT_EQ(names.front(), "blockwise");
  EXPECT_EQ(names.back(), "rowwise:f32");
  EXPECT_EQ(recipe.promote_forward, OCTILE_PROMOTE_NONE);  // of the last, untouched by the refusal
  EXPECT_EQ(recipe.weight.scale_format, OCTILE_SCALE_F32);
  for (const std::int32_t index : {-1, 11}) {
    expect_refused(octile_recipe_at(index, &recipe), OCTILE_INVALID_ARGUMENT,
                   {"index is " + std::to_string(index), "allowed are 0 to 10"});
  }
  expect_refused(octile_recipe_at(0, nullptr), OCTILE_INVALID_ARGUMENT, {"recipe is null"});
}

// ---- arguments of a run

TEST_F(BadInput, GemmPointersNull) {
  refuses_run_with(&octile_gemm_args::a, nullptr, {"a is null"});
  refuses_run_with(&octile_gemm_args::a_scale, nullptr, {"a_scale is null"});
  refuses_run_with(&octile_gemm_args::b, nullptr, {"b is null"});
  refuses_run_with(&octile_gemm_args::b_scale, nullptr, {"b_scale is null"});
  refuses_run_with(&octile_gemm_args::d, nullptr, {"d is null"});
}

TEST_F(BadInput, GemmPointersMisaligned) {
  const std::string to_16 = "a multiple of 16 bytes";
  refuses_run_with(&octile_gemm_args::a, g.a.at(8), {"a is 0x", to_16});
  refuses_run_with(&octile_gemm_args::b, g.b.at(1), {"b is 0x", to_16});
  refuses_run_with(&octile_gemm_args::d, g.d.at(2), {"d is 0x", to_16});
  refuses_run_with(&octile_gemm_args::a_scale, g.a_scale.at(4), {"a_scale is 0x", to_16});
  refuses_run_with(&octile_gemm_args::b_scale, g.b_scale.at(2),
                   {"b_scale is 0x", "a multiple of 4 bytes"});
}

TEST_F(BadInput, GemmLeadingDimensions) {
  refuses_run_with(&octile_gemm_args::lda, 368, {"lda is 368", "from 384 on"});
  refuses_run_with(&octile_gemm_args::lda, -384, {"lda is -384"});
  refuses_run_with(&octile_gemm_args::ldb, 392, {"ldb is 392", "multiple of 16"});
  refuses_run_with(&octile_gemm_args::ldd, 260, {"ldd is 260", "multiple of 8"});
  refuses_run_with(&octile_gemm_args::b_scale_ld, 2, {"b_scale_ld is 2", "from 3 on"});
  octile_gemm_args args = g.args(61);
  args.a_scale_ld = 61;
  refuses_run(args, {"a_scale_ld is 61", "multiple of 4 from 64 on"});
}

TEST_F(BadInput, GemmFlagsUnknown) {
  refuses_run_with(&octile_gemm_args::flags, 2, {"flags is 0x2", "OCTILE_RUN_B_READY (0x1)"});
}

TEST_F(BadInput, GemmCounts) {
  refuses_run_with(&octile_gemm_args::tokens, -1, {"tokens is -1", "0 to 2147483647"});
  refuses_run_with(&octile_gemm_args::tokens, std::int64_t{1} << 31,
                   {"tokens is 2147483648", "0 to 2147483647"});
}

TEST_F(BadInput, GemmBeyond63Bits) {
  // 2^31 - 1 rows that are 2^39 elements apart exceed 2^63 bytes.
  octile_gemm_args args = g.args(0x7fffffff);
  args.ldd = std::int64_t{1} << 38;
  refuses_run(args, {"tokens is 2147483647", "ldd is 274877906944", "2^63 - 1"});
  refuses_run_with(&octile_gemm_args::lda, std::int64_t{1} << 40, {"lda is 1099511627776", "2^40"});
}

TEST_F(BadInput, QuantizeArguments) {
  refuses_run_with(&octile_quantize_args::x, nullptr, {"x is null"});
  refuses_run_with(&octile_quantize_args::x, q.x.at(1), {"x is 0x", "a multiple of 2 bytes"});
  refuses_run_with(&octile_quantize_args::scale, q.scale.at(2),
                   {"scale is 0x", "a multiple of 4 bytes"});
  refuses_run_with(&octile_quantize_args::ldx, 383, {"ldx is 383", "384"});
  refuses_run_with(&octile_quantize_args::ldq, 1, {"ldq is 1", "384"});
  refuses_run_with(&octile_quantize_args::scale_ld, 60, {"scale_ld is 60", "64"});
  refuses_run_with(&octile_quantize_args::rows, -5, {"rows is -5"});
  refuses_run_with(&octile_quantize_args::q_transposed, q.q.at(),
                   {"q_transposed is given", "no transposed output"});
  QuantizeArguments args = q.args(0x7fffffff);
  args.ldx = std::int64_t{1} << 62;
  refuses_run(args.call(), {"rows is 2147483647", "ldx is 4611686018427387904", "2^63 - 1"});
}

TEST_F(BadInput, FusedSources) {
  const auto refuses_fused = [&](const octile_quantize_fused_desc& fused,
                                 const std::vector<std::string>& parts) {
    refuses_with(&octile_quantize_desc::fused, &fused, OCTILE_INVALID_ARGUMENT, parts);
  };
  octile_quantize_fused_desc fused = {};
  refuses_fused(fused, {"desc->fused->struct_size is 0"});
  fused.struct_size = sizeof(fused);
  fused.source = "swish";
  refuses_fused(fused, {"src: a source is 'swish'", "silu_mul", "x0 to x3"});
  fused.source = "mul(x0,x5)";
  refuses_fused(fused, {"src: expression input is x5", "x0 to x3"});
  fused.source = nullptr;
  fused.tap = 1;
  refuses_fused(fused, {"tap is 1", "0 without src"});
}

// Arguments that belong to a source: given to a plan of another source, or missing.
TEST_F(BadInput, ArgumentsOfFusedSources) {
  std::vector<float> values(64 * 384);
  const auto expect_run = [&](const PlanHandle& plan, const QuantizeArguments& args) {
    EXPECT_EQ(run_quantize(plan.get(), args), OCTILE_OK) << octile_last_error();
  };
  const auto expect_none = [&](const PlanHandle& plan, const QuantizeArguments& args,
                               const std::vector<std::string>& parts) {
    expect_refused(run_quantize(plan.get(), args), OCTILE_INVALID_ARGUMENT, parts);
  };

  const PlanHandle fused = make_plan(library, "host", kQuantizeText + " src=silu_mul tap=1");
  QuantizeArguments args = q.args(64);
  args.fused.x1 = q.x.at();
  args.fused.tap = values.data();
  expect_run(fused, args);
  args.fused.x1 = nullptr;
  expect_none(fused, args, {"fused.x1 is null"});
  args.fused.x1 = q.x.at(1);
  expect_none(fused, args, {"fused.x1 is 0x", "a multiple of 2 bytes"});
  args.fused.x1 = q.x.at();
  args.fused.ldx1 = 383;
  expect_none(fused, args, {"fused.ldx1 is 383", "384"});
  args.fused.ldx1 = 0;
  args.fused.x2 = q.x.at();
  expect_none(fused, args, {"fused.x2 is given", "a source of fewer inputs"});
  args.fused.x2 = nullptr;
  args.fused.tap = nullptr;
  expect_none(fused, args, {"fused.tap is null"});

  const PlanHandle normed = make_plan(library, "host", kQuantizeText + " src=rmsnorm");
  args = q.args(64);
  args.fused.x1 = q.x.at();
  expect_none(normed, args, {"fused.rstd is null"});
  args.fused.rstd = values.data();
  expect_run(normed, args);

  const PlanHandle layer = make_plan(library, "host",
                                     "quantize rows=? cols=384 x=bf16 q=e4m3:1x128 out=col "
                                     "src=layernorm_again");
  args = q.args(64);
  args.fused.rstd = values.data();
  expect_none(layer, args, {"fused.x1 is null"});
  args.fused.x1 = args.fused.x2 = q.x.at();
  expect_none(layer, args, {"fused.x3 is null"});
  args.fused.x3 = q.x.at(2);
  expect_none(layer, args, {"fused.x3 is 0x", "a multiple of 4 bytes"});

  const PlanHandle summed = make_plan(library, "host", kQuantizeText + " dbias=1");
  args = q.args(64);
  expect_none(summed, args, {"fused.bias_gradient is null"});
  args.fused.bias_gradient = values.data();
  expect_run(summed, args);
  args.fused.rstd = values.data();
  expect_none(summed, args, {"fused.rstd is given", "norms no rows"});

  const auto refuses = [&](const auto& spoil, const std::vector<std::string>& parts) {
    QuantizeArguments spoiled = q.args(64);
    spoil(spoiled);
    refuses_run(spoiled.call(), parts);
  };
  refuses([&](auto& a) { a.fused.bias_gradient = values.data(); },
          {"fused.bias_gradient is given", "sums no bias gradient"});
  refuses([&](auto& a) { a.fused.x1 = q.x.at(); }, {"fused.x1 is given", "allowed: null"});
  refuses([&](auto& a) { a.fused.tap = values.data(); }, {"fused.tap is given", "no tap"});
}

// A feature's struct is read as any other, and only if the caller gave it.
TEST_F(BadInput, StructsOfFeatures) {
  const QuantizeArguments kept = q.args(64);  // the call's structs of features are its members
  octile_quantize_args args = kept.call();
  octile_quantize_monitor monitor = {};
  args.monitor = &monitor;
  refuses_run(args, {"args->monitor->struct_size is 0"});
  monitor.struct_size = sizeof(monitor);
  std::uint64_t nonfinite = 0;
  monitor.nonfinite = &nonfinite;
  EXPECT_EQ(octile_quantize_run(quantize.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
  struct {
    octile_quantize_groups groups;
    unsigned char tail[8];
  } longer = {{}, {}};
  longer.groups.struct_size = sizeof(longer);
  args.groups = &longer.groups;
  EXPECT_EQ(octile_quantize_run(quantize.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
  longer.tail[0] = 1;
  refuses_run(args, {"args->groups->struct_size is", "is 0x01"});

  octile_quantize_args plain = kept.call();
  plain.groups = nullptr;
  const auto expect_missing = [&](const std::string& problem, const std::string& says) {
    const PlanHandle plan = make_plan(library, "host", kQuantizeText + problem);
    expect_refused(octile_quantize_run(plan.get(), &plain, nullptr), OCTILE_INVALID_ARGUMENT,
                   {says, "allowed: a pointer"});
  };
  expect_missing(" group=masked", "groups is null");
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
                 {"tokens is 65", "allowed: 64", "states m=64"});
  args = g.args(64);
  EXPECT_EQ(octile_gemm_run(fixed.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
}

// ---- missing libraries

TEST(MissingParts, NoDriver) {
  setenv("OCTILE_LIBCUDA", "/nonexistent/libcuda.so.1", 1);
  const LibraryHandle library("");
  octile_plan* plan = nullptr;
  expect_refused(octile_plan_create(library.get(), nullptr, kGemmText.c_str(), &plan),
                 OCTILE_NO_DRIVER, {"/nonexistent/libcuda.so.1"});
  EXPECT_EQ(plan, nullptr);
}

TEST(MissingParts, DeviceWithoutFp8) {
  const FakeDriver fake("a100");
  setenv("OCTILE_LIBCUDA", OCTILE_FAKE_DRIVER_PATH, 1);
  const LibraryHandle library("");
  octile_plan* plan = nullptr;
  expect_refused(octile_plan_create(library.get(), "cuda:0", kGemmText.c_str(), &plan),
                 OCTILE_UNSUPPORTED,
                 {"device cuda:0: ", "A100-SXM4-80GB (compute capability 8.0): the GPU has no FP8",
                  "supported on: h200, h100, h20"});
  EXPECT_EQ(plan, nullptr);
}

// Cards that lack a kernel which others have, live and by name: the support matrix's sentence.
TEST(MissingParts, DeviceWithoutKernels) {
  const std::string fp8_d =
      "gemm m=? n=512 k=512 a=e4m3:1x128 b=e4m3:128x128 d=e4m3:1x128 acc=0 promote=128";
  const FakeDriver fake("l40s");
  setenv("OCTILE_LIBCUDA", OCTILE_FAKE_DRIVER_PATH, 1);
  const LibraryHandle library("");
  octile_plan* plan = nullptr;
  for (const char* device : {"cuda:0", "l40s", "L40S"}) {
    expect_refused(octile_plan_create(library.get(), device, fp8_d.c_str(), &plan),
                   OCTILE_UNSUPPORTED,
                   {"NVIDIA L40S (compute capability 8.9): not built yet: FP8 D without TMA",
                    "supported on: h200, h100, h20"});
    EXPECT_EQ(plan, nullptr);
  }
  expect_refused(octile_plan_create(library.get(), "sm_75", kQuantizeText.c_str(), &plan),
                 OCTILE_INVALID_ARGUMENT,
                 {"\"sm_75\", of compute capability 7.5: FP8 needs 8.9 or newer"});
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
  EXPECT_STREQ(octile_status_name(OCTILE_FILE_ERROR), "OCTILE_FILE_ERROR");
  octile_status unknown = OCTILE_OK;
  const int value = -4;
  std::memcpy(&unknown, &value, sizeof(value));
  EXPECT_STREQ(octile_status_name(unknown), "unknown octile_status");
}

// A library that is created with a value of the environment that is not allowed, and its warnings.
std::vector<std::string> warnings_with(const char* variable, const char* value) {
  setenv(variable, value, 1);  // NOLINT(concurrency-mt-unsafe)
  std::vector<std::string> warnings;
  octile_library_options options{};
  options.struct_size = sizeof options;
  options.log_level = OCTILE_LOG_WARNING;
  options.log_user = &warnings;
  options.log = [](octile_log_level, const char* message, void* user) {
    static_cast<std::vector<std::string>*>(user)->emplace_back(message);
  };
  octile_library* made = nullptr;
  EXPECT_EQ(octile_library_create(&options, &made), OCTILE_OK);
  EXPECT_EQ(octile_library_destroy(made), OCTILE_OK);
  unsetenv(variable);  // NOLINT(concurrency-mt-unsafe)
  return warnings;
}

TEST(BadEnvironment, IsAWarningThatNamesIt) {
  for (const char* text : {"5Q", "-1", "1e9", " 1", "99999999999999999999"}) {
    const auto warnings = warnings_with("OCTILE_CACHE_MAX_BYTES", text);
    ASSERT_EQ(warnings.size(), 1);
    EXPECT_EQ(warnings[0].rfind("OCTILE_CACHE_MAX_BYTES is '" + std::string(text) + "'", 0), 0U);
  }
  const std::string words =
      " is 'maybe', which is taken as unset; allowed: 1, true, yes or on; 0, false, no or off";
  for (const auto& [variable, rule] :
       {std::pair("OCTILE_OFFLINE", words),
        std::pair("OCTILE_TUNING", words + "; prepare, or prepare:SECONDS, more than 0")}) {
    const auto warnings = warnings_with(variable, "maybe");
    ASSERT_EQ(warnings.size(), 1);
    EXPECT_EQ(warnings[0], variable + rule);
    EXPECT_TRUE(warnings_with(variable, "On").empty());
    EXPECT_TRUE(warnings_with(variable, "no").empty());
  }
  const auto unknown = warnings_with("OCTILE_CACHEDIR", "/tmp");
  ASSERT_EQ(unknown.size(), 1);
  EXPECT_EQ(unknown[0],
            "OCTILE_CACHEDIR is set, and there is no such variable; did you mean "
            "OCTILE_CACHE_DIR?");
}

}  // namespace
}  // namespace octile::test
