#include "generator/families.h"
#include "generator/gemm/passes.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace octile {
namespace {

constexpr std::string_view kGemm =
    "gemm m=? n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128";
constexpr std::string_view kQuantize = "quantize rows=? cols=7168 x=bf16 q=e4m3:1x128 out=row";

std::string error_of(std::string_view text) {
  const auto p = parse_problem(text);
  if (p) return "parsed as: " + to_text(*p);
  EXPECT_EQ(p.error().code, ErrorCode::kInvalidArgument);
  return p.error().message;
}

// Returns `text` with the first occurrence of `from` replaced.
std::string with(std::string_view text, std::string_view from, std::string_view to) {
  std::string changed(text);
  const std::size_t at = changed.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return changed.replace(at, from.size(), to);
}

TEST(Problem, CanonicalTextOfTheContract) {
  GemmProblem g;
  g.n = 7168;
  g.k = 2048;
  EXPECT_EQ(to_text(g), kGemm);
  QuantizeProblem q;
  q.cols = 7168;
  EXPECT_EQ(to_text(q), kQuantize);
}

TEST(Problem, ParsesFieldsInAnyOrderAndSpacing) {
  const auto p = parse_problem(
      "  gemm promote=128 acc=0\td=bf16 b=e4m3:128x128 a=e4m3:1x128:f32 k=2048 n=07168  m=?\n");
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(to_text(*p), kGemm);  // the default scale format and a leading zero are not printed
}

TEST(Problem, OptionalFieldsAppearOnlyWhenSet) {
  const auto g = parse_problem(std::string(kGemm) + " invariant=1");
  ASSERT_TRUE(g);
  EXPECT_TRUE(std::get<GemmProblem>(*g).invariant);
  EXPECT_EQ(to_text(*g), std::string(kGemm) + " invariant=1");
  EXPECT_EQ(to_text(*parse_problem(std::string(kGemm) + " invariant=0")), kGemm);

  const auto q = parse_problem(std::string(kQuantize) + " eps=1e-12");
  ASSERT_TRUE(q);
  EXPECT_EQ(std::get<QuantizeProblem>(*q).amax_epsilon, 1e-12F);
  EXPECT_EQ(to_text(*q), std::string(kQuantize) + " eps=1e-12");
  EXPECT_EQ(to_text(*parse_problem(std::string(kQuantize) + " eps=0")), kQuantize);
}

TEST(Problem, DynamicTokenCountOfAWeightGradientIsK) {
  const std::string text =
      "gemm m=7168 n=2048 k=? a=e5m2:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128";
  const auto p = parse_problem(text);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(std::get<GemmProblem>(*p).k, kDynamic);
  EXPECT_EQ(to_text(*p), text);
}

// ---- round trips -----------------------------------------------------------------------------

template <typename T>
T pick(std::mt19937& random, const std::vector<T>& values) {
  return values[std::uniform_int_distribution<std::size_t>(0, values.size() - 1)(random)];
}

const std::vector<std::int64_t> kCounts{0,         1, 7, 128, 7168, (std::int64_t{1} << 31) - 8,
                                        2147483647};

TensorType random_fp8_type(std::mt19937& random) {
  using G = Granularity;
  using F = ScaleFormat;
  return {pick<DType>(random, {DType::kE4M3, DType::kE5M2}),
          pick<G>(random, {G::kPerTensor, G::kPerRow, G::k1x128, G::k128x128, G::k1x32, G::k32x32}),
          pick<F>(random, {F::kF32, F::kF32Pow2, F::kUe8m0x4, F::kE8M0, F::kBF16})};
}

TensorType random_operand(std::mt19937& random) {
  if (random() % 4 != 0) return random_fp8_type(random);
  return {pick<DType>(random, {DType::kBF16, DType::kFP16, DType::kFP32}), Granularity::kNone,
          ScaleFormat::kNone};
}

TEST(Problem, EveryWellFormedGemmSurvivesItsText) {
  std::mt19937 random(1);
  int kept = 0;
  for (int i = 0; i < 40000; ++i) {
    GemmProblem p;
    p.m = random() % 3 == 0 ? kDynamic : pick(random, kCounts);
    p.n = pick(random, kCounts);
    p.k = random() % 3 == 0 ? kDynamic : pick(random, kCounts);
    p.a = random_operand(random);
    p.b = random_operand(random);
    p.d = random_operand(random);
    p.accumulate = random() % 2 == 0;
    p.promote = pick<int>(random, {32, 64, 128, 256, 512, kPromoteNone});
    p.invariant = random() % 2 == 0;
    p.batch = random() % 3 == 0 ? pick(random, kCounts) : 0;
    p.sums_batch = random() % 4 == 0;
    const std::string text = to_text(p);
    const auto back = parse_problem(text);
    if (!check_well_formed(p)) {
      EXPECT_FALSE(back) << text;
      continue;
    }
    ++kept;
    ASSERT_TRUE(back) << text << ": " << back.error().message;
    ASSERT_EQ(std::get<GemmProblem>(*back), p) << text;
    ASSERT_EQ(to_text(*back), text);
  }
  EXPECT_GT(kept, 5000);
}

TEST(Problem, EveryWellFormedQuantizeSurvivesItsText) {
  std::mt19937 random(2);
  const auto flag = [&] { return random() % 2 == 0; };
  // Any float is drawn by its bits; its shortest decimal must be read as the same float.
  const auto any_float = [&] {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    return std::isfinite(value) ? std::fabs(value) : 0.0F;
  };
  int kept = 0;
  for (int i = 0; i < 40000; ++i) {
    QuantizeProblem p;
    p.operation = static_cast<QuantizeOperation>(random() % 5);
    p.rows = random() % 3 == 0 ? kDynamic : pick(random, kCounts);
    p.cols = pick(random, kCounts);
    p.x = random_operand(random);
    p.q = flag() ? p.x : random_operand(random);
    p.output = pick<QuantizeOutput>(
        random, {QuantizeOutput::kRowwise, QuantizeOutput::kTransposed, QuantizeOutput::kBoth});
    p.amax_epsilon = any_float();
    p.source = pick<std::string>(random, {"", "silu_mul", "mul(x0,x1)"});
    p.norm_epsilon = flag() ? any_float() : QuantizeProblem::kDefaultNormEpsilon;
    p.bias_gradient = flag();
    p.tap = flag();
    p.grouping = static_cast<Grouping>(random() % 3);
    if (random() % 4 == 0) p.pieces = static_cast<PiecesStep>(random() % 5);
    p.scale_layout = static_cast<ScaleLayout>(random() % 2);
    const auto back = parse_problem(to_text(p));
    if (!check_well_formed(p)) {
      EXPECT_FALSE(back) << to_text(p);
      continue;
    }
    ++kept;
    ASSERT_TRUE(back) << to_text(p) << ": " << back.error().message;
    ASSERT_EQ(std::get<QuantizeProblem>(*back), p) << to_text(p);
  }
  EXPECT_GT(kept, 2000);
}

// ---- refusals --------------------------------------------------------------------------------

TEST(Problem, QuantizeOperationsDifferInWhatIsFp8) {
  EXPECT_TRUE(parse_problem("quantize rows=? cols=8 x=e4m3:1x128 q=e5m2:1x128 out=col"));
  EXPECT_TRUE(parse_problem("dequantize rows=? cols=8 x=e4m3:1x128 q=bf16 out=row"));
  EXPECT_TRUE(parse_problem("transpose rows=? cols=8 x=e4m3:128x128 q=e4m3:128x128 out=col"));
  EXPECT_EQ(error_of("quantize rows=? cols=8 x=bf16 q=bf16 out=row"),
            "q is bf16; allowed are e4m3 and e5m2, with scales");
  EXPECT_EQ(error_of("dequantize rows=? cols=8 x=e4m3:1x128 q=e4m3:1x128 out=row"),
            "q is e4m3:1x128; allowed are bf16, fp16 and fp32");
  EXPECT_EQ(error_of("dequantize rows=? cols=8 x=bf16 q=bf16 out=row"),
            "x is bf16; allowed are e4m3 and e5m2, with scales");
  EXPECT_EQ(error_of("transpose rows=? cols=8 x=e4m3:128x128 q=e4m3:1x128 out=col"),
            "q is e4m3:1x128; allowed is e4m3:128x128, the type of x");
}

TEST(Problem, RefusesOptionsOfTheQuantiseFamily) {
  const std::string quantize(kQuantize);
  EXPECT_EQ(error_of(quantize + " scales=swizzled"),
            "scales is swizzled; allowed is linear with e4m3:1x128: only e8m0 scales have another "
            "layout");
  EXPECT_EQ(error_of(quantize + " group=some"),
            "quantize: field 'group=some': allowed are none, contiguous, masked and stacked");
  EXPECT_EQ(error_of(quantize + " pieces=1"),
            "quantize: field 'pieces=1': allowed are none, amax, scales, cast and transpose");
  EXPECT_EQ(error_of(quantize + " scales=some"),
            "quantize: field 'scales=some': allowed are linear, swizzled and rows");
  EXPECT_EQ(error_of("quantize rows=1 cols=1 x=bf16 q=e4m3:row out=row scales=rows"),
            "scales is rows; allowed is linear with e4m3:row: only 1x128 scales lie by rows");
  EXPECT_EQ(error_of("gather rows=1 cols=1 x=e4m3:1x128 q=e5m2:1x128 out=row"),
            "q is e5m2:1x128; allowed is e4m3:1x128, the type of x");
  QuantizeProblem p;
  p.cols = 8;
  p.source = "mul(x0, x1)";
  const std::string message = check_well_formed(p).error().message;
  EXPECT_TRUE(message.starts_with("src: expression: at character 8 (' x1)') is expected x0 to x3"))
      << message;
  p.source.clear();
  p.norm_epsilon = -1;
  EXPECT_EQ(check_well_formed(p).error().message,
            "norm_eps is -1; allowed is a finite number >= 0");
}

// Texts of earlier caches and records name the step of a range otherwise.
TEST(Problem, ShardsArePieces) {
  const std::string weights = "quantize rows=? cols=0 x=bf16 q=e4m3:128x128 out=row";
  EXPECT_EQ(error_of(weights + " shard=cast pieces=1"),
            "quantize: field 'shard=cast': allowed is pieces=cast in its place");
  EXPECT_EQ(error_of(std::string(kQuantize) + " shard=amax"),
            "quantize: field 'shard=amax': allowed is pieces=amax in its place");
  EXPECT_EQ(error_of(weights + " shard=some"),
            "quantize: field 'shard=some': allowed are pieces=amax, pieces=scales and pieces=cast "
            "in its place");
  EXPECT_TRUE(parse_problem(weights + " pieces=cast"));
}

TEST(Problem, PiecesHaveTheirStepAndNoOptions) {
  const std::string weights = "quantize rows=? cols=0 x=fp32 q=e4m3:128x128 out=row pieces=cast";
  const auto good = parse_problem(weights + " via=bf16 eps=0.5");
  ASSERT_TRUE(good) << good.error().message;
  EXPECT_EQ(std::get<QuantizeProblem>(*good).pieces, PiecesStep::kCast);
  EXPECT_EQ(to_text(*good),
            "quantize rows=? cols=0 x=fp32 q=e4m3:128x128 out=row eps=0.5 via=bf16 pieces=cast");
  EXPECT_EQ(error_of(with(weights, "rows=?", "rows=8")),
            "rows is 8; allowed is '?' with pieces=cast: each has its own");
  EXPECT_EQ(error_of(with(weights, "cols=0", "cols=8")),
            "cols is 8; allowed is 0 with pieces=cast: each has its own");
  EXPECT_EQ(error_of(weights + " dbias=1"),
            "pieces=cast is given dbias=1 pieces=cast; allowed beside it are eps, round and via");
  EXPECT_EQ(error_of(with(weights, "x=fp32", "x=e4m3:128x128")),
            "x is e4m3:128x128; allowed are bf16, fp16 and fp32 with pieces=cast");
  EXPECT_EQ(error_of(with(weights, "out=row", "out=both")),
            "out is both; allowed is row with pieces=cast");
  EXPECT_EQ(error_of(with(weights, "pieces=cast", "pieces=scales")),
            "out is row; allowed is both with pieces=scales");
  EXPECT_EQ(error_of(with(weights, "pieces=cast", "pieces=transpose")),
            "pieces is transpose; allowed are none, amax, scales and cast with quantize");
  EXPECT_EQ(error_of("transpose rows=? cols=0 x=e4m3:128x128 q=e4m3:128x128 out=col pieces=cast"),
            "pieces is cast; allowed are none and transpose with transpose");
  EXPECT_TRUE(
      parse_problem("transpose rows=? cols=0 x=e4m3:128x128 q=e4m3:128x128 out=col "
                    "pieces=transpose"));
  EXPECT_EQ(error_of("dequantize rows=? cols=0 x=e4m3:1x128 q=bf16 out=row pieces=cast"),
            "pieces is cast; allowed is none with dequantize");
}

TEST(Problem, AMaximumIsOfXAlone) {
  const std::string amax = "amax rows=? cols=7168 x=fp32 q=e4m3:tensor via=bf16";
  const auto good = parse_problem(amax);
  ASSERT_TRUE(good) << good.error().message;
  EXPECT_EQ(to_text(*good), amax);
  EXPECT_EQ(to_text(*parse_problem(amax + " out=row")), amax);
  EXPECT_EQ(short_text(*good), "?x7168 amax x=fp32 q=e4m3:tensor via=bf16");
  EXPECT_EQ(error_of(amax + " out=col"), "out is col; allowed is row with amax, which writes no q");
  EXPECT_EQ(error_of(amax + " eps=0.5"),
            "amax is given eps=0.5 via=bf16; allowed is via, because a maximum is of x alone");
  EXPECT_EQ(error_of(with(amax, "tensor", "1x128")),
            "q is e4m3:1x128; allowed has one scale with amax: e4m3:tensor");
  EXPECT_EQ(error_of("amax rows=? cols=8 x=e4m3:tensor q=e4m3:tensor"),
            "x is e4m3:tensor; allowed are bf16, fp16 and fp32 with amax");
}

TEST(Problem, ABatchHasNoGroups) {
  const std::string batch = std::string(kGemm) + " batch=128";
  const auto p = parse_problem(batch);
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(std::get<GemmProblem>(*p).batch, 128);
  EXPECT_EQ(to_text(*p), batch);
  EXPECT_EQ(to_text(*parse_problem(with(batch, "batch=128", "batch=0"))), kGemm);
  EXPECT_EQ(error_of(std::string(kGemm) + " batch=1025"), "batch is 1025; allowed are 0 to 1024");
  EXPECT_EQ(error_of(batch + " group=contiguous groups=4"),
            "batch is 128; allowed is 0 with group=contiguous");
  const auto sum = parse_problem(batch + " sum=1");
  ASSERT_TRUE(sum) << sum.error().message;
  EXPECT_TRUE(std::get<GemmProblem>(*sum).sums_batch);
  EXPECT_EQ(to_text(*sum), batch + " sum=1");
  EXPECT_EQ(error_of(std::string(kGemm) + " sum=1"), "sum is 1; allowed is 0 without a batch");
}

TEST(Problem, RefusesAWrongOperation) {
  EXPECT_EQ(error_of(""),
            "a problem begins with ''; allowed are gemm, quantize, dequantize, transpose, "
            "gather, amax");
  EXPECT_EQ(error_of("  "),
            "a problem begins with ''; allowed are gemm, quantize, dequantize, transpose, "
            "gather, amax");
  EXPECT_EQ(error_of("gem m=1"),
            "a problem begins with 'gem'; allowed are gemm, quantize, dequantize, transpose, "
            "gather, amax");
}

TEST(Problem, RefusesFieldsByName) {
  EXPECT_EQ(error_of(std::string(kGemm) + " q=1"),
            "gemm: there is no field 'q'; the fields are m, n, k, a, b, d, acc, promote, "
            "bias, sentry, invariant, group, groups, batch, sum");
  EXPECT_EQ(error_of(std::string(kQuantize) + " m=1"),
            "quantize: there is no field 'm'; the fields are rows, cols, x, q, out, eps, "
            "round, policy, src, norm_eps, weighted, dbias, tap, group, scales, skip, via, pieces");
  EXPECT_EQ(error_of(std::string(kGemm) + " n=8"), "gemm: field 'n' is given twice");
  EXPECT_EQ(error_of(with(kGemm, "acc=0", "acc")),
            "gemm: field 'acc' has no value; a field is written name=value");
  EXPECT_EQ(error_of(with(kGemm, "acc=0", "=0")),
            "gemm: there is no field ''; the fields are m, n, k, a, b, d, acc, promote, "
            "bias, sentry, invariant, group, groups, batch, sum");
}

TEST(Problem, NamesEachMissingField) {
  for (const std::string_view text : {kGemm, kQuantize}) {
    std::string_view rest = text.substr(text.find(' ') + 1);
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find(' '), rest.size());
      const std::string_view field = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      const std::string message = error_of(with(text, field, ""));
      const std::string name(field.substr(0, field.find('=')));
      EXPECT_NE(message.find(": field '" + name + "' is missing; the fields are "),
                std::string::npos)
          << message;
    }
  }
}

