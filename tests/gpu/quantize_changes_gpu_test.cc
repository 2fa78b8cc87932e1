// Quantisers that do nothing if x has not changed, against the same plan without that, and their
// fingerprint against the host's.
#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/reference/quantize/reference_fingerprint.h"
#include "tests/gpu/quantize_gpu.h"

namespace octile {
namespace {

constexpr std::int64_t kCols = 1040;

class QuantizeChanges : public QuantizeGpuFixture {};

QuantizeProblem weight(DType type, Granularity granularity, QuantizeOutput output) {
  QuantizeProblem p;
  p.cols = kCols;
  p.x.dtype = type;
  p.q = {DType::kE4M3, granularity, ScaleFormat::kF32Pow2};
  p.output = output;
  return p;
}

TEST_F(QuantizeChanges, OnlyAChangedTensorIsQuantised) {
  for (const DType type : {DType::kBF16, DType::kFP32}) {
    for (const Granularity granularity :
         {Granularity::k128x128, Granularity::k1x128, Granularity::kPerTensor}) {
      for (const Placement& at : {Placement{.rows = 3, .cols = kCols},
                                  Placement{.rows = 700, .cols = kCols, .pad_x = 8}}) {
        QuantizeProblem plain = weight(type, granularity, QuantizeOutput::kBoth);
        // Contents are compared before they are rounded.
        if (type == DType::kFP32 && granularity == Granularity::k1x128) plain.via = DType::kBF16;
        QuantizeProblem compared = plain;
        compared.skip_unchanged = true;
        SCOPED_TRACE(to_text(Problem(compared)));
        const Plan plan = make_plan(compared);
        ASSERT_NE(plan, nullptr);
        QuantizeCase expected = tests::make_case(plain, at, Fill::kMixed);
        QuantizeCase actual = expected;
        OnDevice d = place(plan.get(), actual);
        const DeviceBuffer memory = upload(std::vector<char>(sizeof(octile_fingerprint)));
        d.args.change.state = static_cast<octile_fingerprint*>(memory.pointer());
        const auto state = [&] {
          std::vector<char> bytes(sizeof(octile_fingerprint));
          download(memory, bytes);
          octile_fingerprint now{};
          std::memcpy(&now, bytes.data(), sizeof now);
          return now;
        };
        const auto expect_quantised = [&](std::uint32_t changes) {
          run(plan.get(), d.args);
          if (HasFatalFailure()) return;
          ASSERT_TRUE(expected.run_reference());
          fetch(d, actual);
          tests::expect_same_outputs(actual, expected);
          const octile_fingerprint now = state();
          const std::int64_t element = size_of(type);
          const auto want =
              reference::fingerprint(expected.x.data() + expected.x_offset, expected.rows,
                                     plain.cols * element, expected.ldx * element);
          EXPECT_EQ(now.sum[0], want[0]);
          EXPECT_EQ(now.sum[1], want[1]);
          EXPECT_EQ(now.unchanged, 0U);
          EXPECT_EQ(now.changes, changes);
        };
        expect_quantised(1);
        // Many times, so that kernels overlap those before them. Poison stays.
        ASSERT_TRUE(d.q.fill(0x5a, stream()));
        for (int i = 0; i < 50; ++i) run(plan.get(), d.args);
        EXPECT_EQ(state().unchanged, 1U);
        EXPECT_EQ(state().changes, 1U);
        std::vector<char> codes(expected.row.q.size());
        download(d.q, codes);
        EXPECT_EQ(std::ranges::count(codes, 0x5a), std::ssize(codes));

        expected.x[static_cast<std::size_t>(expected.x_offset)] ^= 1;
        ASSERT_TRUE(d.x.upload(expected.x.data(), expected.x.size(), stream()));
        ASSERT_TRUE(d.q.upload(expected.row.q.data(), expected.row.q.size(), stream()));
        expect_quantised(2);
      }
    }
  }
}

}  // namespace
}  // namespace octile
