// Layers on the host device against the same work composed of single quantisers and GEMMs, bit for
// bit: every recipe, linear and experts, with copies kept, current, or made in the workspace.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/layer_case.h"

namespace octile::test {
namespace {

constexpr std::uint32_t kTraining = OCTILE_LAYER_INPUT_GRADIENT | OCTILE_LAYER_WEIGHT_GRADIENT;
constexpr std::uint32_t kNoPass = OCTILE_LAYER_WITHOUT_FORWARD | OCTILE_LAYER_WITHOUT_BACKWARD;
constexpr std::uint32_t kKeeping = kTraining | OCTILE_LAYER_KEEP_X | OCTILE_LAYER_KEEP_W;
constexpr std::uint32_t kHolding = kTraining | OCTILE_LAYER_KEEP_X | OCTILE_LAYER_HELD_W;

// A layer, and memory for the calls of one step.
class Step {
 public:
  Step(const LibraryHandle& library, const LayerCase& layer_case, const LayerTensors& tensors)
      : c_(layer_case),
        layer_(make_layer(library, layer_case)),
        tensors_(tensors),
        x_transposed_(memory_of_copy(layer_.get(), OCTILE_LAYER_X, true, c_.tokens)),
        w_rowwise_(memory_of_copy(layer_.get(), OCTILE_LAYER_W, false, c_.tokens)),
        w_transposed_(memory_of_copy(layer_.get(), OCTILE_LAYER_W, true, c_.tokens)) {
    const std::size_t element = c_.dtype == OCTILE_FP32 ? 4 : 2;
    const std::size_t dw_element = c_.gradient_dtype == OCTILE_FP32 ? 4 : 2;
    const auto w = static_cast<std::size_t>(std::max<std::int64_t>(c_.experts, 1) * c_.n * c_.k);
    y = Guarded(static_cast<std::size_t>(c_.tokens * c_.n) * element);
    dx = Guarded(static_cast<std::size_t>(c_.tokens * c_.k) * element);
    dw = Guarded(w * dw_element);
    db = Guarded(static_cast<std::size_t>(c_.n) * sizeof(float));
    std::int64_t elements = -1;
    EXPECT_EQ(octile_layer_scaling_size(layer_.get(), &elements), OCTILE_OK);
    scaling.assign(static_cast<std::size_t>(elements), 0.0F);
    const auto e = static_cast<std::size_t>(std::max<std::int64_t>(c_.experts, 1));
    for (std::size_t i = 0; !scaling.empty() && i < 2 * e; ++i) scaling[i] = 1;
  }

  octile_layer* layer() { return layer_.get(); }
  Guarded workspace(std::uint32_t uses, bool of_forward) {
    std::size_t forward = 0, backward = 0;
    EXPECT_EQ(octile_layer_workspace_size(layer(), c_.tokens, uses, &forward, &backward), OCTILE_OK)
        << octile_last_error();
    return Guarded(of_forward ? forward : backward);
  }
  octile_layer_copy x_transposed() { return x_transposed_.get(); }
  octile_layer_copy w_rowwise() { return w_rowwise_.get(); }
  octile_layer_copy w_transposed() { return w_transposed_.get(); }
  bool x_is_untouched() const {
    return x_transposed_.codes.untouched() && x_transposed_.scales.untouched();
  }
  bool w_is_untouched() const {
    return w_rowwise_.codes.untouched() && w_transposed_.codes.untouched();
  }

  void quantize_w() {
    Guarded space = workspace(kKeeping, false);
    const octile_layer_operand w = operand(tensors_.w.data(), w_rowwise());
    octile_layer_quantize_args args{};
    args.struct_size = sizeof args;
    args.tensor = OCTILE_LAYER_W;
    args.operand = &w;
    args.workspace = space.get();
    args.workspace_bytes = space.size();
    EXPECT_EQ(octile_layer_quantize(layer(), &args, nullptr), OCTILE_OK) << octile_last_error();
  }

  void forward(const octile_layer_operand& x, const octile_layer_operand& w, std::uint32_t uses) {
    Guarded space = workspace(uses, true);
    octile_layer_forward_args args = forward_args(c_, tensors_, &x, &w, y, space);
    args.scaling = scaling.empty() ? nullptr : scaling.data();
    args.record_x = 1;
    args.sentry = c_.sentry ? sentry.data() : nullptr;
    EXPECT_EQ(octile_layer_forward(layer(), &args, nullptr), OCTILE_OK) << octile_last_error();
    EXPECT_TRUE(space.guard_holds());
  }