TEST(Problem, NamesAllMissingFieldsAtOnce) {
  const std::string message = error_of("gemm m=? d=bf16");
  EXPECT_NE(
      message.find(": fields 'n', 'k', 'a', 'b', 'acc', 'promote' are missing; the fields are "),
      std::string::npos)
      << message;
}

TEST(Problem, RefusesBadNumbers) {
  const std::string rule = "a decimal integer from 0 to 2147483647";
  EXPECT_EQ(error_of(with(kGemm, "n=7168", "n=12x")),
            "gemm: field 'n=12x': the value is not " + rule);
  for (const std::string bad : {"", "-8", "+8", "0x10", "1e3", "7.5", "7168,"}) {
    EXPECT_EQ(error_of(with(kGemm, "n=7168", "n=" + bad)),
              "gemm: field 'n=" + bad + "': the value is not " + rule);
  }
  EXPECT_EQ(error_of(with(kGemm, "k=2048", "k=2147483648")),
            "gemm: field 'k=2147483648': the value is not " + rule +
                ", or '?' or '_' for an open token count");
  EXPECT_EQ(error_of(with(kGemm, "m=?", "m=-1")), "gemm: field 'm=-1': the value is not " + rule +
                                                      ", or '?' or '_' for an open token count");
  EXPECT_EQ(error_of(with(kGemm, "n=7168", "n=?")),
            "gemm: field 'n=?': '?' stands for the token count only, which this is not");
  EXPECT_EQ(error_of(with(kGemm, "k=2048", "k=?")),
            "k is ?; allowed is a number where m is '?': a problem has one token count");
}

