// Layers that cannot be made, and calls of them that are wrong: each says what is wrong in a
// sentence, and leaves the results alone.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/layer_case.h"

namespace octile::test {
namespace {

using Parts = std::vector<std::string>;

// Gives an enum a value that it does not have, as C callers can.
template <typename Enum>
void set_raw(Enum& field, int value) {
  static_assert(sizeof field == sizeof value);
  std::memcpy(&field, &value, sizeof value);
}

class BadLayers : public ::testing::Test {
 protected:
  LibraryHandle library{""};
};

TEST_F(BadLayers, AreNotMade) {
  struct Case {
    std::function<void(octile_layer_desc&)> change;
    octile_status status;
    Parts parts;
  };
  const auto invalid = [](std::function<void(octile_layer_desc&)> change, Parts parts) {
    return Case{std::move(change), OCTILE_INVALID_ARGUMENT, std::move(parts)};
  };
  const std::string long_name(70000, 'x');
  const std::vector<Case> cases{
      invalid([](auto& d) { d.struct_size = 3; }, {"desc->struct_size is 3"}),
      invalid([](auto& d) { d.recipe = nullptr; }, {"desc->recipe is null"}),
      invalid([](auto& d) { d.recipe = "fp4"; }, {"desc->recipe is 'fp4'; allowed are blockwise"}),
      invalid([&](auto& d) { d.recipe = long_name.c_str(); }, {"desc->recipe has more than"}),
      invalid([](auto& d) { d.n = 0; }, {"desc->n is 0; allowed: multiples of 16 from 16"}),
      invalid([](auto& d) { d.k = 24; }, {"desc->k is 24; allowed: multiples of 16"}),
      invalid([](auto& d) { d.k = -16; }, {"desc->k is -16"}),
      invalid([](auto& d) { d.n = std::int64_t{1} << 40; },
              {"desc->n is 1099511627776; allowed: multiples of 16 from 16 to 2147483632"}),
      invalid(
          [](auto& d) {
            d.n = d.k = std::int64_t{1} << 30;
            d.experts = 64;
          },
          {"desc->experts is 64", "2^63 - 1"}),
      invalid([](auto& d) { d.experts = -1; }, {"desc->experts is -1; allowed: 0"}),
      invalid([](auto& d) { d.experts = 1025; }, {"desc->experts is 1025", "1024"}),
      invalid([](auto& d) { d.experts = 2; }, {"desc->bias_dtype is bf16 and desc->experts is 2"}),
      invalid([](auto& d) { d.dtype = static_cast<octile_dtype>(0); }, {"desc->dtype is 0"}),
      invalid([](auto& d) { d.dtype = OCTILE_E4M3; }, {"desc->dtype is e4m3; allowed: bf16"}),
      invalid([](auto& d) { d.weight_dtype = OCTILE_E5M2; }, {"desc->weight_dtype is e5m2"}),
      invalid([](auto& d) { set_raw(d.weight_dtype, 9); },
              {"desc->weight_dtype is 9; allowed: a value of octile_dtype"}),
      invalid([](auto& d) { d.weight_gradient_dtype = OCTILE_E4M3; },
              {"desc->weight_gradient_dtype is e4m3"}),
      invalid([](auto& d) { d.bias_dtype = OCTILE_FP16; }, {"desc->bias_dtype is fp16"}),
      invalid([](auto& d) { d.history = 1; }, {"desc->history is 1; allowed: 0 with recipe"}),
      invalid([](auto& d) { d.recipe = "delayed"; },
              {"desc->history is 0", "'delayed': 1 to 65536"}),
      invalid(
          [](auto& d) {
            d.recipe = "tensorwise";
            d.history = 65537;
          },
          {"desc->history is 65537", "0 to 65536"}),
      {[](auto& d) {
         d.recipe = "mxfp8";
         d.experts = 2;
         d.bias_dtype = static_cast<octile_dtype>(0);
       },
       OCTILE_UNSUPPORTED,
       {"groups of operands with MX scales"}},
  };
  const LayerCase plain;
  for (const Case& c : cases) {
    octile_layer_desc desc = desc_of(plain);
    c.change(desc);
    octile_layer* layer = nullptr;
    expect_refused(octile_layer_create(library.get(), "host", &desc, &layer), c.status, c.parts);
    EXPECT_EQ(layer, nullptr);
  }
  const octile_layer_desc desc = desc_of(plain);
  octile_layer* layer = nullptr;
  expect_refused(octile_layer_create(library.get(), "tpu", &desc, &layer), OCTILE_INVALID_ARGUMENT,
                 {"tpu"});
  expect_refused(octile_layer_create(nullptr, "host", &desc, &layer), OCTILE_INVALID_ARGUMENT,
                 {"library is null"});
  expect_refused(octile_layer_create(library.get(), "host", &desc, nullptr),
                 OCTILE_INVALID_ARGUMENT, {"layer is null"});
}

// One valid call each way, of which each test changes one thing.
class BadCalls : public ::testing::Test {
 protected:
  explicit BadCalls(const LayerCase& layer_case = {})
      : c(layer_case),
        layer(make_layer(library, layer_case)),
        tensors(layer_case),
        copies{memory_of_copy(layer.get(), OCTILE_LAYER_X, true, c.tokens),
               memory_of_copy(layer.get(), OCTILE_LAYER_W, false, c.tokens),
               memory_of_copy(layer.get(), OCTILE_LAYER_W, true, c.tokens)},
        x(operand(tensors.x.data(), {}, copies[0].get())),
        w(operand(tensors.w.data())),
        dy(operand(tensors.dy.data())) {
    std::size_t forward_bytes = 0, backward_bytes = 0;
    EXPECT_EQ(
        octile_layer_workspace_size(layer.get(), c.tokens, kUses, &forward_bytes, &backward_bytes),
        OCTILE_OK);
    space = Guarded(std::max(forward_bytes, backward_bytes));
    forward = forward_args(c, tensors, &x, &w, y, space);
    forward.workspace_bytes = forward_bytes;
    backward = backward_args(c, tensors, &dy, &x, &w, space);
    backward.workspace_bytes = backward_bytes;
    backward.dx = dx.get();
    backward.dw = dw.get();
    backward.bias_gradient = c.bias ? static_cast<float*>(db.get()) : nullptr;
  }

