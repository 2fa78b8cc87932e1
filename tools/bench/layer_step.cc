#include "tools/bench/layer_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "generator/core/sum_bits.h"
#include "runtime/layers/description.h"
#include "runtime/measure/random_operands.h"

namespace octile::tools {
namespace {

constexpr std::array kTensorNames{"quantise X", "quantise W", "quantise dY"};
constexpr std::size_t kWeight = 1;  // among the tensors
constexpr std::uint32_t kUses = OCTILE_LAYER_KEEP_X | OCTILE_LAYER_KEEP_W |
                                OCTILE_LAYER_INPUT_GRADIENT | OCTILE_LAYER_WEIGHT_GRADIENT;

void* behind(const DeviceBuffer& buffer, std::int64_t bytes) {
  return static_cast<char*>(buffer.pointer()) + bytes;
}

// X, W, dY, Y and dX are bf16, and dW is added to in fp32.
layers::Description description_of(const Recipe& recipe, const LayerShape& shape) {
  layers::Description description;
  description.recipe = &recipe;
  description.n = shape.n;
  description.k = shape.k;
  description.experts = shape.experts;
  description.weight_gradient_dtype = DType::kFP32;
  description.accumulate = true;
  description.history = description.is_delayed() ? 1 : 0;
  return description;
}

octile_layer_desc desc_of(const layers::Description& description) {
  octile_layer_desc desc{};
  desc.recipe = description.recipe->name.data();  // a literal
  desc.n = description.n;
  desc.k = description.k;
  desc.experts = description.experts;
  desc.dtype = OCTILE_BF16;
  desc.weight_gradient_dtype = OCTILE_FP32;
  desc.accumulate = 1;
  desc.history = description.history;
  return desc;
}

octile_layer_copy copy_of(const DeviceTensor& tensor) {
  return {tensor.data.pointer(), tensor.scales.pointer()};
}

const std::int32_t* offsets_of(const GemmGroups* groups) {
  return groups == nullptr ? nullptr : static_cast<const std::int32_t*>(groups->device.pointer());
}

// Returns scales of 1 and maxima of 0.
Result<DeviceBuffer> make_scaling(const GpuSession& gpu, const LayerHandle& layer,
                                  std::int64_t experts) {
  std::int64_t elements = 0;
  if (Status ok = check(octile_layer_scaling_size(layer.get(), &elements)); !ok)
    return tl::unexpected<Error>(ok.error());
  if (elements == 0) return DeviceBuffer();
  std::vector<float> state(static_cast<std::size_t>(elements), 0.0F);
  std::fill_n(state.begin(), 2 * std::max<std::int64_t>(experts, 1), 1.0F);
  return gpu.upload(state.data(), state.size() * sizeof(float));
}

}  // namespace

Status check_layer_extent(std::string_view name, std::int64_t value) {
  if (value > 0 && value % layers::kMultiple == 0) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} is {}; allowed are positive multiples of 16: each dimension is the "
                          "sum's in one of the GEMMs",
                          name, value));
}

Status check_layer_supported(const Recipe& recipe, const LayerShape& shape) {
  const layers::Description description = description_of(recipe, shape);
  std::vector<Problem> problems;
  for (const Pass pass : kStepPasses) problems.emplace_back(layers::gemm(description, pass));
  for (const auto role : {layers::Role::kX, layers::Role::kW, layers::Role::kDy})
    problems.emplace_back(layers::quantizer(description, role, QuantizeOutput::kBoth, false));
  for (const Problem& problem : problems) {
    if (Status ok = check_supported(problem); !ok) return ok;
  }
  return {};
}

octile_layer_operand LayerTensor::operand(octile_layer_state state) const {
  return layer_operand(state, x.pointer(), copy_of(rowwise), copy_of(transposed));
}

Result<LayerStep> LayerStep::create(const BenchContext& context, const Recipe& recipe,
                                    const LayerShape& shape) {
  LayerStep step;
  step.shape_ = shape;
  auto layer = LayerHandle::create(context.library, context.gpu.device(),
                                   desc_of(description_of(recipe, shape)));
  if (!layer) return tl::unexpected<Error>(layer.error());
  step.layer_ = std::move(*layer);
  Status ok = step.layer_.prepare(shape.m, kUses);
  for (const octile_layer_tensor tensor : {OCTILE_LAYER_X, OCTILE_LAYER_W, OCTILE_LAYER_DY}) {
    if (ok) ok = step.create_tensor(context, recipe, tensor);
  }
  if (ok) ok = step.create_results(context.gpu, recipe);
  if (ok) ok = step.create_workspace(context.gpu);
  if (!ok) return tl::unexpected<Error>(ok.error());
  auto scaling = make_scaling(context.gpu, step.layer_, shape.experts);
  if (!scaling) return tl::unexpected<Error>(scaling.error());
  step.scaling_ = std::move(*scaling);
  return step;
}