TEST(Problem, RefusesBadTypes) {
  EXPECT_EQ(error_of(with(kGemm, "a=e4m3:1x128", "a=e4m4:1x128")),
            "gemm: field 'a=e4m4:1x128': 'e4m4' is not an element type; allowed are e4m3, e5m2, "
            "bf16, fp16, fp32");
  EXPECT_EQ(error_of(with(kGemm, "a=e4m3:1x128", "a=e4m3:1x64")),
            "gemm: field 'a=e4m3:1x64': '1x64' is not a scale granularity; allowed are tensor, "
            "row, 1x128, 128x128, 1x32, 32x32");
  EXPECT_EQ(error_of(with(kGemm, "a=e4m3:1x128", "a=e4m3:none")),
            "gemm: field 'a=e4m3:none': 'none' is not a scale granularity; allowed are tensor, "
            "row, 1x128, 128x128, 1x32, 32x32");
  EXPECT_EQ(error_of(with(kGemm, "a=e4m3:1x128", "a=e4m3:1x128:f16")),
            "gemm: field 'a=e4m3:1x128:f16': 'f16' is not a scale format; allowed are f32, pow2, "
            "ue8m0x4, e8m0, bf16");
  EXPECT_EQ(error_of(with(kGemm, "a=e4m3:1x128", "a=e4m3:1x128:")),
            "gemm: field 'a=e4m3:1x128:': '' is not a scale format; allowed are f32, pow2, "
            "ue8m0x4, e8m0, bf16");
  EXPECT_EQ(error_of(with(kGemm, "a=e4m3:1x128", "a=e4m3:1x128:f32:f32")),
            "gemm: field 'a=e4m3:1x128:f32:f32': a type has at most three parts, "
            "dtype:granularity:format");
  EXPECT_EQ(error_of(with(kGemm, "d=bf16", "d=e4m3:1x64")),
            "gemm: field 'd=e4m3:1x64': '1x64' is not a scale granularity; allowed are tensor, "
            "row, 1x128, 128x128, 1x32, 32x32");
  EXPECT_EQ(error_of(with(kGemm, "d=bf16", "d=bf17")),
            "gemm: field 'd=bf17': 'bf17' is not an element type; allowed are e4m3, e5m2, bf16, "
            "fp16, fp32");
  EXPECT_EQ(error_of(with(kGemm, "a=e4m3:1x128", "a=e4m3")),
            "a is e4m3; allowed is a granularity after it: e4m3:G with G one of tensor, row, "
            "1x128, 128x128, 1x32, 32x32");
  EXPECT_EQ(error_of(with(kGemm, "b=e4m3:128x128", "b=bf16:128x128")),
            "b is bf16:128x128; allowed is bf16 alone: only e4m3 and e5m2 carry scales");
  EXPECT_EQ(error_of(with(kQuantize, "q=e4m3:1x128", "q=bf16")),
            "q is bf16; allowed are e4m3 and e5m2, with scales");
}

