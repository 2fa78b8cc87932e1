#include "tools/bench/layer_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "generator/quantize/layout.h"
#include "runtime/families/gemm/tensor_arguments.h"
#include "runtime/measure/random_operands.h"
#include "tools/demo/quantizing.h"

namespace octile::tools {
namespace {

constexpr std::array kTensorNames{"quantise X", "quantise W", "quantise dY"};
constexpr std::size_t kWeight = 1;  // among the tensors

void* behind(const DeviceBuffer& buffer, std::int64_t bytes) {
  return static_cast<char*>(buffer.pointer()) + bytes;
}

// Returns the problem that quantises a tensor in both directions. Rows of X and dY are in groups if
// there are experts.
QuantizeProblem both_copies(std::int64_t cols, const TensorType& type, bool grouped) {
  QuantizeProblem problem = quantize_problem(cols, type);
  problem.output = QuantizeOutput::kBoth;
  problem.grouping = grouped ? Grouping::kContiguous : Grouping::kNone;
  return problem;
}

GemmProblem product(const Recipe& recipe, Pass pass, const LayerShape& shape) {
  return gemm_problem(recipe, pass, kDynamic, shape.n, shape.k, shape.experts);
}

// Returns room for `count` copies of the output, zero: a GEMM may read columns that no group has.
Result<DeviceTensor> empty_output(const GpuSession& gpu, const QuantizeProblem& problem,
                                  std::int64_t rows, std::int64_t groups, std::int64_t count,
                                  bool transposed) {
  const auto layout = quantized_layout(problem, rows, groups, transposed);
  if (!layout) return tl::unexpected<Error>(layout.error());
  const auto make = [&](std::int64_t bytes) -> Result<DeviceBuffer> {
    auto buffer = gpu.allocate(static_cast<std::size_t>(bytes * count));
    if (!buffer) return buffer;
    if (Status ok = buffer->fill(0, gpu.stream()); !ok) return tl::unexpected<Error>(ok.error());
    return buffer;
  };
  auto data = make(layout->data.bytes());
  if (!data) return tl::unexpected<Error>(data.error());
  auto scales = make(layout->scales.bytes());
  if (!scales) return tl::unexpected<Error>(scales.error());
  return DeviceTensor{problem.q, count * (transposed ? problem.cols : rows),
                      transposed ? rows : problem.cols, std::move(*data), std::move(*scales)};
}

}  // namespace

Status check_layer_extent(std::string_view name, std::int64_t value) {
  if (value > 0 && value % 16 == 0) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} is {}; allowed are positive multiples of 16: each dimension is the "
                          "sum's in one of the GEMMs",
                          name, value));
}

Status check_layer_supported(const Recipe& recipe, const LayerShape& shape) {
  const bool grouped = shape.experts > 0;
  std::vector<Problem> problems;
  for (const Pass pass : kStepPasses) problems.emplace_back(product(recipe, pass, shape));
  problems.emplace_back(both_copies(shape.k, recipe.activation, grouped));
  problems.emplace_back(both_copies(shape.k, recipe.weight, false));
  problems.emplace_back(both_copies(shape.n, recipe.gradient, grouped));
  for (const Problem& problem : problems) {
    if (Status ok = check_supported(problem); !ok) return ok;
  }
  return {};
}

octile_quantize_args LayerTensor::quantize_args(std::int64_t i) const {
  const auto matrix = [&](const DeviceBuffer& all) {
    return behind(all, i * static_cast<std::int64_t>(all.bytes()) / count);
  };
  octile_quantize_args args{};
  args.rows = rows;
  args.x = behind(x, i * rows * cols * size_of(DType::kBF16));
  args.q = matrix(rowwise.data);
  args.scale = matrix(rowwise.scales);
  args.q_transposed = matrix(transposed.data);
  args.scale_transposed = matrix(transposed.scales);
  return args;
}

Result<LayerStep> LayerStep::create(const BenchContext& context, const Recipe& recipe,
                                    const LayerShape& shape) {
  LayerStep step;
  step.shape_ = shape;
  Status ok = step.create_tensor(context, recipe.activation, shape.m, shape.k);
  if (ok) ok = step.create_tensor(context, recipe.weight, shape.n, shape.k);
  if (ok) ok = step.create_tensor(context, recipe.gradient, shape.m, shape.n);
  for (const Pass pass : kStepPasses) {
    if (ok) ok = step.create_product(context, recipe, pass);
  }
  if (ok) ok = step.create_workspace(context.gpu);
  if (!ok) return tl::unexpected<Error>(ok.error());
  return step;
}