// Returns room for a copy, zero: a GEMM may read columns that no group has.
Result<DeviceTensor> LayerStep::empty_copy(const GpuSession& gpu, const TensorType& type,
                                           octile_layer_tensor tensor, bool transposed) const {
  const auto layout = layer_.copy_layout(tensor, transposed, shape_.m);
  if (!layout) return tl::unexpected<Error>(layout.error());
  const auto make = [&](std::int64_t bytes) -> Result<DeviceBuffer> {
    auto buffer = gpu.allocate(static_cast<std::size_t>(bytes));
    if (!buffer) return buffer;
    if (Status ok = buffer->fill(0, gpu.stream()); !ok) return tl::unexpected<Error>(ok.error());
    return buffer;
  };
  auto data = make(layout->data_bytes);
  if (!data) return tl::unexpected<Error>(data.error());
  auto scales = make(layout->scale_bytes);
  if (!scales) return tl::unexpected<Error>(scales.error());
  const std::int64_t tokens = shape_.m, columns = tensor == OCTILE_LAYER_DY ? shape_.n : shape_.k;
  const std::int64_t count =
      tensor == OCTILE_LAYER_W ? std::max<std::int64_t>(shape_.experts, 1) : 1;
  const std::int64_t rows = tensor == OCTILE_LAYER_W ? shape_.n : tokens;
  return DeviceTensor{type, count * (transposed ? columns : rows), transposed ? rows : columns,
                      std::move(*data), std::move(*scales)};
}

Status LayerStep::create_tensor(const BenchContext& context, const Recipe& recipe,
                                octile_layer_tensor tensor) {
  const std::array types{recipe.activation, recipe.weight, recipe.gradient};
  const TensorType& type = types.at(tensor);
  const bool is_w = tensor == OCTILE_LAYER_W;
  const std::int64_t columns = tensor == OCTILE_LAYER_DY ? shape_.n : shape_.k;
  const std::int64_t rows = is_w ? std::max<std::int64_t>(shape_.experts, 1) * shape_.n : shape_.m;
  auto x = random_bf16(context.gpu, (rows + kSpareRows) * columns, 10 + tensors_.size());
  if (!x) return tl::unexpected<Error>(x.error());
  auto rowwise = empty_copy(context.gpu, type, tensor, false);
  if (!rowwise) return tl::unexpected<Error>(rowwise.error());
  auto transposed = empty_copy(context.gpu, type, tensor, true);
  if (!transposed) return tl::unexpected<Error>(transposed.error());
  tensors_.push_back({std::move(*x), std::move(*rowwise), std::move(*transposed)});
  return {};
}

Status LayerStep::create_results(const GpuSession& gpu, const Recipe& recipe) {
  for (const Pass pass : kStepPasses) {
    const GemmProblem problem = layers::gemm(description_of(recipe, shape_), pass);
    auto d = gpu.allocate(static_cast<std::size_t>(matrices_of(problem, shape_.m).d_rows *
                                                   problem.n * size_of(problem.d.dtype)));
    if (!d) return tl::unexpected<Error>(d.error());
    problems_.push_back(problem);
    results_.push_back(std::move(*d));
  }
  return {};
}

Status LayerStep::create_workspace(const GpuSession& gpu) {
  const auto bytes = layer_.workspace_bytes(shape_.m, kUses);
  if (!bytes) return tl::unexpected<Error>(bytes.error());
  auto buffer = gpu.allocate(*bytes);
  if (!buffer) return tl::unexpected<Error>(buffer.error());
  workspace_ = std::move(*buffer);
  return {};
}

std::string LayerStep::name_of(std::size_t part) {
  if (part < kTensors) return kTensorNames.at(part);
  return std::string(octile::name_of(kStepPasses.at(part - kTensors)));
}

Status LayerStep::run(const GemmGroups* groups, CUstream stream) const {
  Status ok = forward(OCTILE_LAYER_QUANTIZE, groups, stream);
  if (ok) ok = backward(OCTILE_LAYER_QUANTIZE, true, true, groups, stream);
  return ok;
}

Status LayerStep::run_part(std::size_t part, const GemmGroups* groups, CUstream stream) const {
  if (part < kTensors) return quantise(part, groups, stream);
  const Pass pass = kStepPasses.at(part - kTensors);
  if (pass == Pass::kFprop) return forward(OCTILE_LAYER_CURRENT, groups, stream);
  return backward(OCTILE_LAYER_CURRENT, pass == Pass::kDgrad, pass == Pass::kWgrad, groups, stream);
}

Status LayerStep::quantise(std::size_t i, const GemmGroups* groups, CUstream stream) const {
  const octile_layer_operand operand = tensors_[i].operand(OCTILE_LAYER_QUANTIZE);
  octile_layer_quantize_args args{};
  args.tensor = static_cast<octile_layer_tensor>(i);
  args.tokens = shape_.m;
  args.operand = &operand;
  args.workspace = workspace_.pointer();
  args.workspace_bytes = workspace_.bytes();
  args.group_offsets = offsets_of(groups);
  args.scaling = static_cast<float*>(scaling_.pointer());
  args.record_x = 1;
  return layer_.run(args, stream);
}

