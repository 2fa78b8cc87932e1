#include "tests/emulation/cluster_wgmma.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "runtime/reference/cast.h"
#include "runtime/reference/gemm/reference_kernels.h"
#include "tests/emulation/cluster.h"
#include "tests/support/device_emulation.h"
#include "tests/support/fp8_values.h"

namespace octile::emulation {
namespace {

using reference::kStripCols;
using reference::kStripRows;

constexpr std::int64_t kStepBytes = 32;  // K of one instruction
constexpr std::int64_t kWarpRows = 16;
constexpr std::int64_t kUnit = 16;
constexpr std::int64_t kLine = 128;
constexpr std::int64_t kRowStrips = (kWarpRows + kStripRows - 1) / kStripRows;

using tests::Fp8Values;

const Fp8Values& values_of(std::string_view type) {
  cluster->check(type == "e4m3" || type == "e5m2", "an element type of WGMMA");
  return tests::fp8_values(type == "e4m3" ? DType::kE4M3 : DType::kE5M2);
}

// An operand in shared memory: rows of 128 bytes in the 128-byte swizzle.
struct Operand {
  std::uint32_t start = 0;       // address of the first row's first element
  std::int64_t group_bytes = 0;  // from 8 rows to the next 8
  const Fp8Values* values = nullptr;

  // Decodes k elements of each row into panels of kStrip rows, [k][kStrip] each.
  template <std::int64_t kStrip>
  void decode(std::int64_t first_row, std::int64_t rows, std::int64_t k, float* panels) const {
    for (std::int64_t row = 0; row < rows; ++row) {
      float* panel = panels + row / kStrip * kStrip * k + row % kStrip;
      for (std::int64_t unit = 0; unit < k; unit += kUnit) {
        std::array<std::uint8_t, kUnit> codes{};
        read(first_row + row, unit, codes);
        for (std::int64_t i = 0; i < kUnit; ++i) {
          panel[(unit + i) * kStrip] = (*values)[codes[static_cast<std::size_t>(i)]];
        }
      }
    }
  }

 private:
  void read(std::int64_t row, std::int64_t unit, std::array<std::uint8_t, kUnit>& codes) const {
    const auto plain =
        start + static_cast<std::uint32_t>(row / 8 * group_bytes + row % 8 * kLine + unit);
    // The hardware takes the XOR from the address, in which a descriptor may already have advanced
    // along K.
    const std::uint32_t address = plain ^ (plain >> 7 & 7U) << 4;
    const std::byte* p = cluster->memory(address, kUnit, kUnit);
    if (p != nullptr) std::memcpy(codes.data(), p, kUnit);
  }
};

// PTX ISA, "Matrix Descriptor".
Operand operand_of(std::uint32_t low, std::uint32_t high, std::string_view type,
                   std::uint32_t rank) {
  constexpr std::uint32_t kField = 0x3FFF;
  cluster->check(high >> 30 == 1, "a matrix descriptor's swizzle is not that of 128 bytes", high);
  cluster->check((low >> 14 & 3U) == 0 && (high >> 17 & 7U) == 0,
                 "a matrix descriptor has a base offset or an address beyond 18 bits", low);
  const std::uint32_t start = ((low & kField) << 4) | (rank + 1) << kRankShift;
  return {start, static_cast<std::int64_t>(high & kField) << 4, &values_of(type)};
}

// A bf16 operand in shared memory: rows of 32 bytes without swizzle, in core matrices of 8 rows and
// 16 bytes.
struct PlainOperand {
  std::uint32_t start = 0;
  std::int64_t half_bytes = 0;   // from a core matrix to that of the other half of K
  std::int64_t group_bytes = 0;  // from 8 rows to the next 8

