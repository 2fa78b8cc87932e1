#include "tools/bench/routing.h"

#include <numeric>
#include <utility>

#include "runtime/reference/synthetic.h"

namespace octile::tools {
namespace {

constexpr std::uint64_t kOrderSeed = 71, kRowSeed = 72;

std::size_t draw(std::uint64_t seed, std::uint64_t index, std::size_t choices) {
  return static_cast<std::size_t>(reference::random_bits(seed, index) % choices);
}

// Returns the experts in a drawn order.
std::vector<std::size_t> shuffled(std::int64_t experts) {
  std::vector<std::size_t> order(static_cast<std::size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size() - 1; i > 0; --i) {
    std::swap(order[i], order[draw(kOrderSeed, i, i + 1)]);
  }
  return order;
}

// Draws an expert of `among` for each of the rows.
void share_out(std::int64_t rows, const std::vector<std::size_t>& among,
               std::vector<std::int64_t>& counts) {
  for (std::int64_t row = 0; row < rows; ++row) {
    ++counts[among[draw(kRowSeed, static_cast<std::uint64_t>(row), among.size())]];
  }
}

}  // namespace

std::string_view name_of(Routing routing) {
  return routing == Routing::kUniform ? "uniform" : "skewed";
}

std::vector<std::int64_t> route(Routing routing, std::int64_t rows, std::int64_t experts) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(experts), 0);
  std::vector<std::size_t> order = shuffled(experts);
  if (routing == Routing::kUniform) {
    share_out(rows, order, counts);
    return counts;
  }
  // The first of the order has most rows, and the last third of it has none.
  const std::size_t popular = order.front();
  const std::vector<std::size_t> others(order.begin() + 1, order.end() - experts / 3);
  counts[popular] = others.empty() ? rows : rows * 2 / 5;
  if (!others.empty()) share_out(rows - counts[popular], others, counts);
  return counts;
}

std::vector<std::int32_t> offsets_of(const std::vector<std::int64_t>& counts) {
  std::vector<std::int32_t> offsets{0};
  for (const std::int64_t count : counts) {
    offsets.push_back(offsets.back() + static_cast<std::int32_t>(count));
  }
  return offsets;
}

}  // namespace octile::tools