Status LayerStep::create_tensor(const BenchContext& context, const TensorType& type,
                                std::int64_t rows, std::int64_t cols) {
  const bool is_weight = tensors_.size() == kWeight;
  const bool grouped = shape_.experts > 0 && !is_weight;
  const QuantizeProblem problem = both_copies(cols, type, grouped);
  LayerTensor tensor{rows, cols, is_weight ? std::max<std::int64_t>(shape_.experts, 1) : 1,
                     {},   {},   {}};
  auto x =
      random_bf16(context.gpu, (tensor.count * rows + kSpareRows) * cols, 10 + tensors_.size());
  if (!x) return tl::unexpected<Error>(x.error());
  const std::int64_t groups = grouped ? shape_.experts : 0;
  auto rowwise = empty_output(context.gpu, problem, rows, groups, tensor.count, false);
  if (!rowwise) return tl::unexpected<Error>(rowwise.error());
  auto transposed = empty_output(context.gpu, problem, rows, groups, tensor.count, true);
  if (!transposed) return tl::unexpected<Error>(transposed.error());
  auto prepared = prepare_plan(context, problem, rows, rows);
  if (!prepared) return tl::unexpected<Error>(prepared.error());
  tensor.x = std::move(*x);
  tensor.rowwise = std::move(*rowwise);
  tensor.transposed = std::move(*transposed);
  tensors_.push_back(std::move(tensor));
  plans_.push_back(std::move(prepared->plan));
  return {};
}

Status LayerStep::create_product(const BenchContext& context, const Recipe& recipe, Pass pass) {
  const GemmProblem problem = product(recipe, pass, shape_);
  auto prepared = prepare_plan(context, problem, shape_.m, shape_.m);
  if (!prepared) return tl::unexpected<Error>(prepared.error());
  auto d = context.gpu.allocate(static_cast<std::size_t>(matrices_of(problem, shape_.m).d_rows *
                                                         problem.n * size_of(problem.d.dtype)));
  if (!d) return tl::unexpected<Error>(d.error());
  plans_.push_back(std::move(prepared->plan));
  problems_.push_back(problem);
  results_.push_back(std::move(*d));
  return {};
}

Status LayerStep::create_workspace(const GpuSession& gpu) {
  std::size_t most = 0;
  for (std::size_t part = 0; part < plans_.size(); ++part) {
    const auto bytes = plans_[part].workspace_bytes(part == kWeight ? shape_.n : shape_.m);
    if (!bytes) return tl::unexpected<Error>(bytes.error());
    most = std::max(most, *bytes);
  }
  auto buffer = gpu.allocate(most);
  if (!buffer) return tl::unexpected<Error>(buffer.error());
  workspace_ = std::move(*buffer);
  return {};
}

std::string LayerStep::name_of(std::size_t part) {
  if (part < kTensors) return kTensorNames.at(part);
  return std::string(octile::name_of(kStepPasses.at(part - kTensors)));
}

Status LayerStep::run(std::size_t part, const GemmGroups* groups, CUstream stream) const {
  return part < kTensors ? quantise(part, groups, stream)
                         : multiply(part - kTensors, groups, stream);
}

Status LayerStep::quantise(std::size_t i, const GemmGroups* groups, CUstream stream) const {
  const LayerTensor& tensor = tensors_[i];
  octile_quantize_groups rows{sizeof(octile_quantize_groups), shape_.experts, nullptr, nullptr};
  if (groups != nullptr) rows.offsets = static_cast<const std::int32_t*>(groups->device.pointer());
  Status ok;
  for (std::int64_t matrix = 0; ok && matrix < tensor.count; ++matrix) {
    octile_quantize_args args = tensor.quantize_args(matrix);
    if (groups != nullptr && i != kWeight) args.groups = &rows;
    args.workspace = workspace_.pointer();
    args.workspace_bytes = workspace_.bytes();
    ok = plans_[i].run(args, stream);
  }
  return ok;
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

Status LayerStep::multiply(std::size_t pass, const GemmGroups* groups, CUstream stream) const {
  const auto [a, b] = operands(kStepPasses.at(pass));
  GemmArguments args = gemm_args(*a, *b, results_[pass].pointer());
  args.tokens = shape_.m;
  args.workspace = workspace_.pointer();
  args.workspace_bytes = workspace_.bytes();
  if (groups != nullptr)
    args.group_offsets = static_cast<const std::int32_t*>(groups->device.pointer());
  return plans_[kTensors + pass].run(args.call(), stream);
}

Result<std::vector<GemmCheck>> LayerStep::check(const GpuSession& gpu, const GemmGroups* groups) {
  Status ok;
  for (DeviceBuffer& d : results_) {
    if (ok) ok = d.fill(kAddendByte, gpu.stream());
  }
  for (std::size_t part = 0; ok && part < kParts; ++part) ok = run(part, groups, gpu.stream());
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
  return check_gemm(problem, *host_a, *host_b, d->data(), addends);
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
