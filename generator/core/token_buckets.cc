#include "generator/core/token_buckets.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace octile {
namespace {

// Doubling d holds the token counts above 2^(d - 1) up to 2^d, in this number of buckets of equal
// length.
constexpr int buckets_of_doubling(int d) { return d <= 7 ? 1 : d <= 10 ? 2 : 4; }
constexpr int kDoublings = 63;

// The first bucket of every doubling, then the number of all buckets.
constexpr auto kFirstOfDoubling = [] {
  std::array<int, kDoublings + 2> first{};
  for (std::size_t d = 0; d <= kDoublings; ++d) {
    first.at(d + 1) = first.at(d) + (d == 0 ? 1 : buckets_of_doubling(static_cast<int>(d)));
  }
  return first;
}();
static_assert(kFirstOfDoubling.back() == kTokenBuckets);

constexpr std::int64_t bucket_length(int d) {
  return (std::int64_t{1} << (d - 1)) / buckets_of_doubling(d);
}

}  // namespace

int bucket_of(std::int64_t tokens) {
  if (tokens <= 1) return 0;
  const auto doubling = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(tokens - 1)));
  const std::int64_t above = tokens - 1 - (std::int64_t{1} << (doubling - 1));
  return kFirstOfDoubling.at(static_cast<std::size_t>(doubling)) +
         static_cast<int>(above / bucket_length(doubling));
}

std::int64_t bucket_upper(int bucket) {
  if (bucket <= 0) return 1;
  if (bucket >= kTokenBuckets - 1) return std::numeric_limits<std::int64_t>::max();
  const auto* const behind =
      std::upper_bound(kFirstOfDoubling.begin(), kFirstOfDoubling.end(), bucket);
  const auto doubling = static_cast<int>(behind - kFirstOfDoubling.begin()) - 1;
  const int index = bucket - *(behind - 1);
  return (std::int64_t{1} << (doubling - 1)) + (index + 1) * bucket_length(doubling);
}

}  // namespace octile
