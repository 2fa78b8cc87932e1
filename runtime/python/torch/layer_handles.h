// Handles of the library's layers: one for each description in this process. They are made when
// first needed and never destroyed, as plans are (plans.h), and a child of fork makes its own.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_LAYER_HANDLES_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_LAYER_HANDLES_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "octile/layers.h"
#include "plans.h"
#include "recipes.h"
#include "tensors.h"

namespace octile::binding {

// octile_layer_desc, and the device.
struct LayerKey {
  RecipeCode recipe = 0;
  std::int64_t n = 0, k = 0;
  std::int64_t experts = 0;  // 0: a linear layer
  octile_dtype type{};       // of X, Y, dY and dX
  octile_dtype weight{}, gradient{};
  bool accumulate = false;  // into dW
  octile_dtype bias{};      // 0: none
  bool sentry = false;
  std::int64_t history = 0;
  std::int32_t device = -1;  // -1: the host

  friend bool operator==(const LayerKey&, const LayerKey&) = default;
};
std::int32_t device_of(const Place& place);

// A handle, and the uses (octile_layer_use) of the calls that were made with it.
class KnownLayer {
 public:
  explicit KnownLayer(octile_layer* handle) : handle_(handle) {}

  octile_layer* handle() const { return handle_; }
  void note(std::uint32_t uses);
  // Returns the problems of all uses so far, a line each, some several times.
  std::string problems() const;

 private:
  static constexpr std::uint32_t kWord = 64;
  static constexpr std::uint32_t kSets = 2 * OCTILE_LAYER_HELD_W;  // of octile_layer_use bits

  octile_layer* handle_;
  std::array<std::atomic<std::uint64_t>, kSets / kWord> uses_{};  // a bit for each set of bits
};

// Sizes that calls with some uses and a token count need.
struct LayerSizes {
  std::int64_t tokens = -1;
  std::uint32_t uses = 0;
  std::size_t workspace = 0;       // of the pass that the uses do not leave out
  octile_quantized_layout kept{};  // the transposed copy of X; with OCTILE_LAYER_KEEP_X
};

// A layer as a thread has it at hand. Finding it again takes no lock and asks the library nothing.
class Layer {
 public:
  // Throws if octile_layer_create refuses the layer. The result is good until the thread's next
  // call.
  static Layer& of(const LayerKey& key);

  octile_layer* handle() const { return known_->handle(); }
  const LayerSizes& sizes(std::int64_t tokens, std::uint32_t uses);

  // Calls `call`, and again once the kernels for these tokens and uses are prepared, if they were
  // not.
  template <typename Call>
  void run(std::int64_t tokens, std::uint32_t uses, Call call) {
    octile_status status = call(handle());
    if (status == OCTILE_NOT_PREPARED || status == OCTILE_CAPTURING) {
      check(octile_layer_prepare(handle(), tokens, tokens, uses));
      status = call(handle());
    }
    check(status);
    known_->note(uses);
  }
  // Compiles or finds the kernels for lo to hi tokens.
  void prepare(std::int64_t lo, std::int64_t hi, std::uint32_t uses);

 private:
  std::uint64_t process_ = 0;
  LayerKey key_;
  KnownLayer* known_ = nullptr;
  std::array<LayerSizes, 4> sizes_{};  // the last ones
  std::size_t oldest_ = 0;
};

// Returns the texts of all problems that layers of this process have asked, a line each, some
// several times.
std::string layer_problems();

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_LAYER_HANDLES_H_
