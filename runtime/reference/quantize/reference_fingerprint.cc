#include "runtime/reference/quantize/reference_fingerprint.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "generator/quantize/fingerprint.h"
#include "runtime/reference/parallel.h"

namespace octile::reference {
namespace {

constexpr std::int64_t kWordBytes = 16;

// Adds the hash of a word at this position, counted over all rows.
void add_word(std::uint64_t position, const std::array<std::uint32_t, 4>& word, Fingerprint& sums) {
  const auto product = [](std::uint32_t a, std::uint32_t b) { return std::uint64_t{a} * b; };
  const std::uint64_t key = (position + 1) * 0x9e3779b97f4a7c15U;
  const auto low = static_cast<std::uint32_t>(key);
  const auto high = static_cast<std::uint32_t>(key >> 32U);
  const std::uint32_t other = (high ^ (low >> 15U)) * 0x85ebca6bU;
  const std::uint32_t last = (low ^ (high >> 13U)) * 0xc2b2ae35U;
  sums[0] += product(word[0] + low, word[1] + high) + product(word[2] + other, word[3] + last);
  sums[1] += product(word[0], last | 1U) + product(word[1], other | 1U) +
             product(word[2], high | 1U) + product(word[3], low | 1U);
}

}  // namespace

Fingerprint fingerprint(const void* x, std::int64_t rows, std::int64_t row_bytes,
                        std::int64_t row_stride, int threads) {
  const FingerprintRows counted = fingerprint_rows(rows, row_bytes, row_stride);
  const std::int64_t words = ceil_div(counted.bytes, kWordBytes);
  constexpr std::int64_t kGrain = 1 << 14;  // words
  std::array<std::atomic<std::uint64_t>, 2> sums{};
  parallel_for(counted.rows * words, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
    Fingerprint own{};
    for (std::int64_t position = begin; position < end; ++position) {
      const std::int64_t row = position / words, byte = position % words * kWordBytes;
      std::array<std::uint32_t, 4> word{};
      std::memcpy(word.data(), static_cast<const char*>(x) + row * counted.stride + byte,
                  static_cast<std::size_t>(std::min(kWordBytes, counted.bytes - byte)));
      add_word(static_cast<std::uint64_t>(position), word, own);
    }
    sums[0] += own[0];
    sums[1] += own[1];
  });
  return {sums[0].load(), sums[1].load()};
}

}  // namespace octile::reference