TEST(Problem, RefusesBadFlagsAndChoices) {
  EXPECT_EQ(error_of(with(kGemm, "acc=0", "acc=yes")),
            "gemm: field 'acc=yes': allowed are 0 and 1");
  EXPECT_EQ(error_of(std::string(kGemm) + " invariant=2"),
            "gemm: field 'invariant=2': allowed are 0 and 1");
  EXPECT_EQ(error_of(with(kQuantize, "out=row", "out=rows")),
            "quantize: field 'out=rows': allowed are row, col and both");
  for (const std::string bad : {"0", "16", "129", "None", ""}) {
    EXPECT_EQ(error_of(with(kGemm, "promote=128", "promote=" + bad)),
              "gemm: field 'promote=" + bad + "': allowed are 32, 64, 128, 256, 512 and none");
  }
  for (const std::string bad : {"", "-1", "-0", "nan", "inf", "1e99", "0x1p3", "1.0.0"}) {
    EXPECT_EQ(error_of(std::string(kQuantize) + " eps=" + bad),
              "quantize: field 'eps=" + bad +
                  "': the value is not a finite decimal number >= 0 that fp32 can hold");
  }
}

TEST(Problem, RoundingAndPolicyBelongToTheirScales) {
  const std::string mx = with(kQuantize, "e4m3:1x128", "e5m2:1x32") + " round=ocp_floor";
  const auto rounded = parse_problem(mx);
  ASSERT_TRUE(rounded) << rounded.error().message;
  EXPECT_EQ(std::get<QuantizeProblem>(*rounded).e8m0_rounding, E8M0Rounding::kOcpFloor);
  EXPECT_EQ(to_text(*rounded), mx);
  EXPECT_EQ(to_text(*parse_problem(with(mx, "ocp_floor", "up"))), with(mx, " round=ocp_floor", ""));
  EXPECT_EQ(error_of(with(mx, "ocp_floor", "down")),
            "quantize: field 'round=down': allowed are up and ocp_floor");
  EXPECT_EQ(error_of(std::string(kQuantize) + " round=ocp_floor"),
            "round is ocp_floor; allowed is up with e4m3:1x128: only e8m0 scales have a choice");

  const std::string delayed = with(kQuantize, "e4m3:1x128", "e4m3:tensor") + " policy=delayed";
  const auto given = parse_problem(delayed);
  ASSERT_TRUE(given) << given.error().message;
  EXPECT_EQ(std::get<QuantizeProblem>(*given).policy, ScalePolicy::kDelayed);
  EXPECT_EQ(to_text(*given), delayed);
  EXPECT_EQ(error_of(with(delayed, "=delayed", "=late")),
            "quantize: field 'policy=late': allowed are current and delayed");
  EXPECT_EQ(error_of(std::string(kQuantize) + " policy=delayed"),
            "policy is delayed; allowed is current with e4m3:1x128: only a tensor's scale is kept "
            "from step to step");
}

