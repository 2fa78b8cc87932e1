// Tests of layers on the host device: a layer, random tensors for one call of it, and the same work
// composed of octile_quantize_run and octile_gemm_run, whose problems are written out here.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "octile/layers.h"
#include "tests/support/api_handles.h"

namespace octile::test {

struct LayerCase {
  std::string recipe = "blockwise";
  std::int64_t experts = 0;
  std::int64_t tokens = 37;
  octile_dtype dtype = OCTILE_BF16;
  octile_dtype weight_dtype = OCTILE_FP32;
  octile_dtype gradient_dtype = OCTILE_FP32;
  bool accumulate = true, bias = true, sentry = false;
  std::int64_t history = 0;
  std::int64_t n = 144, k = 272;  // past one 128-wide block, with a tail
};
inline void PrintTo(const LayerCase& c, std::ostream* out) {
  *out << c.recipe << (c.experts > 0 ? " of experts" : "") << ", " << c.tokens << " tokens";
}

struct LayerDelete {
  void operator()(octile_layer* layer) const { EXPECT_EQ(octile_layer_destroy(layer), OCTILE_OK); }
};
using LayerHandle = std::unique_ptr<octile_layer, LayerDelete>;

// The recipe's name is the case's.
octile_layer_desc desc_of(const LayerCase& c);
octile_layer_desc desc_of(LayerCase&& c) = delete;
LayerHandle make_layer(const LibraryHandle& library, const LayerCase& c,
                       const char* device = "host");

// Aligned memory whose bytes are 0xa5 at first, with bytes behind it that nothing may write.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes = 0);
  void* get() { return bytes_ == 0 ? nullptr : at(); }
  std::size_t size() const { return bytes_; }
  std::vector<unsigned char> bytes() const;
  bool untouched() const;  // still as it was made
  bool guard_holds() const;

 private:
  static constexpr std::size_t kGuard = 64;
  unsigned char* at() const;

  std::size_t bytes_;
  std::vector<unsigned char> storage_;
};

// The memory of one FP8 copy.
struct CopyMemory {
  Guarded codes, scales;
  octile_layer_copy get() { return {codes.get(), scales.get()}; }
};
CopyMemory memory_of_copy(octile_layer* layer, octile_layer_tensor tensor, bool transposed,
                          std::int64_t tokens);

octile_layer_operand operand(const void* source, octile_layer_copy rowwise = {},
                             octile_layer_copy transposed = {});
octile_layer_operand current(octile_layer_copy rowwise, octile_layer_copy transposed = {});
octile_layer_operand held(octile_layer_copy rowwise);  // W as codes

// Random X, W, dY and bias of a case, and the offsets of its experts' tokens, of which one has
// none.
struct LayerTensors {
  explicit LayerTensors(const LayerCase& c, std::uint64_t seed = 1);
  std::vector<unsigned char> x, w, dy, bias;
  std::vector<std::int32_t> offsets;

  const std::int32_t* groups() const { return offsets.empty() ? nullptr : offsets.data(); }
};

// The types of a call.
struct LayerWorkspace {
  void* memory = nullptr;
  std::size_t bytes = 0;
};

// Returns the arguments of a call of `tokens` tokens. Arguments that a call may lack are null: the
// bias, the groups, what is recorded, and the results of backward.
octile_layer_forward_args forward_args(std::int64_t tokens, const octile_layer_operand* x,
                                       const octile_layer_operand* w, void* y,
                                       LayerWorkspace workspace);
octile_layer_backward_args backward_args(std::int64_t tokens, const octile_layer_operand* dy,
                                         const octile_layer_operand* x,
                                         const octile_layer_operand* w, LayerWorkspace workspace);
// The same with a case's tokens, bias and groups.
octile_layer_forward_args forward_args(const LayerCase& c, const LayerTensors& tensors,
                                       const octile_layer_operand* x, const octile_layer_operand* w,
                                       Guarded& y, Guarded& workspace);
octile_layer_backward_args backward_args(const LayerCase& c, const LayerTensors& tensors,
                                         const octile_layer_operand* dy,
                                         const octile_layer_operand* x,
                                         const octile_layer_operand* w, Guarded& workspace);

// The results of one step.
struct LayerResults {
  std::vector<unsigned char> y, dx, dw, db;
  std::vector<unsigned char> x_transposed, x_scales;  // what forward keeps
  std::vector<float> scaling;
  std::vector<std::uint32_t> sentry;
};

// The bytes of dW before a step, and those of results that a call has not written.
inline constexpr unsigned char kAddend = 0x3c;

// Returns what a step must give, computed by plans of single quantisers and GEMMs. `scaling` is the
// state before, and the results have the one after.
LayerResults composed_step(const LibraryHandle& library, const LayerCase& c,
                           const LayerTensors& tensors, std::vector<float> scaling = {});
// Ends a step of delayed scaling by octile_scale_update_run.
void composed_update(const LibraryHandle& library, const LayerCase& c, std::vector<float>& scaling);

// Returns the texts of the quantiser and of the GEMMs of a case. role: 0 X, 1 W, 2 dY.
std::string quantizer_text(const LayerCase& c, int role, const char* out, bool sums = false);
std::string gemm_text(const LayerCase& c, int pass);  // 0 forward, 1 dX, 2 dW
std::string scale_suffix(const LayerCase& c);         // ":pow2" if the recipe's scales are

}  // namespace octile::test