Status LayerStep::forward(octile_layer_state state, const GemmGroups* groups,
                          CUstream stream) const {
  const octile_layer_operand x = tensors_[0].operand(state), w = tensors_[kWeight].operand(state);
  octile_layer_forward_args args{};
  args.tokens = shape_.m;
  args.x = &x;
  args.w = &w;
  args.y = results_[0].pointer();
  args.workspace = workspace_.pointer();
  args.workspace_bytes = workspace_.bytes();
  args.group_offsets = offsets_of(groups);
  args.scaling = static_cast<float*>(scaling_.pointer());
  args.record_x = 1;
  return layer_.run(args, stream);
}

Status LayerStep::backward(octile_layer_state of_dy, bool dx, bool dw, const GemmGroups* groups,
                           CUstream stream) const {
  const octile_layer_operand x = tensors_[0].operand(OCTILE_LAYER_CURRENT),
                             w = tensors_[kWeight].operand(OCTILE_LAYER_CURRENT),
                             dy = tensors_[2].operand(of_dy);
  octile_layer_backward_args args{};
  args.tokens = shape_.m;
  args.dy = &dy;
  args.x = &x;
  args.w = &w;
  args.dx = dx ? results_[1].pointer() : nullptr;
  args.dw = dw ? results_[2].pointer() : nullptr;
  args.workspace = workspace_.pointer();
  args.workspace_bytes = workspace_.bytes();
  args.group_offsets = offsets_of(groups);
  args.scaling = static_cast<float*>(scaling_.pointer());
  return layer_.run(args, stream);
}

std::pair<const DeviceTensor*, const DeviceTensor*> LayerStep::operands(Pass pass) const {
  const LayerTensor &x = tensors_[0], &w = tensors_[kWeight], &dy = tensors_[2];
  switch (pass) {
    case Pass::kFprop:
      return {&x.rowwise, &w.rowwise};
    case Pass::kDgrad:
      return {&dy.rowwise, &w.transposed};
    case Pass::kWgrad:
      break;
  }
  return {&dy.transposed, &x.transposed};
}

Result<std::vector<GemmCheck>> LayerStep::check(const GpuSession& gpu, const GemmGroups* groups) {
  Status ok;
  for (DeviceBuffer& d : results_) {
    if (ok) ok = d.fill(kAddendByte, gpu.stream());
  }
  if (ok) ok = run(groups, gpu.stream());
  if (ok) ok = gpu.synchronize();
  if (!ok) return tl::unexpected<Error>(ok.error());
  std::vector<GemmCheck> checks;
  for (std::size_t pass = 0; pass < problems_.size(); ++pass) {
    auto check = check_product(gpu, pass, groups);
    if (!check) return tl::unexpected<Error>(check.error());
    checks.push_back(std::move(*check));
  }
  return checks;
}

Result<GemmCheck> LayerStep::check_product(const GpuSession& gpu, std::size_t pass,
                                           const GemmGroups* groups) const {
  const GemmProblem& problem = problems_[pass];
  const auto [a, b] = operands(kStepPasses.at(pass));
  const auto host_a = download(gpu, *a);
  if (!host_a) return tl::unexpected<Error>(host_a.error());
  const auto host_b = download(gpu, *b);
  if (!host_b) return tl::unexpected<Error>(host_b.error());
  const auto d = download(gpu, results_[pass]);
  if (!d) return tl::unexpected<Error>(d.error());
  GemmAddends addends{nullptr, addend_of(problem), shape_.m, nullptr};
  if (groups != nullptr) addends.group_rows = groups->host.data();
  return check_gemm(problem, *host_a, *host_b, d->data(), addends, nullptr,
                    coarsest_sums(gpu.spec()));
}

LtMatmul::Operands LayerStep::bf16_operands(Pass pass, std::int64_t expert,
                                            std::int64_t row) const {
  const auto [m, n, k, experts] = shape_;
  const void* x = behind(tensors_[0].x, row * k * size_of(DType::kBF16));
  const void* w = behind(tensors_[kWeight].x, expert * n * k * size_of(DType::kBF16));
  const void* dy = behind(tensors_[2].x, row * n * size_of(DType::kBF16));
  switch (pass) {
    case Pass::kFprop:
      return {x, nullptr, w, nullptr, behind(results_[0], row * n * size_of(DType::kBF16))};
    case Pass::kDgrad:
      return {dy, nullptr, w, nullptr, behind(results_[1], row * k * size_of(DType::kBF16))};
    case Pass::kWgrad:
      break;
  }
  return {dy, nullptr, x, nullptr, behind(results_[2], expert * n * k * size_of(DType::kFP32))};
}

}  // namespace octile::tools
