// The step of a layer as training runs it, by octile/layers.h: one call forward and one backward.
//
//   Y[m,n] = X[m,k] W[n,k]^T      dX[m,k] = dY[m,n] W[n,k]      dW[n,k] += dY[m,n]^T X[m,k]
//
// The same step in parts is beside it: quantise X, W and dY, each from one read, then three GEMMs.
//
// The layer is linear, or it is one of several experts. Then the rows of X and dY are in contiguous
// groups, one for each expert, and W and dW are a matrix for each.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "generator/core/recipe.h"
#include "generator/gemm/passes.h"
#include "octile/layers.h"
#include "runtime/prove/gemm/operands.h"
#include "tools/bench/measurement.h"

namespace octile::tools {

inline constexpr std::array kStepPasses{Pass::kFprop, Pass::kDgrad, Pass::kWgrad};

// n and k are multiples of 16. So is m, unless there are experts.
struct LayerShape {
  std::int64_t m = 0, n = 0, k = 0;  // m: tokens, those of all experts
  std::int64_t experts = 0;          // 0: the layer is linear
};

// Refuses what is not a positive multiple of 16. The sentence begins with `name`.
Status check_layer_extent(std::string_view name, std::int64_t value);
// Refuses a layer of which a GEMM or a quantiser does not exist.
Status check_layer_supported(const Recipe& recipe, const LayerShape& shape);

// A tensor of the layer: bf16, and its two quantised copies.
struct LayerTensor {
  DeviceBuffer x;
  DeviceTensor rowwise, transposed;

  octile_layer_operand operand(octile_layer_state state) const;
};

// One step's tensors and results, and the layer. Parts are numbered in the order of the step:
// quantise X, W and dY, then fprop, dgrad and wgrad.
class LayerStep {
 public:
  static constexpr std::size_t kTensors = 3;
  static constexpr std::size_t kParts = kTensors + kStepPasses.size();

  // The shape and the recipe were checked. Errors: those of preparing.
  static Result<LayerStep> create(const BenchContext& context, const Recipe& recipe,
                                  const LayerShape& shape);

  const LayerShape& shape() const { return shape_; }
  static std::string name_of(std::size_t part);
  // Runs the whole step, or one part of it. `groups` has the offsets of the experts' rows; null if
  // the layer is linear.
  Status run(const GemmGroups* groups, CUstream stream) const;
  Status run_part(std::size_t part, const GemmGroups* groups, CUstream stream) const;
  // Runs one step and compares the three results with FP64 on the quantised operands. Every byte of
  // the results is kAddendByte before, and dW is added to that.
  Result<std::vector<GemmCheck>> check(const GpuSession& gpu, const GemmGroups* groups);

  // Returns the tensors of a GEMM in bf16 that has the extents of the expert's GEMM of this pass.
  // `row` is the expert's first row of X and dY. kSpareRows rows behind the last exist. Where our
  // GEMM reads a transposed copy, this one reads the tensor as it lies: its result serves timing
  // only.
  static constexpr std::int64_t kSpareRows = 8;
  LtMatmul::Operands bf16_operands(Pass pass, std::int64_t expert, std::int64_t row) const;

 private:
  Status create_tensor(const BenchContext& context, const Recipe& recipe,
                       octile_layer_tensor tensor);
  Status create_results(const GpuSession& gpu, const Recipe& recipe);
  Status create_workspace(const GpuSession& gpu);
  Result<DeviceTensor> empty_copy(const GpuSession& gpu, const TensorType& type,
                                  octile_layer_tensor tensor, bool transposed) const;
  Status quantise(std::size_t i, const GemmGroups* groups, CUstream stream) const;
  Status forward(octile_layer_state state, const GemmGroups* groups, CUstream stream) const;
  Status backward(octile_layer_state of_dy, bool dx, bool dw, const GemmGroups* groups,
                  CUstream stream) const;
  std::pair<const DeviceTensor*, const DeviceTensor*> operands(Pass pass) const;
  Result<GemmCheck> check_product(const GpuSession& gpu, std::size_t pass,
                                  const GemmGroups* groups) const;

  LayerShape shape_;
  LayerHandle layer_;
  std::vector<LayerTensor> tensors_;   // X, W, dY
  std::vector<GemmProblem> problems_;  // by pass, with an open token count
  std::vector<DeviceBuffer> results_;  // by pass
  DeviceBuffer workspace_;             // empty if no call needs any
  DeviceBuffer scaling_;               // state of recipe "delayed"
};

}  // namespace octile::tools
