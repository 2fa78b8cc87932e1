#include "tools/common/operands.h"

#include <algorithm>
#include <utility>

#include "runtime/reference/cast.h"
#include "runtime/reference/synthetic.h"

namespace octile::tools {
namespace {

constexpr std::int64_t kPoolElements = 1048573;  // the largest prime below 2^20

Result<DeviceTensor> random_tensor(const LibraryHandle& library, const GpuSession& gpu,
                                   const TensorType& type, std::int64_t rows, std::int64_t cols,
                                   std::uint64_t seed) {
  const std::vector<std::uint16_t> host = random_matrix(rows, cols, seed);
  const auto x = gpu.upload(host.data(), host.size() * sizeof(std::uint16_t));
  if (!x) return tl::unexpected<Error>(x.error());
  return quantize_on_gpu(library, gpu, type, *x, rows, cols);
}

// D of the slot against FP64 on the slot's operands.
Result<ProductCheck> check_slot(const GpuSession& gpu, const GemmProblem& problem,
                                const GemmSlot& slot) {
  const auto a = download(gpu, slot.a);
  if (!a) return tl::unexpected<Error>(a.error());
  const auto b = download(gpu, slot.b);
  if (!b) return tl::unexpected<Error>(b.error());
  const auto d = download(gpu, slot.d);
  if (!d) return tl::unexpected<Error>(d.error());
  return check_product(problem, *a, *b, d->data());
}

}  // namespace

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

int rotation_slots(const GpuSession& gpu, std::int64_t bytes_of_a_call) {
  constexpr std::int64_t kMost = 1024;  // of calls that hardly touch memory
  const std::int64_t wanted = 2 * gpu.spec().l2_bytes / std::max<std::int64_t>(bytes_of_a_call, 1);
  return static_cast<int>(std::clamp<std::int64_t>(wanted + 1, 2, kMost));
}

Result<DeviceBuffer> copy_of(const GpuSession& gpu, const DeviceBuffer& buffer) {
  auto copy = gpu.allocate(buffer.bytes());
  if (!copy || buffer.bytes() == 0) return copy;
  const Status ok = gpu.driver()->check(
      (*gpu.driver())->cuMemcpyDtoDAsync(copy->get(), buffer.get(), buffer.bytes(), gpu.stream()),
      "cuMemcpyDtoDAsync");
  if (!ok) return tl::unexpected<Error>(ok.error());
  return copy;
}

Result<DeviceTensor> copy_of(const GpuSession& gpu, const DeviceTensor& tensor) {
  auto data = copy_of(gpu, tensor.data);
  if (!data) return tl::unexpected<Error>(data.error());
  auto scales = copy_of(gpu, tensor.scales);
  if (!scales) return tl::unexpected<Error>(scales.error());
  return DeviceTensor{tensor.type, tensor.rows, tensor.cols, std::move(*data), std::move(*scales)};
}

Result<std::vector<GemmSlot>> make_gemm_slots(const LibraryHandle& library, const GpuSession& gpu,
                                              const GemmProblem& problem, std::int64_t m,
                                              int slots) {
  std::vector<GemmSlot> made;
  for (int i = 0; i < slots; ++i) {
    auto a = i == 0 ? random_tensor(library, gpu, problem.a, m, problem.k, 1)
                    : copy_of(gpu, made.front().a);
    if (!a) return tl::unexpected<Error>(a.error());
    auto b = i == 0 ? random_tensor(library, gpu, problem.b, problem.n, problem.k, 2)
                    : copy_of(gpu, made.front().b);
    if (!b) return tl::unexpected<Error>(b.error());
    auto d = gpu.allocate(static_cast<std::size_t>(m * problem.n * size_of(problem.d)));
    if (!d) return tl::unexpected<Error>(d.error());
    made.push_back({std::move(*a), std::move(*b), std::move(*d)});
  }
  if (Status ok = gpu.synchronize(); !ok) return tl::unexpected<Error>(ok.error());
  return made;
}

Result<ProductCheck> run_and_check(const GpuSession& gpu, const GemmProblem& problem,
                                   GemmSlot& slot, const std::function<Status()>& run) {
  constexpr std::uint8_t kPoison = 0xFF;  // two of them are a bf16 NaN
  Status ok = slot.d.fill(kPoison, gpu.stream());
  if (ok) ok = run();
  if (ok) ok = gpu.synchronize();
  if (!ok) return tl::unexpected<Error>(ok.error());
  return check_slot(gpu, problem, slot);
}

Result<std::vector<QuantizeSlot>> make_quantize_slots(const LibraryHandle& library,
                                                      const GpuSession& gpu,
                                                      const QuantizeProblem& problem,
                                                      std::int64_t rows, int slots) {
  const std::vector<std::uint16_t> host = random_matrix(rows, problem.cols, 3);
  std::vector<QuantizeSlot> made;
  for (int i = 0; i < slots; ++i) {
    auto x = i == 0 ? gpu.upload(host.data(), host.size() * sizeof(std::uint16_t))
                    : copy_of(gpu, made.front().x);
    if (!x) return tl::unexpected<Error>(x.error());
    auto q = i == 0 ? quantize_on_gpu(library, gpu, problem.q, *x, rows, problem.cols)
                    : copy_of(gpu, made.front().q);
    if (!q) return tl::unexpected<Error>(q.error());
    made.push_back({std::move(*x), std::move(*q)});
  }
  if (Status ok = gpu.synchronize(); !ok) return tl::unexpected<Error>(ok.error());
  return made;
}

}  // namespace octile::tools