  void refuses_forward(const std::function<void(octile_layer_forward_args&)>& change,
                       const Parts& parts, octile_status status = OCTILE_INVALID_ARGUMENT) {
    octile_layer_forward_args args = forward;
    change(args);
    expect_refused(octile_layer_forward(layer.get(), &args, nullptr), status, parts);
    EXPECT_TRUE(y.untouched() && copies[0].codes.untouched() && space.untouched());
    x = operand(tensors.x.data(), {}, copies[0].get());
    w = operand(tensors.w.data());
  }
  void refuses_backward(const std::function<void(octile_layer_backward_args&)>& change,
                        const Parts& parts, octile_status status = OCTILE_INVALID_ARGUMENT) {
    octile_layer_backward_args args = backward;
    change(args);
    expect_refused(octile_layer_backward(layer.get(), &args, nullptr), status, parts);
    EXPECT_TRUE(dx.untouched() && dw.untouched() && db.untouched() && space.untouched());
    x = operand(tensors.x.data());
    w = operand(tensors.w.data());
    dy = operand(tensors.dy.data());
  }

  static constexpr std::uint32_t kUses = OCTILE_LAYER_INPUT_GRADIENT | OCTILE_LAYER_WEIGHT_GRADIENT;
  static void* odd(void* pointer) { return static_cast<char*>(pointer) + 1; }

