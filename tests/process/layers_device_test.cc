// Layers on the fake device, whose kernels a fake NVRTC compiles: what is launched, that exactly
// the kernels of the uses are prepared, and what a call says whose kernels are not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "runtime/driver/buffer.h"
#include "runtime/driver/stream.h"
#include "tests/support/fake_device.h"
#include "tests/support/layer_case.h"

namespace octile::test {
namespace {

// The fake NVRTC's cubins have one kernel each, so that nothing here sums dY's columns.
constexpr std::uint32_t kGradients = OCTILE_LAYER_INPUT_GRADIENT | OCTILE_LAYER_WEIGHT_GRADIENT;

// A linear layer on the device, and memory for its calls. Nothing executes the launches.
class LayersOnADevice : public ::testing::Test {
 protected:
  LayersOnADevice() {
    ::setenv("OCTILE_LIBNVRTC", OCTILE_FAKE_NVRTC_PATH, 1);
    device.fake.set_executor(nullptr, nullptr);
    x = operand(block.at());
    w = operand(block.at());
    dy = operand(block.at());
  }
  ~LayersOnADevice() override { ::unsetenv("OCTILE_LIBNVRTC"); }

  static LayerCase small(std::int64_t tokens = 8) {
    LayerCase c;
    c.recipe = "blockwise_hybrid";  // whose dY has kernels of its own
    c.n = c.k = 64;
    c.tokens = tokens;
    return c;
  }
  octile_layer_copy copy(std::size_t at) { return {block.at(at), block.at(at + 4096 * 4)}; }

  octile_status forward(octile_layer* layer, std::int64_t tokens, void* stream = nullptr) {
    octile_layer_forward_args args = forward_args(tokens, &x, &w, block.at(), {block.at(), kBytes});
    args.bias = block.at();
    return octile_layer_forward(layer, &args, stream);
  }
  octile_status backward(octile_layer* layer, std::int64_t tokens, std::uint32_t uses,
                         void* stream = nullptr) {
    octile_layer_backward_args args = backward_args(tokens, &dy, &x, &w, {block.at(), kBytes});
    if ((uses & OCTILE_LAYER_INPUT_GRADIENT) != 0) args.dx = block.at();
    if ((uses & OCTILE_LAYER_WEIGHT_GRADIENT) != 0) args.dw = block.at();
    if ((uses & OCTILE_LAYER_BIAS_GRADIENT) != 0) args.bias_gradient = block.at<float>();
    return octile_layer_backward(layer, &args, stream);
  }
  // Gives the operands what calls with these uses have.
  void use(std::uint32_t uses, bool of_forward) {
    const bool keeps_x = (uses & OCTILE_LAYER_KEEP_X) != 0;
    const bool keeps_w = (uses & OCTILE_LAYER_KEEP_W) != 0;
    const bool both = (uses & OCTILE_LAYER_INPUT_GRADIENT) != 0;
    x = operand(block.at());
    w = operand(block.at());
    if (keeps_x) x = of_forward ? operand(block.at(), {}, copy(0)) : current({}, copy(0));
    if (!keeps_w) return;
    const octile_layer_copy transposed = both ? copy(0) : octile_layer_copy{};
    w = of_forward ? operand(block.at(), copy(0), transposed) : current(copy(0), transposed);
  }
  std::vector<std::string> launches() {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < device.fake.launch_count(); ++i) {
      fake_cuda_launch launch = {};
      EXPECT_EQ(device.fake.get_launch(i, &launch), 1);
      names.emplace_back(launch.kernel);
    }
    return names;
  }

