#include "tools/peers/quantizing.h"

#include <algorithm>
#include <utility>

#include "generator/core/layout.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/synthetic.h"

namespace octile::tools {
namespace {

constexpr std::int64_t kPoolElements = 1048573;  // the largest prime below 2^20

struct TensorSizes {
  std::size_t data = 0, scales = 0;  // bytes
};

Result<TensorSizes> sizes_of(const TensorType& type, std::int64_t rows, std::int64_t cols) {
  return quantized_layout(type, rows, cols).map([](const QuantizedLayout& layout) {
    return TensorSizes{static_cast<std::size_t>(layout.data.bytes()),
                       static_cast<std::size_t>(layout.scales.bytes())};
  });
}

octile_quantize_args quantize_args(std::int64_t rows, const void* x, void* q, void* scale) {
  octile_quantize_args args{};
  args.rows = rows;
  args.x = x;
  args.q = q;
  args.scale = scale;
  return args;
}

}  // namespace

QuantizeProblem quantize_problem(std::int64_t cols, const TensorType& type) {
  QuantizeProblem problem;
  problem.cols = cols;
  problem.q = type;
  return problem;
}

Result<DeviceTensor> quantize_on_gpu(const LibraryHandle& library, const GpuSession& gpu,
                                     const TensorType& type, const DeviceBuffer& x,
                                     std::int64_t rows, std::int64_t cols) {
  const auto sizes = sizes_of(type, rows, cols);
  if (!sizes) return tl::unexpected<Error>(sizes.error());
  auto data = gpu.allocate(sizes->data);
  if (!data) return tl::unexpected<Error>(data.error());
  auto scales = gpu.allocate(sizes->scales);
  if (!scales) return tl::unexpected<Error>(scales.error());
  const auto plan =
      PlanHandle::create(library, gpu.device(), Problem(quantize_problem(cols, type)));
  if (!plan) return tl::unexpected<Error>(plan.error());
  const auto bytes = plan->workspace_bytes(rows);
  if (!bytes) return tl::unexpected<Error>(bytes.error());
  auto workspace = gpu.allocate(*bytes);
  if (!workspace) return tl::unexpected<Error>(workspace.error());
  octile_quantize_args args = quantize_args(rows, x.pointer(), data->pointer(), scales->pointer());
  args.workspace = *bytes == 0 ? nullptr : workspace->pointer();
  args.workspace_bytes = *bytes;
  Status ok = plan->prepare(rows, rows);
  if (ok) ok = plan->run(args, gpu.stream());
  if (ok) ok = gpu.synchronize();
  if (!ok) return tl::unexpected<Error>(ok.error());
  return DeviceTensor{type, rows, cols, std::move(*data), std::move(*scales)};
}

std::vector<std::uint16_t> random_matrix(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  std::vector<std::uint16_t> pool(kPoolElements);
  for (std::size_t i = 0; i < pool.size(); ++i) {
    pool[i] = reference::float_to_bf16(static_cast<float>(reference::random_normal(seed, i)));
  }
  std::vector<std::uint16_t> matrix(static_cast<std::size_t>(rows * cols));
  for (auto to = matrix.begin(); to != matrix.end();) {
    const auto count = std::min<std::ptrdiff_t>(matrix.end() - to, kPoolElements);
    to = std::copy_n(pool.begin(), count, to);
  }
  return matrix;
}

Result<DeviceTensor> quantize_random(const LibraryHandle& library, const GpuSession& gpu,
                                     const TensorType& type, std::int64_t rows, std::int64_t cols,
                                     std::uint64_t seed) {
  const std::vector<std::uint16_t> host = random_matrix(rows, cols, seed);
  const auto x = gpu.upload(host.data(), host.size() * sizeof(std::uint16_t));
  if (!x) return tl::unexpected<Error>(x.error());
  return quantize_on_gpu(library, gpu, type, *x, rows, cols);
}

}  // namespace octile::tools
