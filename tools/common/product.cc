#include "tools/common/product.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "generator/layout.h"
#include "runtime/reference/gemm.h"

namespace octile::tools {
namespace {

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

// Rows and columns of D that are looked at: the first, the last (tails), and one between.
std::vector<reference::Fp64Window> sample_windows(std::int64_t m, std::int64_t n) {
  constexpr std::int64_t kRows = 2;
  constexpr std::int64_t kCols = 64;
  std::vector<reference::Fp64Window> windows;
  for (const std::int64_t row : {std::int64_t{0}, m / 2, std::max<std::int64_t>(m - kRows, 0)}) {
    for (const std::int64_t col : {std::int64_t{0}, n / 2, std::max<std::int64_t>(n - kCols, 0)}) {
      windows.push_back({row, std::min(kRows, m - row), col, std::min(kCols, n - col)});
    }
  }
  return windows;
}

// Whether there is something to compare with: operands that are zero or NaN agree with anything.
bool is_telling(const std::vector<double>& r, const std::vector<double>& s) {
  const auto finite = [](double value) { return std::isfinite(value); };
  return std::all_of(r.begin(), r.end(), finite) &&
         std::any_of(s.begin(), s.end(), [](double value) { return value > 0; });
}

}  // namespace

QuantizeProblem quantize_problem(std::int64_t cols, const TensorType& type) {
  QuantizeProblem problem;
  problem.cols = cols;
  problem.q = type;
  return problem;
}

Result<HostTensor> quantize_on_host(const LibraryHandle& library, const TensorType& type,
                                    const std::uint16_t* x, std::int64_t rows, std::int64_t cols) {
  const auto sizes = sizes_of(type, rows, cols);
  if (!sizes) return tl::unexpected<Error>(sizes.error());
  const auto plan = PlanHandle::create(library, "host", Problem(quantize_problem(cols, type)));
  if (!plan) return tl::unexpected<Error>(plan.error());
  HostTensor tensor{type, rows, cols, std::vector<std::uint8_t>(sizes->data),
                    std::vector<std::uint8_t>(sizes->scales)};
  if (Status ok =
          plan->run(quantize_args(rows, x, tensor.data.data(), tensor.scales.data()), nullptr);
      !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  return tensor;
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
  Status ok = plan->prepare(rows, rows);
  if (ok) {
    ok = plan->run(quantize_args(rows, x.pointer(), data->pointer(), scales->pointer()),
                   gpu.stream());
  }
  if (ok) ok = gpu.synchronize();
  if (!ok) return tl::unexpected<Error>(ok.error());
  return DeviceTensor{type, rows, cols, std::move(*data), std::move(*scales)};
}

Result<std::vector<std::uint8_t>> download(const GpuSession& gpu, const DeviceBuffer& buffer) {
  std::vector<std::uint8_t> bytes(buffer.bytes());
  Status ok = buffer.download(bytes.data(), bytes.size(), gpu.stream());
  if (ok) ok = gpu.synchronize();
  if (!ok) return tl::unexpected<Error>(ok.error());
  return bytes;
}

Result<HostTensor> download(const GpuSession& gpu, const DeviceTensor& tensor) {
  auto data = download(gpu, tensor.data);
  if (!data) return tl::unexpected<Error>(data.error());
  auto scales = download(gpu, tensor.scales);
  if (!scales) return tl::unexpected<Error>(scales.error());
  return HostTensor{tensor.type, tensor.rows, tensor.cols, std::move(*data), std::move(*scales)};
}

octile_gemm_args gemm_args(const HostTensor& a, const HostTensor& b, void* d) {
  octile_gemm_args args{};
  args.m = a.rows;
  args.a = a.data.data();
  args.a_scale = a.scales.data();
  args.b = b.data.data();
  args.b_scale = b.scales.data();
  args.d = d;
  return args;
}

octile_gemm_args gemm_args(const DeviceTensor& a, const DeviceTensor& b, void* d) {
  octile_gemm_args args{};
  args.m = a.rows;
  args.a = a.data.pointer();
  args.a_scale = a.scales.pointer();
  args.b = b.data.pointer();
  args.b_scale = b.scales.pointer();
  args.d = d;
  return args;
}

Result<ProductCheck> check_product(const GemmProblem& problem, const HostTensor& a,
                                   const HostTensor& b, const void* d) {
  reference::GemmArgs args;
  args.m = a.rows;
  args.a = a.data.data();
  args.a_scale = a.scales.data();
  args.b = b.data.data();
  args.b_scale = b.scales.data();
  ProductCheck check;
  for (const reference::Fp64Window& window : sample_windows(a.rows, b.rows)) {
    const auto count = static_cast<std::size_t>(window.rows * window.cols);
    std::vector<double> r(count);
    std::vector<double> s(count);
    if (Status ok = reference::gemm_fp64(problem, args, window, r.data(), s.data()); !ok) {
      return tl::unexpected<Error>(ok.error());
    }
    const auto report = reference::check_tolerance(d, problem.d, b.rows, window, r, s,
                                                   reference::tolerance_c(problem.promote));
    check.ok = check.ok && report.ok && is_telling(r, s);
    if (check.elements == 0 || report.worst_error_over_s > check.worst.worst_error_over_s) {
      check.worst = report;
    }
    check.elements += window.rows * window.cols;
  }
  return check;
}

}  // namespace octile::tools