  static constexpr std::size_t kBytes = 1 << 20;
  FakeDevice device;
  TempFolder cache;
  Bytes block{kBytes};
  octile_layer_operand x{}, w{}, dy{};
};

bool begins(const std::string& text, const char* with) { return text.starts_with(with); }

TEST_F(LayersOnADevice, LaunchTheirParts) {
  const LibraryHandle library(cache.path());
  const LayerHandle layer = make_layer(library, small(), "cuda:0");
  const std::uint32_t uses = kGradients | OCTILE_LAYER_KEEP_X | OCTILE_LAYER_KEEP_W;
  ASSERT_EQ(octile_layer_prepare(layer.get(), 8, 8, uses), OCTILE_OK) << octile_last_error();
  use(uses, true);
  ASSERT_EQ(forward(layer.get(), 8), OCTILE_OK) << octile_last_error();
  use(uses, false);
  ASSERT_EQ(backward(layer.get(), 8, uses), OCTILE_OK) << octile_last_error();
  const std::vector<std::string> got = launches();
  ASSERT_GE(got.size(), 6U);
  EXPECT_TRUE(begins(got[0], "octile_quantize_bf16_e4m3_1x128")) << got[0] << ": X";
  EXPECT_TRUE(begins(got[1], "octile_quantize_fp32_e4m3_128x128")) << got[1] << ": W";
  EXPECT_TRUE(begins(got[2], "octile_gemm")) << got[2] << ": Y";
  EXPECT_TRUE(begins(got[3], "octile_quantize_bf16_e5m2_1x128")) << got[3] << ": dY";
  EXPECT_TRUE(begins(got[got.size() - 2], "octile_gemm")) << "dX";
  EXPECT_TRUE(begins(got.back(), "octile_gemm")) << "dW comes last";

  // W's copies are current: a step of inference is one quantiser and one GEMM.
  use(OCTILE_LAYER_KEEP_W, false);
  x = operand(block.at(), {}, copy(0));
  const std::size_t before = device.fake.launch_count();
  ASSERT_EQ(forward(layer.get(), 8), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(device.fake.launch_count() - before, 2U);
}

// Every set of uses prepares the kernels that its calls run, and no more.
TEST_F(LayersOnADevice, PrepareExactlyTheirUses) {
  for (const std::uint32_t uses : {std::uint32_t{0}, std::uint32_t{OCTILE_LAYER_KEEP_W},
                                   std::uint32_t{OCTILE_LAYER_WEIGHT_GRADIENT}, kGradients,
                                   kGradients | OCTILE_LAYER_KEEP_X | OCTILE_LAYER_KEEP_W}) {
    const LibraryHandle library(cache.path());
    const LayerHandle layer = make_layer(library, small(), "cuda:0");
    const std::size_t loaded = device.fake.call_count("cuLibraryLoadData");
    ASSERT_EQ(octile_layer_prepare(layer.get(), 8, 8, uses), OCTILE_OK) << octile_last_error();
    std::size_t size = 0;
    ASSERT_EQ(octile_layer_problems(layer.get(), uses, nullptr, &size), OCTILE_OK);
    std::string problems(size, '\0');
    ASSERT_EQ(octile_layer_problems(layer.get(), uses, problems.data(), &size), OCTILE_OK);
    const auto lines = std::ranges::count(problems, '\n');
    EXPECT_EQ(device.fake.call_count("cuLibraryLoadData") - loaded, static_cast<std::size_t>(lines))
        << uses;
    use(uses, true);
    EXPECT_EQ(forward(layer.get(), 8), OCTILE_OK) << uses << ": " << octile_last_error();
    use(uses, false);
    EXPECT_EQ(backward(layer.get(), 8, uses), OCTILE_OK) << uses << ": " << octile_last_error();
  }
}

TEST_F(LayersOnADevice, ArePreparedPassByPass) {
  const LibraryHandle library(cache.path());
  const LayerHandle layer = make_layer(library, small(), "cuda:0");
  const std::uint32_t uses = kGradients | OCTILE_LAYER_KEEP_X | OCTILE_LAYER_KEEP_W;
  const auto prepare = [&](std::uint32_t without) {
    const std::size_t loaded = device.fake.call_count("cuLibraryLoadData");
    EXPECT_EQ(octile_layer_prepare(layer.get(), 8, 8, uses | without), OCTILE_OK);
    return device.fake.call_count("cuLibraryLoadData") - loaded;
  };
  EXPECT_EQ(prepare(OCTILE_LAYER_WITHOUT_BACKWARD), 3U) << "X, W, Y";
  use(uses, true);
  EXPECT_EQ(forward(layer.get(), 8), OCTILE_OK) << octile_last_error();
  use(uses, false);
  expect_refused(backward(layer.get(), 8, uses), OCTILE_NOT_PREPARED, {"8 tokens"});
  EXPECT_EQ(prepare(OCTILE_LAYER_WITHOUT_FORWARD), 3U) << "dY, dX, dW";
  EXPECT_EQ(backward(layer.get(), 8, uses), OCTILE_OK) << octile_last_error();
}

TEST_F(LayersOnADevice, SayForWhichUsesNothingIsPrepared) {
  const LibraryHandle library(cache.path());
  const LayerHandle layer = make_layer(library, small(), "cuda:0");
  expect_refused(forward(layer.get(), 8), OCTILE_NOT_PREPARED,
                 {"8 tokens are not prepared for the uses 0 (inference)", "octile_layer_prepare"});
  ASSERT_EQ(octile_layer_prepare(layer.get(), 8, 8, 0), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(forward(layer.get(), 8), OCTILE_OK) << octile_last_error();
  const std::size_t before = device.fake.launch_count();
  expect_refused(forward(layer.get(), 64), OCTILE_NOT_PREPARED, {"64 tokens", "0 (inference)"});
  use(OCTILE_LAYER_KEEP_X, true);
  expect_refused(forward(layer.get(), 8), OCTILE_NOT_PREPARED, {"the uses KEEP_X (0x1)"});
  use(OCTILE_LAYER_KEEP_W | OCTILE_LAYER_INPUT_GRADIENT, true);
  expect_refused(forward(layer.get(), 8), OCTILE_NOT_PREPARED,
                 {"the uses KEEP_W | INPUT_GRADIENT (0x6)"});
  use(OCTILE_LAYER_KEEP_X, false);
  expect_refused(backward(layer.get(), 8, kGradients), OCTILE_NOT_PREPARED,
                 {"KEEP_X | INPUT_GRADIENT | WEIGHT_GRADIENT (0xd)"});
  EXPECT_EQ(device.fake.launch_count(), before) << "a call is refused before it enqueues a part";

  auto [context, current_context] = device.enter();
  auto stream = Stream::create(device.driver);
  use(OCTILE_LAYER_KEEP_X, true);
  auto graph = Graph::capture(device.driver, stream->get(), [&]() -> Status {
    expect_refused(forward(layer.get(), 8, stream->get()), OCTILE_CAPTURING,
                   {"KEEP_X (0x1)", "capturing", "before the capture begins"});
    return {};
  });
  EXPECT_TRUE(graph) << graph.error().message;
}

TEST_F(LayersOnADevice, RunInsideACapture) {
  const LibraryHandle library(cache.path());
  const LayerHandle layer = make_layer(library, small(), "cuda:0");
  ASSERT_EQ(octile_layer_prepare(layer.get(), 8, 8, kGradients), OCTILE_OK) << octile_last_error();
  auto [context, current_context] = device.enter();
  auto stream = Stream::create(device.driver);
  auto graph = Graph::capture(device.driver, stream->get(), [&]() -> Status {
    EXPECT_EQ(forward(layer.get(), 8, stream->get()), OCTILE_OK) << octile_last_error();
    EXPECT_EQ(backward(layer.get(), 8, kGradients, stream->get()), OCTILE_OK)
        << octile_last_error();
    EXPECT_EQ(device.fake.launch_count(), 0U);
    return {};
  });
  ASSERT_TRUE(graph) << graph.error().message;
  ASSERT_TRUE(graph->launch(stream->get()));
  EXPECT_EQ(device.fake.launch_count(), 8U) << "five quantisers and three GEMMs";
}

// Without tokens dW becomes zero, without a launch.
TEST_F(LayersOnADevice, ClearTheirWeightGradientWithoutTokens) {
  LayerCase c = small();
  c.accumulate = false;
  const LibraryHandle library(cache.path());
  const LayerHandle layer = make_layer(library, c, "cuda:0");
  ASSERT_EQ(octile_layer_prepare(layer.get(), 0, 0, kGradients), OCTILE_OK) << octile_last_error();
  auto [context, current_context] = device.enter();
  auto dw = DeviceBuffer::allocate(device.driver, 64 * 64 * 4);
  ASSERT_TRUE(dw->fill(0x5a, nullptr));
  octile_layer_backward_args args = backward_args(0, nullptr, nullptr, nullptr, {});
  args.dw = dw->pointer();
  ASSERT_EQ(octile_layer_backward(layer.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(device.fake.launch_count(), 0U);
  std::vector<unsigned char> got(64 * 64 * 4);
  ASSERT_TRUE(dw->download(got.data(), got.size(), nullptr));
  EXPECT_TRUE(std::ranges::all_of(got, [](unsigned char b) { return b == 0; }));
}

}  // namespace
}  // namespace octile::test