TEST(Problem, PromotionIntervalFollowsTheScales) {
  EXPECT_EQ(error_of(with(kGemm, "promote=128", "promote=256")),
            "promote is 256; allowed with block scales (a=e4m3:1x128, b=e4m3:128x128) are 32, 64, "
            "128 and none");
  const std::string per_row =
      with(with(kGemm, "e4m3:1x128", "e4m3:row"), "e4m3:128x128", "e4m3:row");
  EXPECT_EQ(error_of(with(per_row, "promote=128", "promote=64")),
            "promote is 64; allowed without block scales (a=e4m3:row, b=e4m3:row) are 128, 256, "
            "512 and none");
  for (const std::string ok : {"128", "256", "512", "none"}) {
    const std::string text = with(per_row, "promote=128", "promote=" + ok);
    const auto p = parse_problem(text);
    ASSERT_TRUE(p) << p.error().message;
    EXPECT_EQ(to_text(*p), text);
  }
  for (const std::string ok : {"32", "64"}) {
    EXPECT_TRUE(parse_problem(with(kGemm, "promote=128", "promote=" + ok)));
  }
}

TEST(Problem, WellFormednessOfProblemsBuiltByHand) {
  GemmProblem g;
  g.n = -8;
  EXPECT_EQ(check_well_formed(g).error().message,
            "n is -8; allowed is a decimal integer from 0 to 2147483647");
  g.n = 8;
  g.m = -2;
  EXPECT_EQ(check_well_formed(g).error().message,
            "m is -2; allowed is a decimal integer from 0 to 2147483647, or '?'");
  QuantizeProblem q;
  q.amax_epsilon = std::numeric_limits<float>::infinity();
  EXPECT_EQ(check_well_formed(q).error().message, "eps is inf; allowed is a finite number >= 0");
  q.amax_epsilon = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(check_well_formed(q));
  q.amax_epsilon = -1;
  EXPECT_FALSE(check_well_formed(q));
}

