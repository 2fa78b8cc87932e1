// A layer: a description with its plans. It holds no tensor and never changes, so that calls of
// several threads share nothing. octile/layers.h documents the calls.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "generator/core/error.h"
#include "generator/core/layout.h"
#include "octile/layers.h"
#include "runtime/layers/description.h"
#include "runtime/layers/plans.h"

namespace octile::layers {

class Run;

// Arguments as the C API reads them, with the operands in place of pointers to them. The
// struct_size of an operand that the caller passed as null is 0.
struct ForwardCall {
  octile_layer_forward_args args{};
  octile_layer_operand x{}, w{};
};
struct BackwardCall {
  octile_layer_backward_args args{};
  octile_layer_operand dy{}, x{}, w{};
};
struct QuantizeCall {
  octile_layer_quantize_args args{};
  octile_layer_operand operand{};
};

struct WorkspaceSizes {
  std::int64_t forward = 0, backward = 0;
};

class Layer {
 public:
  // The library outlives the layer.
  static Result<std::unique_ptr<Layer>> create(Library& library, const Description& description,
                                               const Target& target);

  // Returns what octile_layer_prepare prepares.
  Result<std::vector<Plan::Range>> ranges(std::int64_t lo, std::int64_t hi,
                                          std::uint32_t uses) const;
  Result<std::string> problems(std::uint32_t uses) const;
  Result<QuantizedLayout> copy_layout(Role role, bool transposed, std::int64_t tokens) const;
  Result<WorkspaceSizes> workspace_sizes(std::int64_t tokens, std::uint32_t uses) const;
  std::int64_t scaling_elements() const;
  const Description& description() const { return description_; }
  const Plans& plans() const { return plans_; }

  Status forward(const ForwardCall& call, CUstream stream) const;
  Status backward(const BackwardCall& call, CUstream stream) const;
  Status quantize(const QuantizeCall& call, CUstream stream) const;
  Status update_scales(const octile_layer_update_args& args, CUstream stream) const;

 private:
  Layer(const Description& description, Plans plans)
      : description_(description), plans_(std::move(plans)) {}

  Description description_;
  Plans plans_;
};

}  // namespace octile::layers
