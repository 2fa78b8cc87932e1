// A layer on the host device with memory refused at every n-th request, and its handle in a child
// of fork: the call succeeds or says OUT_OF_MEMORY, nothing is lost, and dW is added to once.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/process/faults.h"
#include "tests/process/recorded_calls.h"
#include "tests/support/layer_case.h"

namespace octile::test {
namespace {

class LayerMemory : public ::testing::Test {
 protected:
  LayerMemory() {
    case_.recipe = "delayed";
    case_.history = 1;
    case_.n = case_.k = 32;
    case_.tokens = 4;
    for (Bytes* matrix : {&x_, &w_, &dy_}) {
      for (int i = 0; i < 32 * 32; ++i) matrix->at<float>()[i] = static_cast<float>(i % 7);
    }
  }

  // Makes a layer, and calls it once each way. Returns true if backward ran.
  bool pass(Pass& p) {
    octile_library_options options = {};
    options.struct_size = sizeof(options);
    options.disable_cache = 1;
    options.compile_threads = 2;
    octile_library* library = nullptr;
    if (!p.call(octile_library_create(&options, &library))) return false;
    const octile_layer_desc desc = desc_of(case_);
    octile_layer* layer = nullptr;
    bool ran = false;
    if (p.call(octile_layer_create(library, "host", &desc, &layer))) {
      p.call(octile_layer_prepare(layer, 1, 4, 31));
      std::size_t size = sizeof text_;
      p.call(octile_layer_problems(layer, 31, text_, &size));
      p.call(octile_layer_workspace_size(layer, 4, 31, &size, nullptr));
      p.call(forward(layer));
      ran = p.call(backward(layer));
      octile_layer_update_args update{};
      update.struct_size = sizeof update;
      update.scaling = state_;
      p.call(octile_layer_update_scales(layer, &update, nullptr));
      p.call(octile_layer_destroy(layer));
    }
    p.call(octile_library_destroy(library));
    return ran;
  }

  octile_status forward(octile_layer* layer) {
    const octile_layer_operand x = operand(x_.at()), w = operand(w_.at());
    octile_layer_forward_args args = forward_args(4, &x, &w, y_.at(), {space_.at(), 1 << 16});
    args.bias = dy_.at();
    args.scaling = state_;
    return octile_layer_forward(layer, &args, nullptr);
  }
  octile_status backward(octile_layer* layer) {
    const octile_layer_operand dy = operand(dy_.at()), x = operand(x_.at()), w = operand(w_.at());
    octile_layer_backward_args args = backward_args(4, &dy, &x, &w, {space_.at(), 1 << 16});
    args.dx = y_.at();
    args.dw = dw_.at();
    args.bias_gradient = db_.at<float>();
    args.scaling = state_;
    return octile_layer_backward(layer, &args, nullptr);
  }

  void reset() {
    std::memset(dw_.at(), 0, 32 * 32 * 4);
    const float state[6] = {1, 1, 1, 0, 0, 0};
    std::memcpy(state_, state, sizeof state);
  }
  std::vector<float> dw() { return {dw_.at<float>(), dw_.at<float>() + 32 * 32}; }

  LayerCase case_;
  Bytes x_{1 << 13}, w_{1 << 13}, dy_{1 << 13}, y_{1 << 13}, dw_{1 << 13}, db_{1 << 8},
      space_{1 << 16};
  float state_[6] = {};
  char text_[4096];
};

TEST_F(LayerMemory, IsRefusedWithoutLosses) {
  Pass whole;
  reset();
  ASSERT_TRUE(pass(whole));
  const std::vector<float> want = dw();
  octile_layer_destroy(reinterpret_cast<octile_layer*>(&whole));  // this thread's sentence
  const std::int64_t before = live_blocks();
  std::int64_t refused = 0;
  for (std::int64_t n = 1;; ++n) {
    Pass p;
    reset();
    Refusal refusal(Refuse::kMemory, n, Extent::kOnce);
    const bool ran = pass(p);
    refusal.end();
    for (int i = 0; i < p.calls; ++i) {
      if (p.status[i] == OCTILE_OK) continue;
      ASSERT_EQ(p.status[i], OCTILE_OUT_OF_MEMORY) << "request " << n << ": " << p.sentence[i];
    }
    ASSERT_EQ(dw(), ran ? want : std::vector<float>(32 * 32, 0.0F)) << "request " << n;
    if (refusal.refused() == 0) break;
    ++refused;
  }
  EXPECT_GT(refused, 100);
  EXPECT_EQ(live_blocks(), before);
}

TEST_F(LayerMemory, OfTheParentIsNotTheChilds) {
  const LibraryHandle library("", true);
  const LayerHandle layer = make_layer(library, case_);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto refused = [](octile_status status) {
      return status == OCTILE_INVALID_ARGUMENT &&
             std::strstr(octile_last_error(), "layer was made before fork()") != nullptr;
    };
    std::size_t bytes = 0;
    const bool right = refused(forward(layer.get())) && refused(backward(layer.get())) &&
                       refused(octile_layer_prepare(layer.get(), 1, 1, 0)) &&
                       refused(octile_layer_workspace_size(layer.get(), 1, 0, &bytes, &bytes)) &&
                       refused(octile_layer_destroy(layer.get()));
    Pass own;
    reset();
    ::_exit(right && pass(own) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace octile::test