// ---- short forms -----------------------------------------------------------------------------

TEST(Problem, GemmShapes) {
  const auto p = parse_gemm_shape("4096x7168x2048", "blockwise");
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(to_text(*p), with(kGemm, "m=?", "m=4096"));
  const auto dynamic = parse_gemm_shape("?x7168x2048", "blockwise");
  ASSERT_TRUE(dynamic);
  EXPECT_EQ(to_text(*dynamic), kGemm);
}

// '_' leaves a count open without quotes in a shell, wherever '?' does; '?' is printed.
TEST(Problem, AnUnderscoreLeavesACountOpen) {
  EXPECT_EQ(to_text(*parse_gemm_shape("_x7168x2048", "blockwise")), kGemm);
  EXPECT_EQ(to_text(*parse_quantize_shape("_x7168", "blockwise:f32")), kQuantize);
  EXPECT_EQ(to_text(*parse_problem(with(kGemm, "m=?", "m=_"))), kGemm);
  EXPECT_EQ(to_text(*parse_problem(with(kQuantize, "rows=?", "rows=_"))), kQuantize);
  const std::string wgrad = "gemm m=8 n=8 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128";
  EXPECT_EQ(to_text(*parse_problem(with(wgrad, "k=?", "k=_"))), wgrad);
  EXPECT_EQ(error_of(with(kGemm, "n=7168", "n=_")),
            "gemm: field 'n=_': '_' stands for the token count only, which this is not");
  for (const std::string bad : {"__x7168x2048", "_", "8x_x8", "8x8x_", "_1x8x8"})
    EXPECT_FALSE(parse_gemm_shape(bad, "blockwise")) << bad;
}