  float at(std::int64_t row, std::int64_t k) const {
    const auto address = start + static_cast<std::uint32_t>(row / 8 * group_bytes + row % 8 * 16 +
                                                            k / 8 * half_bytes + k % 8 * 2);
    std::uint16_t bits = 0;
    const std::byte* p = cluster->memory(address, 2, 2);
    if (p != nullptr) std::memcpy(&bits, p, 2);
    cluster->check_fenced(address, 2);
    return reference::bf16_to_float(bits);
  }
};

PlainOperand plain_operand(std::uint32_t low, std::uint32_t high, std::uint32_t rank) {
  constexpr std::uint32_t kField = 0x3FFF;
  cluster->check(high >> 30 == 0, "a matrix descriptor of bf16 has a swizzle", high);
  return {((low & kField) << 4) | (rank + 1) << kRankShift,
          static_cast<std::int64_t>(low >> 16 & kField) << 4,
          static_cast<std::int64_t>(high & kField) << 4};
}

// Computes the same of bf16.
void multiply_bf16(Product& product, int warp_of_group, std::uint32_t rank) {
  constexpr std::int64_t kK = 16;
  const PlainOperand a = plain_operand(product.a, product.high, rank);
  const PlainOperand b = plain_operand(product.b, product.high, rank);
  const std::int64_t pair = kStripRows * kStripCols;
  product.sums.assign(static_cast<std::size_t>(product.n / kStripCols * kRowStrips * pair), 0.0F);
  for (std::int64_t k = 0; k < kK; ++k) {
    std::array<float, static_cast<std::size_t>(kWarpRows)> column{};
    for (std::int64_t row = 0; row < kWarpRows; ++row) {
      column[static_cast<std::size_t>(row)] = a.at(warp_of_group * kWarpRows + row, k);
    }
    for (std::int64_t n = 0; n < product.n; ++n) {
      const float of_b = b.at(n, k);
      for (std::int64_t row = 0; row < kWarpRows; ++row) {
        const std::int64_t strip = n / kStripCols * kRowStrips + row / kStripRows;
        const std::int64_t within = row % kStripRows * kStripCols + n % kStripCols;
        product.sums[static_cast<std::size_t>(strip * pair + within)] +=
            column[static_cast<std::size_t>(row)] * of_b;
      }
    }
  }
}

// Computes the 16 rows of one warp, into [n / 16][3][6][16].
void multiply(Product& product, int warp_of_group, std::uint32_t rank) {
  if (product.types == "bf16.bf16") return multiply_bf16(product, warp_of_group, rank);
  const std::int64_t k = product.steps * kStepBytes;
  const std::size_t dot = product.types.find('.');
  const Operand a = operand_of(product.a, product.high, product.types.substr(0, dot), rank);
  const Operand b = operand_of(product.b, product.high, product.types.substr(dot + 1), rank);
  static std::vector<float> rows, columns;  // kept, because pages would cost more than the work
  rows.assign(static_cast<std::size_t>(kRowStrips * kStripRows * k), 0.0F);
  columns.resize(static_cast<std::size_t>(product.n * k) + kStripCols);
  float* aligned = columns.data();
  while (reinterpret_cast<std::uintptr_t>(aligned) % 64 != 0) ++aligned;
  a.decode<kStripRows>(warp_of_group * kWarpRows, kWarpRows, k, rows.data());
  b.decode<kStripCols>(0, product.n, k, aligned);
  const std::int64_t pair = kStripRows * kStripCols;
  alignas(64) std::array<float, static_cast<std::size_t>(kStripRows * kStripCols)> sums{};
  product.sums.resize(static_cast<std::size_t>(product.n / kStripCols * kRowStrips * pair));
  for (std::int64_t column = 0; column < product.n / kStripCols; ++column) {
    for (std::int64_t row = 0; row < kRowStrips; ++row) {
      sums.fill(0.0F);
      reference::multiply_strips(rows.data() + row * kStripRows * k,
                                 aligned + column * kStripCols * k, k, sums.data());
      std::ranges::copy(sums, product.sums.data() + (column * kRowStrips + row) * pair);
    }
  }
}

float sum_at(const Product& product, std::int64_t row, std::int64_t column) {
  const std::int64_t pair = column / kStripCols * kRowStrips + row / kStripRows;
  const std::int64_t within = row % kStripRows * kStripCols + column % kStripCols;
  return product.sums[static_cast<std::size_t>(pair * kStripRows * kStripCols + within)];
}

// Returns the next group after `index` to which the lane gave the same accumulators, or null.
Product* next_onto(WarpProducts& warp, std::uint32_t index, unsigned lane) {
  float* const d = warp.queue[index].d[lane];
  for (std::uint32_t i = index + 1; i < warp.queue.size(); ++i) {
    if (warp.queue[i].d[lane] == d) return &warp.queue[i];
  }
  return nullptr;
}

// Gives a lane its sums: 4 * j + i is column 8 * j + 2 * (lane % 4) + (i & 1) of row lane / 4 + 8 *
// (i >> 1). If a pending group adds to them, they are its old sums.
void take(WarpProducts& warp, std::uint32_t index, unsigned lane) {
  Product& product = warp.queue[index];
  Product* const next = next_onto(warp, index, lane);
  const auto& before = product.before[lane];
  // After a mistake, what were accumulators may be something else by now.
  for (int i = 0; i < product.n / 2 && !cluster->has_faults(); ++i) {
    const std::int64_t row = lane / 4 + static_cast<unsigned>(8 * (i >> 1 & 1));
    const std::int64_t column = 8 * (i / 4) + static_cast<int>(2 * (lane % 4)) + (i & 1);
    float sum = sum_at(product, row, column);
    if (product.adds) sum += before[static_cast<std::size_t>(i)];
    (next == nullptr ? product.d[lane] : next->before[lane].data())[i] = sum;
  }
  ++product.taken;
}

bool is_same(const Product& product, const ProductGroup& group) {
  return product.a == group.a && product.b == group.b && product.n == group.n &&
         product.steps == group.steps && product.types == group.types && product.adds == group.adds;
}

}  // namespace

void issue_products(const ProductGroup& group, float* accumulators) {
  WarpProducts& warp = cluster->products();
  const unsigned lane = current_thread.x % kWarp;
  const std::uint32_t index = warp.issued[lane]++ - warp.first;
  if (index == warp.queue.size()) {
    warp.queue.push_back(
        {group.a, group.b, group.n, group.steps, group.types, {}, 0, 0, {}, group.adds, {}});
  }
  Product& product = warp.queue[index];
  cluster->check(is_same(product, group), "lanes of a warp issue different products", group.a);
  for (std::uint32_t i = warp.taken[lane] - warp.first; i < index; ++i) {
    // The tensor core adds in the order of groups of one shape.
    const bool adds = group.adds && warp.queue[i].n == group.n;
    cluster->check(adds || warp.queue[i].d[lane] != accumulators,
                   "a product writes accumulators of a pending one", group.a);
  }
  product.d[lane] = accumulators;
  product.high = group.high;
  if (group.adds) product.before[lane].assign(accumulators, accumulators + group.n / 2);
  std::fill_n(accumulators, group.n / 2, std::numeric_limits<float>::quiet_NaN());
  if (++product.lanes < kWarp) return;
  const auto run = [&warp, rank = cluster->rank(),
                    warp_of_group = static_cast<int>(current_thread.x / kWarp % 4)] {
    multiply(warp.queue[warp.done - warp.first], warp_of_group, rank);  // in order
    ++warp.done;
  };
  cluster->defer({run, 1U << cluster->rank(), "a product of WGMMA"});
}

void wait_products(int most_pending) {
  WarpProducts& warp = cluster->products();
  const unsigned lane = current_thread.x % kWarp;
  const auto pending = static_cast<std::uint32_t>(most_pending);
  if (warp.issued[lane] <= pending) return;
  const std::uint32_t target = warp.issued[lane] - pending;
  wait_until({&warp.done, target, "wgmma.wait_group"});
  while (warp.taken[lane] < target) take(warp, warp.taken[lane]++ - warp.first, lane);
  while (!warp.queue.empty() && warp.queue.front().taken == kWarp) {
    warp.queue.pop_front();
    ++warp.first;
  }
}

}  // namespace octile::emulation
