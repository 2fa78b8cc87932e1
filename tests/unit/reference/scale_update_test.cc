// Delayed scaling against numbers worked out by hand.
#include "runtime/reference/quantize/reference_scale_update.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace octile::reference {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

QuantizeProblem delayed(DType fp8 = DType::kE4M3, ScaleFormat format = ScaleFormat::kF32) {
  QuantizeProblem p;
  p.q = {fp8, Granularity::kPerTensor, format};
  p.policy = ScalePolicy::kDelayed;
  return p;
}

struct State {
  std::vector<float> history, encode_scale;  // [length][tensors], [tensors]
};

State update(State s, AmaxChoice choice, const QuantizeProblem& p = delayed(), int margin = 0,
             float share = 0) {
  const auto tensors = static_cast<std::int64_t>(s.encode_scale.size());
  const auto length = static_cast<std::int64_t>(s.history.size()) / tensors;
  update_scales(p,
                {s.history.data(), s.encode_scale.data(), tensors, length, choice, margin, share});
  return s;
}

TEST(ScaleUpdate, TheLargestOfTheHistory) {
  // Two tensors and three steps; the second tensor's largest amax is two steps old.
  const State s = update({{7, 1, 2, 3, 4, 14}, {1, 1}}, AmaxChoice::kLargest);
  EXPECT_EQ(s.encode_scale, (std::vector<float>{64, 32}));
  EXPECT_EQ(s.history, (std::vector<float>{0, 0, 7, 1, 2, 3}));
}

TEST(ScaleUpdate, TheLatest) {
  const State s = update({{7, 1.75F, 28, 3}, {1, 1}}, AmaxChoice::kLatest);
  EXPECT_EQ(s.encode_scale, (std::vector<float>{64, 256}));
  EXPECT_EQ(s.history, (std::vector<float>{0, 0, 7, 1.75F}));
}

TEST(ScaleUpdate, AnAverageBeginsWithTheFirstStep) {
  State s = update({{8, 0}, {1}}, AmaxChoice::kAverage, delayed(), 0, 0.25F);
  EXPECT_EQ(s.history, (std::vector<float>{0, 8}));
  EXPECT_EQ(s.encode_scale, std::vector<float>{56});
  s.history[0] = 4;
  s = update(s, AmaxChoice::kAverage, delayed(), 0, 0.25F);
  EXPECT_EQ(s.history, (std::vector<float>{0, 7}));  // 8 * 3/4 + 4 * 1/4
  EXPECT_EQ(s.encode_scale, std::vector<float>{64});
}

TEST(ScaleUpdate, ZeroAndWhatIsNotFiniteKeepTheScale) {
  for (const float amax : {0.0F, kInf, std::numeric_limits<float>::quiet_NaN()}) {
    const State s = update({{amax}, {5}}, AmaxChoice::kLargest);
    EXPECT_EQ(s.encode_scale, std::vector<float>{5});
    EXPECT_EQ(s.history, std::vector<float>{0});
  }
  // One overflowed step does not hide the others.
  EXPECT_EQ(update({{kInf, 7}, {5}}, AmaxChoice::kLargest).encode_scale, std::vector<float>{64});
}

TEST(ScaleUpdate, MarginFormatAndEpsilon) {
  EXPECT_EQ(update({{7}, {1}}, AmaxChoice::kLatest, delayed(), 3).encode_scale,
            std::vector<float>{8});
  EXPECT_EQ(update({{7}, {1}}, AmaxChoice::kLatest, delayed(), -1).encode_scale,
            std::vector<float>{128});
  EXPECT_EQ(update({{7}, {1}}, AmaxChoice::kLatest, delayed(DType::kE5M2)).encode_scale,
            std::vector<float>{8192});
  EXPECT_EQ(update({{6}, {1}}, AmaxChoice::kLatest, delayed(DType::kE4M3, ScaleFormat::kF32Pow2))
                .encode_scale,
            std::vector<float>{64});  // 74.67, rounded down
  QuantizeProblem p = delayed();
  p.amax_epsilon = 14;
  EXPECT_EQ(update({{7}, {1}}, AmaxChoice::kLatest, p).encode_scale, std::vector<float>{32});
}

}  // namespace
}  // namespace octile::reference