  LibraryHandle library{""};
  LayerCase c;
  LayerHandle layer;
  LayerTensors tensors;
  CopyMemory copies[3];  // X transposed, W row-wise and transposed
  Guarded y{37 * 144 * 2}, dx{37 * 272 * 2}, dw{3 * 144 * 272 * 4}, db{144 * 4}, space;
  octile_layer_operand x, w, dy;
  octile_layer_forward_args forward{};
  octile_layer_backward_args backward{};
};

TEST_F(BadCalls, OfForward) {
  refuses_forward([](auto& a) { a.struct_size = 8; }, {"args->struct_size is 8"});
  refuses_forward([](auto& a) { a.tokens = -1; }, {"tokens is -1"});
  refuses_forward([](auto& a) { a.tokens = std::int64_t{1} << 40; }, {"tokens is 1099511627776"});
  refuses_forward([](auto& a) { a.x = nullptr; }, {"x is null; allowed: a pointer"});
  refuses_forward([](auto& a) { a.w = nullptr; }, {"w is null; allowed: a pointer"});
  refuses_forward([](auto& a) { a.y = nullptr; }, {"y is null"});
  refuses_forward([](auto& a) { a.y = odd(a.y); }, {"y is 0x", "16 bytes"});
  refuses_forward([](auto& a) { a.ldy = 143; }, {"ldy is 143"});
  refuses_forward([](auto& a) { a.ldy = 145; }, {"ldy is 145", "multiple of 8"});
  refuses_forward([](auto& a) { a.ldy = std::int64_t{1} << 40; }, {"ldy is", "2^40 bytes"});
  refuses_forward([](auto& a) { a.bias = nullptr; }, {"bias is null"});
  refuses_forward([](auto& a) { a.workspace = nullptr; }, {"workspace is null"});
  refuses_forward([](auto& a) { a.workspace = odd(a.workspace); }, {"workspace is 0x"});
  refuses_forward([](auto& a) { --a.workspace_bytes; },
                  {"workspace_bytes is", "octile_layer_workspace_size"});
  std::int32_t offsets[2] = {};
  refuses_forward([&](auto& a) { a.group_offsets = offsets; }, {"group_offsets is given"});
  float state = 0;
  refuses_forward([&](auto& a) { a.scaling = &state; }, {"scaling is given", "no history"});
  std::uint32_t word = 0;
  refuses_forward([&](auto& a) { a.sentry = &word; }, {"sentry is given", "no sentry"});
  refuses_forward([](auto& a) { a.sm_limit = -1; }, {"sm_limit is -1"});
  refuses_forward([](auto& a) { a.flags = 2; }, {"flags is 0x2"});
  refuses_forward([](auto& a) { a.flags = OCTILE_RUN_B_READY; },
                  {"OCTILE_RUN_B_READY", "w is OCTILE_LAYER_QUANTIZE"});
}

TEST_F(BadCalls, OfOperands) {
  const auto with_x = [&](const std::function<void(octile_layer_operand&)>& change,
                          const Parts& parts) {
    change(x);
    refuses_forward([](auto&) {}, parts);
  };
  const auto with_w = [&](const std::function<void(octile_layer_operand&)>& change,
                          const Parts& parts) {
    change(w);
    refuses_forward([](auto&) {}, parts);
  };
  with_x([](auto& o) { o.struct_size = 1; }, {"args->x->struct_size is 1"});
  with_x([](auto& o) { set_raw(o.state, 2); },
         {"x.state is 2; allowed: a value of octile_layer_state"});
  with_x([](auto& o) { o.source = nullptr; }, {"x.source is null"});
  with_x([](auto& o) { o.source = static_cast<const char*>(o.source) + 1; }, {"x.source is 0x"});
  with_x([](auto& o) { o.ld = 271; }, {"x.ld is 271"});
  with_x([](auto& o) { o.ld = std::int64_t{1} << 60; }, {"x.ld is", "2^63 - 1"});
  with_x([](auto& o) { o.transposed.scales = nullptr; }, {"x.transposed.scales is null"});
  with_x([](auto& o) { o.transposed.codes = nullptr; }, {"x.transposed.codes is null"});
  with_x([](auto& o) { o.transposed.codes = odd(o.transposed.codes); },
         {"x.transposed.codes is 0x", "16 bytes"});
  const std::uint32_t word = 0;
  with_x([&](auto& o) { o.skip = &word; }, {"x.skip is given", "only W"});
  with_x([](auto& o) { o.state = OCTILE_LAYER_CURRENT; },
         {"x.rowwise.codes is null", "OCTILE_LAYER_CURRENT"});
  with_w([](auto& o) { o.state = OCTILE_LAYER_CURRENT; }, {"w.rowwise.codes is null"});
  with_w([&](auto& o) { o.skip = &word; },
         {"w.skip is given and w.rowwise.codes is null; allowed: a pointer"});
  with_w(
      [&](auto& o) {
        o.rowwise = copies[1].get();
        o.skip = reinterpret_cast<const std::uint32_t*>(odd(copies[1].get().codes));
      },
      {"w.skip is 0x"});
  with_w(
      [&](auto& o) {
        o = current(copies[1].get());
        o.skip = &word;
      },
      {"w.skip is given", "w is OCTILE_LAYER_CURRENT"});
  with_x([](auto& o) { o.scale_ld = 3; }, {"x.scale_ld is 3; allowed: 0"});
  with_x([](auto& o) { o.whole_columns = 288; }, {"x.whole_columns is 288; allowed: 0", "dY"});
  with_w([](auto& o) { o.scale_ld = 3; }, {"w.scale_ld is 3; allowed: 0", "OCTILE_LAYER_CURRENT"});
  with_w(
      [&](auto& o) {
        o = current(copies[1].get());
        o.scale_ld = 2;
      },
      {"w.scale_ld is 2", "from 3 on"});
}

TEST_F(BadCalls, OfBackward) {
  refuses_backward([](auto& a) { a.dy = nullptr; }, {"dy is null; allowed: a pointer"});
  refuses_backward([](auto& a) { a.x = nullptr; }, {"x is null"});
  refuses_backward([](auto& a) { a.w = nullptr; }, {"w is null"});
  refuses_backward([](auto& a) { a.dx = odd(a.dx); }, {"dx is 0x"});
  refuses_backward([](auto& a) { a.lddx = 4; }, {"lddx is 4"});
  refuses_backward([](auto& a) { a.dw = odd(a.dw); }, {"dw is 0x"});
  refuses_backward([](auto& a) { a.lddw = 273; }, {"lddw is 273", "multiple of 4"});
  refuses_backward([](auto& a) { a.bias_gradient = static_cast<float*>(odd(a.bias_gradient)); },
                   {"bias_gradient is 0x"});
  refuses_backward([](auto& a) { --a.workspace_bytes; }, {"workspace_bytes is"});
  x = current({}, {});
  refuses_backward([](auto&) {}, {"x.transposed.codes is null"});
  const auto part = [&](std::int64_t columns) {
    dy = current(copies[0].get(), copies[0].get());
    dy.whole_columns = columns;
  };
  dy.whole_columns = 288;
  refuses_backward([](auto&) {}, {"dy.whole_columns is 288; allowed: 0, because only a dY"});
  part(296);
  refuses_backward([](auto&) {}, {"dy.whole_columns is 296", "multiple of 16"});
  part(128);
  refuses_backward([](auto&) {}, {"dy.whole_columns is 128", "from 144 on"});
  part(0);
  refuses_backward([](auto&) {}, {"bias_gradient is given and dy is OCTILE_LAYER_CURRENT"});
}

TEST_F(BadCalls, OfTheRest) {
  octile_layer_quantize_args args{};
  args.struct_size = sizeof args;
  args.tensor = OCTILE_LAYER_W;
  const auto refuses = [&](const Parts& parts) {
    expect_refused(octile_layer_quantize(layer.get(), &args, nullptr), OCTILE_INVALID_ARGUMENT,
                   parts);
  };
  refuses({"w is null"});
  args.operand = &w;
  refuses({"w.rowwise and w.transposed are null"});
  w = current(copies[1].get());
  refuses({"w is OCTILE_LAYER_CURRENT"});
  w = operand(nullptr, copies[1].get());
  refuses({"w.source is null"});
  set_raw(args.tensor, 7);
  refuses({"args->tensor is 7; allowed: a value of octile_layer_tensor"});
  args.tensor = OCTILE_LAYER_X;
  args.tokens = -1;
  refuses({"tokens is -1"});
  octile_layer_update_args update{};
  update.struct_size = sizeof update;
  expect_refused(octile_layer_update_scales(layer.get(), &update, nullptr), OCTILE_INVALID_ARGUMENT,
                 {"the layer's recipe is 'blockwise'", "delayed"});
  expect_refused(octile_layer_prepare(layer.get(), 1, 8, 512), OCTILE_INVALID_ARGUMENT,
                 {"uses is 0x200; allowed: bits of octile_layer_use, up to 0x1ff"});
  expect_refused(
      octile_layer_prepare(layer.get(), 1, 8, OCTILE_LAYER_CURRENT_DY | OCTILE_LAYER_BIAS_GRADIENT),
      OCTILE_INVALID_ARGUMENT,
      {"uses is 0x110; allowed with OCTILE_LAYER_CURRENT_DY (0x100): no "
       "OCTILE_LAYER_BIAS_GRADIENT (0x10)"});
  expect_refused(octile_layer_prepare(layer.get(), 1, 8, OCTILE_LAYER_COMPARE_W),
                 OCTILE_INVALID_ARGUMENT,
                 {"uses is 0x80; allowed with OCTILE_LAYER_COMPARE_W (0x80): OCTILE_LAYER_KEEP_W"});
  expect_refused(octile_layer_prepare(layer.get(), 8, 1, 0), OCTILE_INVALID_ARGUMENT,
                 {"lo is 8 and hi is 1"});
  expect_refused(octile_layer_prepare(layer.get(), -1, 1, 0), OCTILE_INVALID_ARGUMENT,
                 {"lo is -1"});
  octile_quantized_layout layout{};
  layout.struct_size = sizeof layout;
  expect_refused(
      octile_layer_copy_layout(layer.get(), static_cast<octile_layer_tensor>(3), 0, 1, &layout),
      OCTILE_INVALID_ARGUMENT, {"tensor is 3"});
  expect_refused(octile_layer_copy_layout(layer.get(), OCTILE_LAYER_X, 0, -1, &layout),
                 OCTILE_INVALID_ARGUMENT, {"tokens is -1"});
  expect_refused(octile_layer_workspace_size(layer.get(), -1, 0, nullptr, nullptr),
                 OCTILE_INVALID_ARGUMENT, {"tokens is -1"});
  expect_refused(octile_layer_scaling_size(layer.get(), nullptr), OCTILE_INVALID_ARGUMENT,
                 {"elements is null"});
  expect_refused(octile_layer_problems(layer.get(), 0, nullptr, nullptr), OCTILE_INVALID_ARGUMENT,
                 {"size is null"});
}

class BadCallsOfExperts : public BadCalls {
 protected:
  static LayerCase experts() {
    LayerCase made;
    made.experts = 3;
    made.bias = false;
    return made;
  }
  BadCallsOfExperts() : BadCalls(experts()) {}
};

TEST_F(BadCallsOfExperts, NameGroupsAndBias) {
  refuses_forward([](auto& a) { a.group_offsets = nullptr; }, {"group_offsets is null"});
  refuses_forward([&](auto& a) { a.bias = tensors.bias.data(); }, {"bias is given"});
  refuses_backward([](auto& a) { a.group_offsets = nullptr; }, {"group_offsets is null"});
  refuses_backward([&](auto& a) { a.bias_gradient = static_cast<float*>(db.get()); },
                   {"bias_gradient is given", "experts"});
  expect_refused(octile_layer_prepare(layer.get(), 1, 8, OCTILE_LAYER_BIAS_GRADIENT),
                 OCTILE_INVALID_ARGUMENT, {"OCTILE_LAYER_BIAS_GRADIENT", "experts"});
}

TEST_F(BadLayers, DelayedScalingNeedsItsState) {
  LayerCase c;
  c.recipe = "delayed";
  c.history = 1;
  const LayerHandle layer = make_layer(library, c);
  octile_layer_update_args update{};
  update.struct_size = sizeof update;
  expect_refused(octile_layer_update_scales(layer.get(), &update, nullptr), OCTILE_INVALID_ARGUMENT,
                 {"scaling is null"});
  float state[4] = {1, 1, 0, 0};
  update.scaling = state;
  update.choice = OCTILE_AMAX_AVERAGE;
  update.average_share = 0.5F;
  expect_refused(octile_layer_update_scales(layer.get(), &update, nullptr), OCTILE_INVALID_ARGUMENT,
                 {"OCTILE_AMAX_AVERAGE", "history is 1"});
  update.choice = OCTILE_AMAX_LARGEST;
  update.margin = 127;
  expect_refused(octile_layer_update_scales(layer.get(), &update, nullptr), OCTILE_INVALID_ARGUMENT,
                 {"margin is 127"});
  update.margin = 0;
  update.stride = 3;
  expect_refused(octile_layer_update_scales(layer.get(), &update, nullptr), OCTILE_INVALID_ARGUMENT,
                 {"stride is 3; allowed: 0, or at least 4"});
  update.stride = 0;
  update.states = -1;
  expect_refused(octile_layer_update_scales(layer.get(), &update, nullptr), OCTILE_INVALID_ARGUMENT,
                 {"states is -1"});
  const octile_layer_forward_args args = forward_args(1, nullptr, nullptr, nullptr, {});
  expect_refused(octile_layer_forward(layer.get(), &args, nullptr), OCTILE_INVALID_ARGUMENT,
                 {"scaling is null"});
}

// The matrix has no backward pass of experts with scales per row. Their forward pass runs.
TEST_F(BadLayers, SayWhichPassIsUnsupported) {
  LayerCase c;
  c.recipe = "rowwise";
  c.experts = 3;
  c.bias = false;
  const LayerHandle layer = make_layer(library, c);
  std::size_t bytes = 0;
  EXPECT_EQ(octile_layer_workspace_size(layer.get(), 8, 0, &bytes, nullptr), OCTILE_OK);
  const Parts parts{"a scale of a column would be a group's alone"};
  for (const std::uint32_t use : {OCTILE_LAYER_KEEP_X, OCTILE_LAYER_WEIGHT_GRADIENT}) {
    expect_refused(octile_layer_workspace_size(layer.get(), 8, use, &bytes, nullptr),
                   OCTILE_UNSUPPORTED, parts);
    expect_refused(octile_layer_prepare(layer.get(), 8, 8, use), OCTILE_UNSUPPORTED, parts);
    expect_refused(octile_layer_problems(layer.get(), use, nullptr, &bytes), OCTILE_UNSUPPORTED,
                   parts);
  }
}

// A device that is only a name compiles and does not run.
TEST_F(BadLayers, OfADeviceNameDoNotRun) {
  const LayerCase c;
  const LayerHandle layer = make_layer(library, c, "h200");
  const LayerTensors tensors(c);
  const octile_layer_operand x = operand(tensors.x.data()), w = operand(tensors.w.data());
  Guarded y(static_cast<std::size_t>(c.tokens * c.n) * 2), space(1 << 20);
  const octile_layer_forward_args args = forward_args(c, tensors, &x, &w, y, space);
  expect_refused(octile_layer_forward(layer.get(), &args, nullptr), OCTILE_DEVICE_ERROR,
                 {"the layer's device is \"h200\"", "a name to compile for"});
}

}  // namespace
}  // namespace octile::test
