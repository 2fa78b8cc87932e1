// Quantisers that do nothing if x has not changed, through the C API: runs on the host, and errors
// of callers, each with its sentence.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/support/api_handles.h"
#include "tests/support/quantize_call.h"

namespace octile::test {
namespace {

constexpr std::int64_t kRows = 150, kCols = 272, kLd = 280;
const std::string kPlain = "quantize rows=? cols=272 x=bf16 q=e4m3:128x128:pow2 out=both";

class Changes : public ::testing::Test {
 protected:
  Changes() {
    for (std::int64_t i = 0; i < kRows * kLd; ++i)
      x[static_cast<std::size_t>(i)] = static_cast<std::uint16_t>(0x3f00 + i * 7 % 251);
  }

  QuantizeArguments args(Bytes& out) {
    QuantizeArguments a;
    a.rows = kRows;
    a.x = x.data();
    a.ldx = kLd;
    a.q = out.at();
    a.ldq = kCols;
    a.scale = out.at(kPart);
    a.q_transposed = out.at(2 * kPart);
    a.scale_transposed = out.at(3 * kPart);
    return a;
  }
  QuantizeArguments compared() {
    QuantizeArguments a = args(actual);
    a.change.state = &state;
    return a;
  }
  void run(octile_plan* plan, const QuantizeArguments& a) {
    EXPECT_EQ(tests::run_quantize(plan, a), OCTILE_OK) << octile_last_error();
  }
  bool equals_plain() {
    std::memset(expected.at(), 0, 4 * kPart);
    run(make_plan(library, "host", kPlain).get(), args(expected));
    return std::memcmp(actual.at(), expected.at(), 4 * kPart) == 0;
  }

  static constexpr std::size_t kPart = 1 << 16;
  LibraryHandle library{""};
  std::vector<std::uint16_t> x = std::vector<std::uint16_t>(kRows * kLd);
  Bytes actual{4 * kPart}, expected{4 * kPart};
  octile_fingerprint state{};
};

TEST_F(Changes, OnlyAChangedTensorIsQuantised) {
  const PlanHandle plan = make_plan(library, "host", kPlain + " skip=unchanged");
  std::memset(actual.at(), 0, 4 * kPart);
  run(plan.get(), compared());
  EXPECT_TRUE(equals_plain());
  EXPECT_EQ(state.unchanged, 0U);

  std::memset(actual.at(), 0x5a, 4 * kPart);
  run(plan.get(), compared());
  EXPECT_EQ(state.unchanged, 1U);
  for (std::size_t i = 0; i < 4 * kPart; ++i) ASSERT_EQ(actual.at<unsigned char>()[i], 0x5a);

  x[kLd - 1] ^= 1;  // between two rows
  run(plan.get(), compared());
  EXPECT_EQ(state.unchanged, 1U);

  std::memset(actual.at(), 0, 4 * kPart);
  std::swap(x[0], x[3 * kLd + 5]);
  run(plan.get(), compared());
  EXPECT_EQ(state.unchanged, 0U);
  EXPECT_TRUE(equals_plain());

  std::memset(actual.at(), 0, 4 * kPart);  // by something else, which then says so
  state.known = 0;
  run(plan.get(), compared());
  EXPECT_TRUE(equals_plain());
  EXPECT_EQ(state.changes, 3U);
}

TEST_F(Changes, ArgumentsAreRefused) {
  const auto refuses = [&](const std::string& text, const auto& change, const char* sentence) {
    const PlanHandle plan = make_plan(library, "host", text);
    QuantizeArguments a = compared();
    change(a);
    std::memset(actual.at(), 0x5a, 4 * kPart);
    expect_refused(tests::run_quantize(plan.get(), a), OCTILE_INVALID_ARGUMENT, {sentence});
    for (std::size_t i = 0; i < 4 * kPart; ++i) ASSERT_EQ(actual.at<unsigned char>()[i], 0x5a);
  };
  const std::string compares = kPlain + " skip=unchanged";
  const std::uint32_t zero = 0;
  refuses(
      compares, [](auto& a) { a.change.struct_size = 0; },
      "change is null; allowed: a pointer, because the plan compares contents");
  refuses(compares, [](auto& a) { a.change.state = nullptr; }, "change.state is null");
  refuses(
      compares,
      [](auto& a) {
        a.change.state =
            reinterpret_cast<octile_fingerprint*>(reinterpret_cast<char*>(a.change.state) + 4);
      },
      "allowed: a multiple of 8 bytes");
  refuses(
      compares, [&](auto& a) { a.skip = &zero; },
      "skip is given; allowed: null, because the plan finds out itself if x has changed");
  refuses(kPlain, [](auto&) {}, "change.state is given; allowed: null");
}

TEST_F(Changes, TensorsThatAreNoWeightsAreRefused) {
  for (const char* text :
       {"x=e4m3:1x128 q=e4m3:1x128 out=row", "x=bf16 q=e4m3:1x128 out=row src=silu_mul",
        "x=bf16 q=e4m3:1x128 out=row dbias=1", "x=bf16 q=e4m3:1x128 out=row group=contiguous"}) {
    SCOPED_TRACE(text);
    octile_plan* plan = nullptr;
    const std::string problem = std::string("quantize rows=? cols=272 ") + text + " skip=unchanged";
    expect_refused(octile_plan_create(library.get(), "host", problem.c_str(), &plan),
                   OCTILE_UNSUPPORTED, {});
    EXPECT_EQ(plan, nullptr);
  }
}

}  // namespace
}  // namespace octile::test
