// Layers whose dY is a part of a wider matrix that was quantised at once, as the gradients of two
// layers with one X are.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/layer_case.h"

namespace octile::test {
namespace {

constexpr std::uint32_t kTraining = OCTILE_LAYER_INPUT_GRADIENT | OCTILE_LAYER_WEIGHT_GRADIENT;

// Two layers with one X, whose dY lie side by side in one matrix that was quantised at once. No
// block has columns of both, so that each layer computes what it does with a dY of its own.
class PartsOfDy : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr std::int64_t kColumns = 256;

  LayerCase half() const {
    LayerCase c;
    c.recipe = GetParam();
    c.dtype = OCTILE_FP32;
    c.accumulate = c.bias = false;
    c.n = kColumns;
    return c;
  }

  // The dY of both, in both copies.
  void quantize(const LayerTensors& left, const LayerTensors& right) {
    LayerCase c = half();
    const auto row = static_cast<std::size_t>(c.n) * sizeof(float);
    std::vector<unsigned char> dy(2 * left.dy.size());
    for (std::size_t i = 0; i < static_cast<std::size_t>(c.tokens); ++i) {
      std::memcpy(dy.data() + 2 * i * row, left.dy.data() + i * row, row);
      std::memcpy(dy.data() + (2 * i + 1) * row, right.dy.data() + i * row, row);
    }
    c.n *= 2;
    const LayerHandle whole = make_layer(library, c);
    rowwise = memory_of_copy(whole.get(), OCTILE_LAYER_DY, false, c.tokens);
    transposed = memory_of_copy(whole.get(), OCTILE_LAYER_DY, true, c.tokens);
    for (const int is_transposed : {0, 1}) {
      octile_quantized_layout& layout = is_transposed != 0 ? layout_col : layout_row;
      layout.struct_size = sizeof layout;
      ASSERT_EQ(
          octile_layer_copy_layout(whole.get(), OCTILE_LAYER_DY, is_transposed, c.tokens, &layout),
          OCTILE_OK);
    }
    const octile_layer_operand of_dy = operand(dy.data(), rowwise.get(), transposed.get());
    octile_layer_quantize_args args{};
    args.struct_size = sizeof args;
    args.tensor = OCTILE_LAYER_DY;
    args.tokens = c.tokens;
    args.operand = &of_dy;
    std::size_t bytes = 0;
    ASSERT_EQ(octile_layer_workspace_size(whole.get(), c.tokens, kTraining, nullptr, &bytes),
              OCTILE_OK);
    Guarded space(bytes);
    args.workspace = space.get();
    args.workspace_bytes = bytes;
    ASSERT_EQ(octile_layer_quantize(whole.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
  }

  octile_layer_operand part(std::int64_t first) {
    const bool is_mx = GetParam() == "mxfp8";
    const auto at = [](void* memory, std::int64_t bytes) {
      return static_cast<char*>(memory) + bytes;
    };
    const octile_layer_copy row = rowwise.get(), col = transposed.get();
    octile_layer_operand dy =
        current({at(row.codes, first),
                 at(row.scales, is_mx ? first / 32 : first / 128 * layout_row.scale_ld * 4)},
                {at(col.codes, first * layout_col.data_ld),
                 at(col.scales, first * (is_mx ? layout_col.scale_ld : 4))});
    dy.whole_columns = 2 * kColumns;
    return dy;
  }

  // Runs backward with this dY. dx: what it adds to, or what is written.
  void backward(const LayerCase& c, const LayerTensors& tensors, const octile_layer_operand& dy,
                Guarded& dx, Guarded& dw) {
    const LayerHandle layer = make_layer(library, c);
    const octile_layer_operand x = operand(tensors.x.data()), w = operand(tensors.w.data());
    std::size_t bytes = 0;
    ASSERT_EQ(octile_layer_workspace_size(layer.get(), c.tokens,
                                          kTraining | OCTILE_LAYER_CURRENT_DY, nullptr, &bytes),
              OCTILE_OK);
    Guarded space(bytes);
    octile_layer_backward_args args = backward_args(c, tensors, &dy, &x, &w, space);
    args.dx = dx.get();
    args.dw = dw.get();
    ASSERT_EQ(octile_layer_backward(layer.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
    for (const Guarded* memory : {&space, &dx, &dw}) EXPECT_TRUE(memory->guard_holds());
  }

  LibraryHandle library{""};
  CopyMemory rowwise, transposed;
  octile_quantized_layout layout_row{}, layout_col{};
};

TEST_P(PartsOfDy, AreReadByTwoLayers) {
  LayerCase c = half();
  const LayerTensors left(c, 1), right(c, 2);
  const LayerResults first = composed_step(library, c, left);
  const LayerResults second = composed_step(library, c, right);
  quantize(left, right);
  Guarded dx(first.dx.size()), dw(first.dw.size());
  backward(c, left, part(0), dx, dw);
  EXPECT_EQ(dx.bytes(), first.dx);
  EXPECT_EQ(dw.bytes(), first.dw);
  backward(c, right, part(kColumns), dx, dw);
  EXPECT_EQ(dx.bytes(), second.dx);
  EXPECT_EQ(dw.bytes(), second.dw);
}

INSTANTIATE_TEST_SUITE_P(Recipes, PartsOfDy,
                         ::testing::Values("blockwise", "blockwise_hybrid", "mxfp8"),
                         [](const auto& one) { return one.param; });

}  // namespace
}  // namespace octile::test