  // wanted: octile_layer_use bits of gradients.
  void backward(const octile_layer_operand* x, const octile_layer_operand* w, std::uint32_t uses) {
    backward(x, w, uses, operand(tensors_.dy.data()));
  }
  void backward(const octile_layer_operand* x, const octile_layer_operand* w, std::uint32_t uses,
                const octile_layer_operand& of_dy) {
    Guarded space = workspace(uses, false);
    octile_layer_backward_args args = backward_args(c_, tensors_, &of_dy, x, w, space);
    if ((uses & OCTILE_LAYER_INPUT_GRADIENT) != 0) args.dx = dx.get();
    if ((uses & OCTILE_LAYER_WEIGHT_GRADIENT) != 0) args.dw = dw.get();
    if ((uses & OCTILE_LAYER_BIAS_GRADIENT) != 0)
      args.bias_gradient = static_cast<float*>(db.get());
    args.scaling = scaling.empty() ? nullptr : scaling.data();
    args.sentry = c_.sentry ? sentry.data() : nullptr;
    EXPECT_EQ(octile_layer_backward(layer(), &args, nullptr), OCTILE_OK) << octile_last_error();
    EXPECT_TRUE(space.guard_holds());
  }

  void fill_dw() { std::memset(dw.get(), kAddend, dw.size()); }
  std::uint32_t bias_use() const { return c_.bias ? std::uint32_t{OCTILE_LAYER_BIAS_GRADIENT} : 0; }

  Guarded y, dx, dw, db;
  std::vector<float> scaling;
  std::array<std::uint32_t, 3> sentry{};

