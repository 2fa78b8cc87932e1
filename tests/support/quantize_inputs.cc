#include "tests/support/quantize_inputs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "runtime/reference/cast.h"

namespace octile::tests {
namespace {

// Returns a code of the class that `fill` names for numbers.
std::uint8_t draw_code(DType fp8, Fill fill, std::mt19937& random) {
  const std::uint8_t largest = fp8 == DType::kE4M3 ? 0x7E : 0x7B;
  const auto sign = static_cast<std::uint8_t>(random() % 2 * 0x80);
  std::normal_distribution<float> normal;
  switch (fill) {
    case Fill::kZeros:
      return 0;
    case Fill::kNegativeZeros:
      return 0x80;
    case Fill::kSubnormal:
      return static_cast<std::uint8_t>(sign | random() % (fp8 == DType::kE4M3 ? 8 : 4));
    case Fill::kHuge:
      return sign | largest;
    case Fill::kInfinities:
      if (random() % 64 == 0) return fp8 == DType::kE4M3 ? 0xFF : sign | 0x7C;
      break;
    case Fill::kMixed: {
      constexpr std::uint8_t kSpecial[] = {0, 0x80, 0x7F, 0xFF, 0x7C, 0xFC, 0x7B, 1};
      if (random() % 4 == 0) return kSpecial[random() % 8];
      break;
    }
    case Fill::kBits:
      return static_cast<std::uint8_t>(random());
    default:
      break;
  }
  return reference::to_fp8(64 * normal(random), fp8);
}

std::vector<char> draw_input(DType type, std::int64_t elements, Fill fill, unsigned seed) {
  const std::int64_t bytes = size_of(type);
  std::vector<char> x(static_cast<std::size_t>(elements * bytes));
  std::mt19937 random(seed);
  for (std::int64_t i = 0; i < elements; ++i) {
    char* const p = x.data() + i * bytes;
    if (is_fp8(type)) {
      *p = static_cast<char>(draw_code(type, fill, random));
    } else if (fill == Fill::kBits) {
      const auto bits = static_cast<std::uint32_t>(random());
      std::memcpy(p, &bits, static_cast<std::size_t>(bytes));
    } else {
      put(p, type, draw(fill, random));
    }
  }
  return x;
}

// Inputs by their arguments; all are dropped once they take 256 MiB. Safe from several threads.
class DrawnInputs {
 public:
  using Input = std::shared_ptr<const std::vector<char>>;

  Input get(DType type, std::int64_t elements, Fill fill, unsigned seed) {
    const Key key{type, elements, fill, seed};
    {
      const std::scoped_lock lock(mutex_);
      const auto found = inputs_.find(key);
      if (found != inputs_.end()) return found->second;
    }
    const auto input =
        std::make_shared<const std::vector<char>>(draw_input(type, elements, fill, seed));
    keep(key, input);
    return input;
  }

 private:
  using Key = std::tuple<DType, std::int64_t, Fill, unsigned>;

  void keep(const Key& key, const Input& input) {
    constexpr std::size_t kMostBytes = std::size_t{256} << 20;
    const std::scoped_lock lock(mutex_);
    if (bytes_ + input->size() > kMostBytes) {
      inputs_.clear();
      bytes_ = 0;
    }
    if (inputs_.emplace(key, input).second) bytes_ += input->size();
  }

  std::mutex mutex_;
  std::map<Key, Input> inputs_;
  std::size_t bytes_ = 0;
};

}  // namespace

void put(char* p, DType type, float value) {
  if (is_fp8(type)) {
    *p = static_cast<char>(reference::to_fp8(value, type));
    return;
  }
  if (type == DType::kFP32) {
    std::memcpy(p, &value, 4);
    return;
  }
  const std::uint16_t bits =
      type == DType::kBF16 ? reference::float_to_bf16(value) : reference::float_to_fp16(value);
  std::memcpy(p, &bits, 2);
}

float draw(Fill fill, std::mt19937& random) {
  std::normal_distribution<float> normal;
  constexpr float kLimit = std::numeric_limits<float>::max();
  switch (fill) {
    case Fill::kZeros:
      return 0.0F;
    case Fill::kNegativeZeros:
      return -0.0F;
    case Fill::kSubnormal:
      return std::ldexp(normal(random), -128);
    case Fill::kHuge:
      return random() % 2 == 0 ? kLimit : -kLimit * 0.75F;
    case Fill::kInfinities:
      if (random() % 64 == 0) return random() % 2 == 0 ? INFINITY : -INFINITY;
      return normal(random);
    case Fill::kMixed: {
      constexpr float kSpecial[] = {0.0F, -0.0F, NAN, INFINITY, -INFINITY, kLimit, 1e-40F, 200.0F};
      return random() % 4 == 0 ? kSpecial[random() % 8] : normal(random);
    }
    default:
      return normal(random);
  }
}

std::vector<char> make_scales(const TensorType& type, std::int64_t bytes, Fill fill,
                              unsigned seed) {
  std::vector<char> scales(static_cast<std::size_t>(bytes));
  std::mt19937 random(seed);
  const bool exponents = type.scale == ScaleFormat::kE8M0 || type.scale == ScaleFormat::kUe8m0x4;
  const std::size_t step = exponents ? 1 : type.scale == ScaleFormat::kBF16 ? 2 : 4;
  for (std::size_t at = 0; at < scales.size(); at += step) {
    int exponent = static_cast<int>(random() % 7) - 3;
    if (fill == Fill::kSubnormal) exponent -= 124;
    if (fill == Fill::kHuge) exponent += 118;
    const float significand = type.scale == ScaleFormat::kF32Pow2
                                  ? 1.0F
                                  : 1.0F + static_cast<float>(random() % 1024) / 1024;
    float scale = std::ldexp(significand, exponent);
    constexpr float kSpecial[] = {0.0F, NAN, INFINITY, 1e-40F};
    if (fill == Fill::kMixed && random() % 16 == 0) scale = kSpecial[random() % 4];
    auto bits = std::bit_cast<std::uint32_t>(scale);
    if (fill == Fill::kBits) bits = static_cast<std::uint32_t>(random());
    if (exponents) bits >>= 23;
    if (type.scale == ScaleFormat::kBF16) bits >>= 16;
    std::memcpy(scales.data() + at, &bits, step);
  }
  return scales;
}

std::vector<char> make_input(DType type, std::int64_t elements, Fill fill, unsigned seed) {
  constexpr std::int64_t kMostDrawn = 1048573;
  static DrawnInputs inputs;
  const std::int64_t bytes = size_of(type);
  const std::int64_t drawn = std::min(elements, kMostDrawn);
  std::vector<char> x(static_cast<std::size_t>(elements * bytes));
  if (elements == 0) return x;
  const auto from = inputs.get(type, drawn, fill, seed);
  for (std::int64_t i = 0; i < elements; i += drawn) {
    std::memcpy(x.data() + i * bytes, from->data(),
                static_cast<std::size_t>(std::min(drawn, elements - i) * bytes));
  }
  if (fill == Fill::kOutlier || fill == Fill::kOneNaN) {
    const float special = fill == Fill::kOutlier ? 60000.0F : NAN;
    put(x.data() + elements / 2 * bytes, type, special);
  }
  return x;
}

}  // namespace octile::tests