TEST(Problem, QuantizeShapes) {
  const auto p = parse_quantize_shape("?x7168", "blockwise");
  ASSERT_TRUE(p) << p.error().message;
  EXPECT_EQ(to_text(*p), with(kQuantize, "q=e4m3:1x128", "q=e4m3:1x128:pow2"));
  const auto any = parse_quantize_shape("?x7168", "blockwise:f32");
  ASSERT_TRUE(any) << any.error().message;
  EXPECT_EQ(to_text(*any), kQuantize);
  const auto mx = parse_quantize_shape("8x64", "mxfp8");
  ASSERT_TRUE(mx);
  EXPECT_EQ(to_text(*mx), "quantize rows=8 cols=64 x=bf16 q=e4m3:1x32 out=row");
}

TEST(Problem, RefusesBadShapes) {
  for (const std::string bad : {"", "4096", "4096x7168", "4096x7168x", "4096x7168x2048x1", "axbxc",
                                "4096x?x2048", "4096x7168x?", "4096*7168*2048", "-1x8x16"}) {
    const auto p = parse_gemm_shape(bad, "blockwise");
    ASSERT_FALSE(p) << bad;
    EXPECT_EQ(p.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(p.error().message.rfind("the gemm shape is '" + bad + "'; allowed is MxNxK: ", 0), 0U)
        << p.error().message;
  }
  const auto q = parse_quantize_shape("8x16x32", "blockwise");
  ASSERT_FALSE(q);
  EXPECT_EQ(q.error().message,
            "the quantize shape is '8x16x32'; allowed is ROWSxCOLS: 2 numbers with an x "
            "between them");
  const auto cut = parse_gemm_shape("4096x7168x", "blockwise");
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().message,
            "the gemm shape is '4096x7168x'; allowed is MxNxK: number 3 is missing");
  const auto large = parse_gemm_shape("16x512x99999999999", "blockwise");
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().message,
            "the gemm shape is '16x512x99999999999'; allowed is MxNxK: of '99999999999', the value "
            "is not a decimal integer from 0 to 2147483647");
}

TEST(Problem, RefusesAnUnknownRecipe) {
  const auto p = parse_gemm_shape("8x8x16", "blockwize");
  ASSERT_FALSE(p);
  EXPECT_EQ(p.error().message,
            "recipe is 'blockwize'; allowed are blockwise, blockwise_hybrid, tensorwise, delayed, "
            "rowwise, mxfp8, and NAME:f32 for scales that are not powers of two");
  EXPECT_FALSE(parse_quantize_shape("8x8", ""));
}

}  // namespace
}  // namespace octile