 private:
  LayerCase c_;
  LayerHandle layer_;
  const LayerTensors& tensors_;
  CopyMemory x_transposed_, w_rowwise_, w_transposed_;
};

// Rows that no expert has are neither read nor written, so that all tokens belong to experts here.
void expect_results(Step& step, const LayerResults& want, const LayerCase& c) {
  EXPECT_EQ(step.y.bytes(), want.y);
  EXPECT_EQ(step.dx.bytes(), want.dx);
  EXPECT_EQ(step.dw.bytes(), want.dw);
  if (c.bias) {
    EXPECT_EQ(step.db.bytes(), want.db);
  }
  for (const Guarded* result : {&step.y, &step.dx, &step.dw, &step.db})
    EXPECT_TRUE(result->guard_holds());
}

class LayerSteps : public ::testing::TestWithParam<LayerCase> {
 protected:
  LibraryHandle library{""};
};

// One call each way, with X's transposed copy kept and W's copies kept over both.
TEST_P(LayerSteps, KeepCopiesFromForwardToBackward) {
  const LayerCase& c = GetParam();
  const LayerTensors tensors(c);
  Step step(library, c, tensors);
  const LayerResults want = composed_step(library, c, tensors, step.scaling);
  step.fill_dw();
  step.forward(operand(tensors.x.data(), {}, step.x_transposed()),
               operand(tensors.w.data(), step.w_rowwise(), step.w_transposed()), kKeeping);
  const octile_layer_operand x = current({}, step.x_transposed());
  const octile_layer_operand w = current({}, step.w_transposed());
  step.backward(&x, &w, kKeeping | step.bias_use());
  expect_results(step, want, c);
  EXPECT_EQ(step.scaling, want.scaling);
}

// Nothing is kept: every copy is made in the workspace of the call that needs it.
TEST_P(LayerSteps, MakeCopiesInTheWorkspace) {
  const LayerCase& c = GetParam();
  const LayerTensors tensors(c);
  Step step(library, c, tensors);
  const LayerResults want = composed_step(library, c, tensors, step.scaling);
  step.fill_dw();
  const octile_layer_operand x = operand(tensors.x.data()), w = operand(tensors.w.data());
  step.forward(x, w, kTraining);
  step.backward(&x, &w, kTraining | step.bias_use());
  expect_results(step, want, c);
  EXPECT_EQ(step.scaling, want.scaling);
  EXPECT_TRUE(step.x_is_untouched());
  EXPECT_TRUE(step.w_is_untouched());
}

std::vector<LayerCase> step_cases() {
  std::vector<LayerCase> cases;
  for (const char* recipe :
       {"blockwise", "blockwise_hybrid", "tensorwise", "delayed", "rowwise", "mxfp8"}) {
    LayerCase c;
    c.recipe = recipe;
    if (c.recipe == "delayed") c.history = 2;
    cases.push_back(c);
    if (c.recipe == "rowwise" || c.recipe == "mxfp8") continue;  // no backward pass of experts
    c.experts = 3;
    c.bias = false;
    cases.push_back(c);
  }
  LayerCase other;  // other types, one token, nothing added
  other.dtype = OCTILE_FP16;
  other.weight_dtype = OCTILE_BF16;
  other.gradient_dtype = OCTILE_BF16;
  other.accumulate = false;
  other.tokens = 1;
  other.sentry = true;
  cases.push_back(other);
  other.dtype = OCTILE_FP32;
  other.tokens = 128;
  other.bias = false;
  cases.push_back(other);
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<LayerCase>& info) {
  const LayerCase& c = info.param;
  return c.recipe + (c.experts > 0 ? "_experts" : "") + "_" + std::to_string(c.tokens) + "_" +
         std::to_string(static_cast<int>(c.dtype));
}

INSTANTIATE_TEST_SUITE_P(Recipes, LayerSteps, ::testing::ValuesIn(step_cases()), case_name);

class Layers : public ::testing::Test {
 protected:
  LibraryHandle library{""};
};

TEST_F(Layers, WriteThoseGradientsThatAreWanted) {
  const LayerCase c;
  const LayerTensors tensors(c);
  const LayerResults want = composed_step(library, c, tensors);
  for (std::uint32_t subset = 0; subset < 8; ++subset) {
    Step step(library, c, tensors);
    const std::uint32_t uses = subset << 2U;  // dX, dW, db
    const octile_layer_operand x = operand(tensors.x.data()), w = operand(tensors.w.data());
    step.fill_dw();
    step.backward((subset & 2U) != 0 ? &x : nullptr, (subset & 1U) != 0 ? &w : nullptr, uses);
    const auto expect = [&](const Guarded& result, std::uint32_t bit, unsigned char before,
                            const std::vector<unsigned char>& wanted) {
      const std::vector<unsigned char> unwritten(result.size(), before);
      EXPECT_EQ(result.bytes(), (subset & bit) != 0 ? wanted : unwritten) << subset;
    };
    expect(step.dx, 1, 0xa5, want.dx);
    expect(step.dw, 2, kAddend, want.dw);
    expect(step.db, 4, 0xa5, want.db);
  }
}

// The copies of q are those of k: the second layer does not look at X.
TEST_F(Layers, ShareTheCopiesOfCurrentOperands) {
  const LayerCase c;
  const LayerTensors tensors(c);
  const LayerResults want = composed_step(library, c, tensors);
  Step q(library, c, tensors), k(library, c, tensors);
  CopyMemory rows = memory_of_copy(q.layer(), OCTILE_LAYER_X, false, c.tokens);
  q.forward(operand(tensors.x.data(), rows.get(), q.x_transposed()),
            operand(tensors.w.data(), q.w_rowwise(), q.w_transposed()), kKeeping);
  k.forward(current(rows.get(), q.x_transposed()), current(q.w_rowwise(), q.w_transposed()),
            kKeeping);
  EXPECT_EQ(q.y.bytes(), want.y);
  EXPECT_EQ(k.y.bytes(), want.y);
  EXPECT_TRUE(k.w_is_untouched());
}

// Copies made by calls of their own, and no call reads a source.
TEST_F(Layers, QuantizeOneTensorAlone) {
  for (const std::int64_t experts : {0, 3}) {
    LayerCase c;
    c.experts = experts;
    c.bias = false;
    const LayerTensors tensors(c);
    const LayerResults want = composed_step(library, c, tensors);
    Step step(library, c, tensors);
    const std::array sources{tensors.x.data(), tensors.w.data(), tensors.dy.data()};
    std::array<CopyMemory, 3> rows, columns;
    for (const octile_layer_tensor tensor : {OCTILE_LAYER_X, OCTILE_LAYER_W, OCTILE_LAYER_DY}) {
      rows.at(tensor) = memory_of_copy(step.layer(), tensor, false, c.tokens);
      columns.at(tensor) = memory_of_copy(step.layer(), tensor, true, c.tokens);
      const octile_layer_operand made =
          operand(sources.at(tensor), rows.at(tensor).get(), columns.at(tensor).get());
      Guarded space = step.workspace(kKeeping, false);
      octile_layer_quantize_args args{};
      args.struct_size = sizeof args;
      args.tensor = tensor;
      args.tokens = c.tokens;
      args.operand = &made;
      args.workspace = space.get();
      args.workspace_bytes = space.size();
      args.group_offsets = tensors.groups();
      ASSERT_EQ(octile_layer_quantize(step.layer(), &args, nullptr), OCTILE_OK)
          << octile_last_error();
    }
    step.fill_dw();
    const auto both = [&](octile_layer_tensor tensor) {
      return current(rows.at(tensor).get(), columns.at(tensor).get());
    };
    const octile_layer_operand x = both(OCTILE_LAYER_X), w = both(OCTILE_LAYER_W);
    step.forward(x, w, kKeeping);
    step.backward(&x, &w, kKeeping, both(OCTILE_LAYER_DY));
    expect_results(step, want, c);
  }
}

// W as codes alone: both passes give what a W that is quantised gives, because W^T has its codes.
TEST_F(Layers, HoldWAsCodes) {
  for (const char* recipe : {"blockwise", "blockwise:f32", "tensorwise", "delayed"}) {
    for (const std::int64_t experts : {0, 3}) {
      SCOPED_TRACE(fmt::format("{}, {} experts", recipe, experts));
      LayerCase c;
      c.recipe = recipe;
      c.experts = experts;
      c.bias = experts == 0;
      c.history = c.recipe == "delayed" ? 2 : 0;
      const LayerTensors tensors(c);
      Step step(library, c, tensors);
      const LayerResults want = composed_step(library, c, tensors, step.scaling);
      step.quantize_w();
      step.fill_dw();
      octile_layer_operand w = held(step.w_rowwise());
      step.forward(operand(tensors.x.data(), {}, step.x_transposed()), w, kHolding);
      const octile_layer_operand x = current({}, step.x_transposed());
      step.backward(&x, &w, kHolding | step.bias_use());
      expect_results(step, want, c);
      EXPECT_EQ(step.scaling, want.scaling);

      w.transposed = step.w_transposed();
      std::memset(step.dx.get(), 0, step.dx.size());
      step.backward(nullptr, &w, OCTILE_LAYER_INPUT_GRADIENT | OCTILE_LAYER_HELD_W);
      EXPECT_EQ(step.dx.bytes(), want.dx);
      std::memset(step.dx.get(), 0, step.dx.size());
      const octile_layer_operand made = current({}, step.w_transposed());
      step.backward(nullptr, &made, OCTILE_LAYER_INPUT_GRADIENT | OCTILE_LAYER_KEEP_W);
      EXPECT_EQ(step.dx.bytes(), want.dx) << "of the copy in the caller's memory";
    }
  }
}

// A replayed graph quantises W once a step: the others find the word set and use the copies.
TEST_F(Layers, SkipTheQuantisationOfW) {
  const LayerCase c;
  const LayerTensors tensors(c), other(c, 2);
  Step step(library, c, tensors);
  step.forward(operand(tensors.x.data()), operand(tensors.w.data(), step.w_rowwise()), 2);
  const std::vector<unsigned char> want = step.y.bytes();
  std::uint32_t skip = 1;
  octile_layer_operand w = operand(other.w.data(), step.w_rowwise());
  w.skip = &skip;
  step.forward(operand(tensors.x.data()), w, OCTILE_LAYER_KEEP_W);
  EXPECT_EQ(step.y.bytes(), want);
  skip = 0;
  step.forward(operand(tensors.x.data()), w, OCTILE_LAYER_KEEP_W);
  EXPECT_NE(step.y.bytes(), want);
}

TEST_F(Layers, QuantizeWIfItHasChanged) {
  for (const std::int64_t experts : {0, 3}) {
    LayerCase c;
    c.experts = experts;
    c.bias = experts == 0;
    LayerTensors tensors(c);
    Step step(library, c, tensors);
    std::vector<octile_fingerprint> known(
        static_cast<std::size_t>(std::max<std::int64_t>(experts, 1)));
    const octile_layer_operand x = operand(tensors.x.data());
    octile_layer_operand w = operand(tensors.w.data(), step.w_rowwise(), step.w_transposed());
    w.fingerprint = known.data();
    const auto expect_forward = [&](std::uint32_t first_changes, std::uint32_t last_changes) {
      step.forward(x, w, kKeeping | OCTILE_LAYER_COMPARE_W);
      EXPECT_EQ(step.y.bytes(), composed_step(library, c, tensors).y);
      EXPECT_EQ(known.front().changes, first_changes);
      EXPECT_EQ(known.back().changes, last_changes);
    };
    expect_forward(1, 1);
    expect_forward(1, 1);
    tensors.w.back() ^= 1;  // in the last expert
    expect_forward(experts == 0 ? 2 : 1, 2);
  }
}

TEST_F(Layers, MakeScalesFromThreeSteps) {
  for (const std::int64_t experts : {0, 3}) {
    LayerCase c;
    c.recipe = "delayed";
    c.history = 2;
    c.experts = experts;
    c.bias = experts == 0;
    std::vector<float> scaling;
    for (std::uint64_t round = 0; round < 3; ++round) {
      const LayerTensors tensors(c, round + 1);
      Step step(library, c, tensors);
      if (round > 0) step.scaling = scaling;
      LayerResults want = composed_step(library, c, tensors, step.scaling);
      step.fill_dw();
      const octile_layer_operand x = operand(tensors.x.data()), w = operand(tensors.w.data());
      step.forward(x, w, kTraining);
      step.backward(&x, &w, kTraining | step.bias_use());
      expect_results(step, want, c);
      octile_layer_update_args update{};
      update.struct_size = sizeof update;
      update.scaling = step.scaling.data();
      ASSERT_EQ(octile_layer_update_scales(step.layer(), &update, nullptr), OCTILE_OK)
          << octile_last_error();
      composed_update(library, c, want.scaling);
      EXPECT_EQ(step.scaling, want.scaling) << "step " << round;
      EXPECT_NE(step.scaling.front(), 1) << "the scale of X was updated";
      scaling = step.scaling;
    }
  }
}

// Several layers in one call are updated as each by itself; nothing between their states is
// touched.
TEST_F(Layers, UpdateTheScalesOfSeveralLayersAtOnce) {
  for (const std::int64_t experts : {0, 3}) {
    LayerCase c;
    c.recipe = "delayed";
    c.history = 4;
    c.experts = experts;
    c.bias = false;
    const LayerHandle layer = make_layer(library, c);
    std::int64_t elements = 0;
    ASSERT_EQ(octile_layer_scaling_size(layer.get(), &elements), OCTILE_OK);
    constexpr std::size_t kStates = 3;
    const auto size = static_cast<std::size_t>(elements), stride = size + 2;
    std::vector<float> all(stride * kStates);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<float>(i % 7) + 0.5F;
    std::vector<float> want = all;
    for (std::size_t i = 0; i < kStates; ++i) {
      const auto first = want.begin() + static_cast<std::ptrdiff_t>(i * stride);
      std::vector<float> one(first, first + elements);
      composed_update(library, c, one);
      std::ranges::copy(one, first);
    }
    octile_layer_update_args update{};
    update.struct_size = sizeof update;
    update.scaling = all.data();
    update.states = kStates;
    update.stride = static_cast<std::int64_t>(stride);
    ASSERT_EQ(octile_layer_update_scales(layer.get(), &update, nullptr), OCTILE_OK)
        << octile_last_error();
    EXPECT_EQ(all, want) << experts;
  }
}

// The first steps of delayed scaling: scales from the tensors themselves, and maxima for the next.
TEST_F(Layers, RecordMaximaWithCurrentScaling) {
  LayerCase c;
  c.recipe = "tensorwise";
  c.history = 2;
  const LayerTensors tensors(c);
  Step step(library, c, tensors);
  const LayerResults want = composed_step(library, c, tensors, step.scaling);
  const octile_layer_operand x = operand(tensors.x.data()), w = operand(tensors.w.data());
  step.fill_dw();
  step.forward(x, w, kTraining);
  step.backward(&x, &w, kTraining | step.bias_use());
  expect_results(step, want, c);
  EXPECT_EQ(step.scaling, want.scaling);
  EXPECT_GT(step.scaling[2], 0) << "X";
  EXPECT_GT(step.scaling[4], 0) << "dY";

  // Evaluation records nothing, with the state and without it.
  std::vector<float> state(step.scaling.size(), 0.0F);
  Guarded space = step.workspace(0, true);
  octile_layer_forward_args args = forward_args(c, tensors, &x, &w, step.y, space);
  args.scaling = state.data();
  ASSERT_EQ(octile_layer_forward(step.layer(), &args, nullptr), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(state, std::vector<float>(state.size(), 0.0F));
  args.scaling = nullptr;
  ASSERT_EQ(octile_layer_forward(step.layer(), &args, nullptr), OCTILE_OK) << octile_last_error();
}

TEST_F(Layers, SayWhichResultIsNotFinite) {
  LayerCase c;
  c.sentry = true;
  c.dtype = OCTILE_FP32;
  for (const int broken : {-1, 0, 1}) {  // nothing, X, dY
    LayerTensors tensors(c);
    const float infinity = std::numeric_limits<float>::infinity();
    if (broken >= 0) std::memcpy((broken == 0 ? tensors.x : tensors.dy).data(), &infinity, 4);
    Step step(library, c, tensors);
    step.fill_dw();
    const octile_layer_operand x = operand(tensors.x.data()), w = operand(tensors.w.data());
    step.forward(x, w, kTraining);
    step.backward(&x, &w, kTraining | step.bias_use());
    const LayerResults want = composed_step(library, c, tensors);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(step.sentry.at(i), want.sentry.at(i)) << i;
    EXPECT_EQ(step.sentry[0], broken == 0 ? 1U : 0U);
    EXPECT_EQ(step.sentry[1], broken == 1 ? 1U : 0U);
  }
}

TEST_F(Layers, TakeNoTokens) {
  for (const bool accumulate : {false, true}) {
    for (const std::int64_t experts : {0, 3}) {
      LayerCase c;
      c.tokens = 0;
      c.experts = experts;
      c.bias = experts == 0;
      c.accumulate = accumulate;
      const LayerTensors tensors(c);
      Step step(library, c, tensors);
      step.fill_dw();
      const octile_layer_operand nothing = operand(nullptr), w = operand(tensors.w.data());
      step.forward(nothing, operand(tensors.w.data(), step.w_rowwise()), OCTILE_LAYER_KEEP_W);
      EXPECT_FALSE(step.w_is_untouched()) << "its memory was given";
      step.backward(&nothing, &w, kTraining | step.bias_use());
      EXPECT_EQ(step.dw.bytes(),
                std::vector<unsigned char>(step.dw.size(), accumulate ? kAddend : 0));
      if (c.bias) {
        EXPECT_EQ(step.db.bytes(), std::vector<unsigned char>(step.db.size(), 0));
      }
    }
  }
}

// Rows that lie further apart than they are long, as slices of a larger tensor do.
TEST_F(Layers, TakeStrides) {
  LayerCase c;
  c.weight_dtype = c.dtype;
  const LayerTensors tensors(c);
  const LayerResults want = composed_step(library, c, tensors);
  Step step(library, c, tensors);
  const auto spread = [](const std::vector<unsigned char>& rows, std::int64_t columns,
                         std::int64_t ld) {
    const auto count = static_cast<std::int64_t>(rows.size()) / (2 * columns);
    std::vector<unsigned char> wide(static_cast<std::size_t>(2 * count * ld), 0xff);
    for (std::int64_t i = 0; i < count; ++i)
      std::memcpy(wide.data() + 2 * i * ld, rows.data() + 2 * i * columns,
                  static_cast<std::size_t>(2 * columns));
    return wide;
  };
  const std::vector<unsigned char> x = spread(tensors.x, c.k, c.k + 3);
  const std::vector<unsigned char> w = spread(tensors.w, c.k, c.k + 1);
  const std::int64_t ldy = c.n + 16;
  Guarded y(static_cast<std::size_t>(2 * c.tokens * ldy));
  octile_layer_operand of_x = operand(x.data()), of_w = operand(w.data());
  of_x.ld = c.k + 3;
  of_w.ld = c.k + 1;
  Guarded space = step.workspace(0, true);
  octile_layer_forward_args args = forward_args(c, tensors, &of_x, &of_w, y, space);
  args.ldy = ldy;
  ASSERT_EQ(octile_layer_forward(step.layer(), &args, nullptr), OCTILE_OK) << octile_last_error();
  std::vector<unsigned char> expected = spread(want.y, c.n, ldy);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const bool is_gap = static_cast<std::int64_t>(i / 2) % ldy >= c.n;
    if (is_gap) expected[i] = 0xa5;
  }
  EXPECT_EQ(y.bytes(), expected);
}

TEST_F(Layers, NameTheProblemsOfTheirUses) {
  const auto problems = [&](octile_layer* layer, std::uint32_t uses) {
    std::size_t size = 0;
    EXPECT_EQ(octile_layer_problems(layer, uses, nullptr, &size), OCTILE_OK) << octile_last_error();
    std::string text(size, '\0');
    EXPECT_EQ(octile_layer_problems(layer, uses, text.data(), &size), OCTILE_OK);
    text.pop_back();
    return text;
  };
  LayerCase c;
  const LayerHandle linear = make_layer(library, c);
  EXPECT_EQ(problems(linear.get(), 0), quantizer_text(c, 0, "row") + "\n" +
                                           quantizer_text(c, 1, "row") + "\n" + gemm_text(c, 0) +
                                           "\n");
  EXPECT_EQ(problems(linear.get(), kKeeping | OCTILE_LAYER_BIAS_GRADIENT),
            quantizer_text(c, 0, "both") + "\n" + quantizer_text(c, 1, "both") + "\n" +
                gemm_text(c, 0) + "\n" + quantizer_text(c, 2, "both", true) + "\n" +
                gemm_text(c, 1) + "\n" + gemm_text(c, 2) + "\n");
  EXPECT_EQ(problems(linear.get(), OCTILE_LAYER_WEIGHT_GRADIENT),
            quantizer_text(c, 0, "row") + "\n" + quantizer_text(c, 1, "row") + "\n" +
                gemm_text(c, 0) + "\n" + quantizer_text(c, 2, "col") + "\n" +
                quantizer_text(c, 0, "col") + "\n" + gemm_text(c, 2) + "\n");
  EXPECT_EQ(problems(linear.get(), kKeeping | OCTILE_LAYER_WITHOUT_BACKWARD),
            quantizer_text(c, 0, "both") + "\n" + quantizer_text(c, 1, "both") + "\n" +
                gemm_text(c, 0) + "\n");
  EXPECT_EQ(problems(linear.get(), OCTILE_LAYER_INPUT_GRADIENT | OCTILE_LAYER_WITHOUT_FORWARD),
            quantizer_text(c, 2, "row") + "\n" + quantizer_text(c, 1, "col") + "\n" +
                gemm_text(c, 1) + "\n");
  EXPECT_EQ(
      problems(linear.get(), kKeeping | OCTILE_LAYER_CURRENT_DY | OCTILE_LAYER_WITHOUT_FORWARD),
      gemm_text(c, 1) + "\n" + gemm_text(c, 2) + "\n");
  EXPECT_EQ(problems(linear.get(), kNoPass | OCTILE_LAYER_KEEP_X), "");
  EXPECT_EQ(problems(linear.get(), kNoPass | OCTILE_LAYER_KEEP_W),
            quantizer_text(c, 1, "row") + "\n");
  EXPECT_EQ(problems(linear.get(), kNoPass | OCTILE_LAYER_INPUT_GRADIENT),
            quantizer_text(c, 1, "col") + "\n");
  EXPECT_EQ(problems(linear.get(), kNoPass | kKeeping), quantizer_text(c, 1, "both") + "\n");
  const std::string type = "e4m3:128x128" + scale_suffix(c);
  EXPECT_EQ(problems(linear.get(), kHolding),
            quantizer_text(c, 0, "both") + "\n" + gemm_text(c, 0) + "\n" +
                quantizer_text(c, 2, "both") + "\n" + "transpose rows=? cols=272 x=" + type +
                " q=" + type + " out=col\n" + gemm_text(c, 1) + "\n" + gemm_text(c, 2) + "\n");
  EXPECT_EQ(problems(linear.get(), kNoPass | kHolding), "");
  c.recipe = "delayed";
  c.experts = 3;
  c.bias = false;
  c.history = 4;
  const LayerHandle experts = make_layer(library, c);
  const std::string updates = "quantize rows=? cols=16 x=bf16 q=e4m3:tensor" + scale_suffix(c) +
                              " out=row policy=delayed\n" +
                              "quantize rows=? cols=16 x=bf16 q=e5m2:tensor" + scale_suffix(c) +
                              " out=row policy=delayed\n";
  EXPECT_EQ(problems(experts.get(), OCTILE_LAYER_INPUT_GRADIENT | OCTILE_LAYER_KEEP_W),
            quantizer_text(c, 0, "row") + "\n" + quantizer_text(c, 1, "both") + " group=stacked\n" +
                gemm_text(c, 0) + "\n" + quantizer_text(c, 2, "row") + "\n" + gemm_text(c, 1) +
                "\n" + updates);
  EXPECT_EQ(problems(experts.get(), kNoPass | OCTILE_LAYER_KEEP_X), updates);
}

// A size of a pass is that of the pass alone, and 0 if the uses leave it out.
TEST_F(Layers, NeedNoMemoryForAPassThatIsLeftOut) {
  const LayerCase c;
  const LayerHandle layer = make_layer(library, c);
  const auto sizes = [&](std::uint32_t uses) {
    std::array<std::size_t, 2> bytes{1, 1};
    EXPECT_EQ(octile_layer_workspace_size(layer.get(), c.tokens, uses, &bytes[0], &bytes[1]),
              OCTILE_OK);
    return bytes;
  };
  const auto both = sizes(kKeeping);
  EXPECT_GT(both[0], 0U);
  EXPECT_GT(both[1], 0U);
  EXPECT_EQ(sizes(kKeeping | OCTILE_LAYER_WITHOUT_BACKWARD), (std::array{both[0], std::size_t{0}}));
  EXPECT_EQ(sizes(kKeeping | OCTILE_LAYER_WITHOUT_FORWARD), (std::array{std::size_t{0}, both[1]}));
}

// Checkpoints have the scales of 128x128 blocks without padding.
TEST_F(Layers, ReadScalesOfWThatLieAsInACheckpoint) {
  for (const std::int64_t experts : {0, 3}) {
    LayerCase c;
    c.recipe = "blockwise:f32";
    c.experts = experts;
    c.bias = false;
    const LayerTensors tensors(c);
    Step step(library, c, tensors);
    step.forward(operand(tensors.x.data()), operand(tensors.w.data(), step.w_rowwise()),
                 OCTILE_LAYER_KEEP_W);
    const std::vector<unsigned char> want = step.y.bytes();
    const octile_layer_operand padded_w = held(step.w_rowwise());
    step.backward(nullptr, &padded_w, OCTILE_LAYER_INPUT_GRADIENT | OCTILE_LAYER_HELD_W);
    const std::vector<unsigned char> want_dx = step.dx.bytes();
    const auto blocks = static_cast<std::size_t>((c.k + 127) / 128), padded = (blocks + 3) / 4 * 4;
    const auto rows =
        static_cast<std::size_t>(std::max<std::int64_t>(experts, 1) * ((c.n + 127) / 128));
    Guarded packed(rows * blocks * sizeof(float));
    const auto* scales = static_cast<const float*>(step.w_rowwise().scales);
    for (std::size_t row = 0; row < rows; ++row)
      std::memcpy(static_cast<float*>(packed.get()) + row * blocks, scales + row * padded,
                  blocks * sizeof(float));
    std::memset(step.y.get(), 0, step.y.size());
    octile_layer_operand w = current({step.w_rowwise().codes, packed.get()});
    w.scale_ld = static_cast<std::int64_t>(blocks);
    step.forward(operand(tensors.x.data()), w, OCTILE_LAYER_KEEP_W);
    EXPECT_EQ(step.y.bytes(), want) << experts << " experts";
    std::memset(step.y.get(), 0, step.y.size());
    std::memset(step.dx.get(), 0, step.dx.size());
    w.state = OCTILE_LAYER_CODES;
    step.forward(operand(tensors.x.data()), w, OCTILE_LAYER_HELD_W);
    step.backward(nullptr, &w, OCTILE_LAYER_INPUT_GRADIENT | OCTILE_LAYER_HELD_W);
    EXPECT_EQ(step.y.bytes(), want) << experts << " experts";
    EXPECT_EQ(step.dx.bytes(), want_dx) << experts << " experts";
  }
}

// A handle holds no tensor, so that layers of the same description share it.
TEST_F(Layers, ServeSeveralThreads) {
  const LayerCase c;
  const LayerHandle shared = make_layer(library, c);
  constexpr std::size_t kThreads = 4;
  std::vector<LayerTensors> tensors;
  std::vector<LayerResults> want;
  for (std::size_t i = 0; i < kThreads; ++i) {
    tensors.emplace_back(c, i);
    want.push_back(composed_step(library, c, tensors.back()));
  }
  std::array<std::vector<unsigned char>, kThreads> got;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      std::size_t bytes = 0;
      octile_layer_workspace_size(shared.get(), c.tokens, 0, &bytes, nullptr);
      Guarded space(bytes), y(want[i].y.size());
      const octile_layer_operand x = operand(tensors[i].x.data()), w = operand(tensors[i].w.data());
      const octile_layer_forward_args args = forward_args(c, tensors[i], &x, &w, y, space);
      if (octile_layer_forward(shared.get(), &args, nullptr) == OCTILE_OK) got.at(i) = y.bytes();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < kThreads; ++i) EXPECT_EQ(got.at(i), want[i].y) << i;
}

}  // namespace
}  // namespace octile::test
