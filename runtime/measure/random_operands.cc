#include "runtime/measure/random_operands.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "generator/core/layout.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/synthetic.h"

namespace octile {
namespace {

// Prime, so that no row length is a multiple of them.
constexpr std::size_t kCodePool = 131071;
constexpr std::size_t kScalePool = 8191;
// The standard deviations at which codes saturate: about the expected maximum of 128 normal values.
constexpr float kBlockMaximum = 2.8F;
constexpr std::uint64_t kScaleSalt = 0x5ca1e;

std::vector<std::uint8_t> code_pool(DType fp8, std::uint64_t seed) {
  std::vector<std::uint8_t> pool(kCodePool);
  const float sigma = max_finite(fp8) / kBlockMaximum;
  for (std::size_t i = 0; i < pool.size(); ++i) {
    const auto x = static_cast<float>(reference::random_normal(seed, i));
    pool[i] = reference::to_fp8(x * sigma, fp8);
  }
  return pool;
}

std::vector<float> scale_pool(DType fp8, std::uint64_t seed) {
  std::vector<float> pool(kScalePool);
  for (std::size_t i = 0; i < pool.size(); ++i) {
    const double spread = std::exp2(2 * reference::random_uniform(seed ^ kScaleSalt, i) - 1);
    pool[i] = static_cast<float>(kBlockMaximum / max_finite(fp8) * spread);
  }
  return pool;
}

// Returns the powers of two below the factors, as E8M0 codes.
std::vector<std::uint8_t> exponents_of(const std::vector<float>& factors) {
  std::vector<std::uint8_t> codes;
  codes.reserve(factors.size());
  for (const float factor : factors)
    codes.push_back(static_cast<std::uint8_t>(std::ilogb(factor) + 127));
  return codes;
}

// Makes one element in 61 special, so that most blocks of 128 hold some, and ordinary ones between.
void put_specials(std::vector<float>& pool) {
  using Limits = std::numeric_limits<float>;
  const std::array specials{0.0F,
                            -0.0F,
                            Limits::denorm_min(),
                            -0x1p-130F,
                            Limits::max(),
                            -max_finite(DType::kE4M3),
                            Limits::infinity(),
                            -Limits::infinity(),
                            Limits::quiet_NaN()};
  for (std::size_t i = 0; 61 * i < pool.size(); ++i) pool[61 * i] = specials[i % specials.size()];
}

// Returns the values in the type's own bytes.
std::vector<std::uint8_t> encoded(DType type, const std::vector<float>& values) {
  const auto size = static_cast<std::size_t>(size_of(type));
  std::vector<std::uint8_t> bytes(values.size() * size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float value = values[i];
    const std::uint16_t half =
        type == DType::kBF16 ? reference::float_to_bf16(value) : reference::float_to_fp16(value);
    const void* element = type == DType::kFP32 ? static_cast<const void*>(&value) : &half;
    std::memcpy(&bytes[i * size], element, size);
  }
  return bytes;
}

// Returns buffer[i] = pool[i % pool_bytes]. The filled part is copied behind itself until all is
// full.
Result<DeviceBuffer> repeat(const GpuSession& gpu, const void* pool, std::size_t pool_bytes,
                            std::size_t bytes) {
  auto buffer = gpu.allocate(bytes);
  if (!buffer) return buffer;
  std::size_t filled = std::min(pool_bytes, bytes);
  Status ok = buffer->upload(pool, filled, gpu.stream());
  while (ok && filled < bytes) {
    const std::size_t more = std::min(filled, bytes - filled);
    ok = gpu.driver()->check(
        (*gpu.driver())
            ->cuMemcpyDtoDAsync(buffer->get() + filled, buffer->get(), more, gpu.stream()),
        "cuMemcpyDtoDAsync");
    filled += more;
  }
  if (ok) ok = gpu.synchronize();
  if (!ok) return tl::unexpected<Error>(ok.error());
  return buffer;
}

}  // namespace

Result<DeviceTensor> random_tensor(const GpuSession& gpu, const TensorType& type, std::int64_t rows,
                                   std::int64_t cols, std::uint64_t seed) {
  const bool powers = type.scale == ScaleFormat::kF32Pow2;
  const bool exponents = type.scale == ScaleFormat::kE8M0;
  if (type.scale != ScaleFormat::kF32 && !powers && !exponents) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("random operands have fp32 or e8m0 scales; asked for {}", to_text(type)));
  }
  const auto layout = quantized_layout(type, rows, cols);
  if (!layout) return tl::unexpected<Error>(layout.error());
  const auto codes = code_pool(type.dtype, seed);
  auto data =
      repeat(gpu, codes.data(), codes.size(), static_cast<std::size_t>(layout->data.bytes()));
  if (!data) return tl::unexpected<Error>(data.error());
  auto factors = scale_pool(type.dtype, seed);
  if (powers) {
    for (float& factor : factors) factor = std::exp2(std::floor(std::log2(factor)));
  }
  const auto bytes = static_cast<std::size_t>(layout->scales.bytes());
  auto scales = exponents ? repeat(gpu, exponents_of(factors).data(), factors.size(), bytes)
                          : repeat(gpu, factors.data(), factors.size() * sizeof(float), bytes);
  if (!scales) return tl::unexpected<Error>(scales.error());
  return DeviceTensor{type, rows, cols, std::move(*data), std::move(*scales)};
}

Result<DeviceBuffer> random_values(const GpuSession& gpu, DType type, std::int64_t elements,
                                   std::uint64_t seed, Values values) {
  std::vector<float> pool(kCodePool);
  for (std::size_t i = 0; i < pool.size(); ++i)
    pool[i] = static_cast<float>(reference::random_normal(seed, i));
  if (values == Values::kSpecial) put_specials(pool);
  const std::vector<std::uint8_t> bytes = encoded(type, pool);
  return repeat(gpu, bytes.data(), bytes.size(),
                static_cast<std::size_t>(elements * size_of(type)));
}

Result<DeviceBuffer> random_bf16(const GpuSession& gpu, std::int64_t elements, std::uint64_t seed) {
  return random_values(gpu, DType::kBF16, elements, seed, Values::kNormal);
}

}  // namespace octile
