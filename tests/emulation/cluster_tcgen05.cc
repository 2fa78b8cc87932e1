#include "tests/emulation/cluster_tcgen05.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/emulation/cluster.h"
#include "tests/emulation/cluster_mma.h"
#include "tests/support/device_emulation.h"
#include "tests/support/fp8_values.h"
#include "tests/support/sum_model.h"

namespace octile::emulation {
namespace {

constexpr int kK = 32;          // of one product
constexpr int kWarpLanes = 32;  // of tensor memory that are a warp's
constexpr int kLanesOfLoad = 16;
constexpr int kScaleColumns = 4;  // of a copy, and of the scales of 128 rows

TensorMemory& own() {
  Block& block = cluster->own_block();
  if (block.tensor == nullptr)
    block.tensor = std::make_unique<TensorMemory>(static_cast<int>(block.written.size()));
  return *block.tensor;
}
std::size_t me() { return current_thread.x; }

std::uint32_t column_of(std::uint32_t address) { return address & 0xFFFF; }
std::uint32_t lane_of(std::uint32_t address) { return address >> 16; }

void check_columns(const TensorMemory& memory, std::uint32_t first, std::uint32_t count) {
  cluster->check(
      memory.columns > 0 && first >= memory.first && first + count <= memory.first + memory.columns,
      "columns of tensor memory that the block has not taken", first);
}

// An operand's row of 32 codes, in rows of 128 bytes in the 128-byte swizzle.
std::array<float, kK> row_of(const TensorDescriptor& operand, std::uint32_t row, DType type,
                             std::uint32_t rank) {
  std::array<float, kK> values{};
  const auto& of_code = tests::fp8_values(type);
  constexpr std::uint32_t kUnit = 16;
  for (std::uint32_t unit = 0; unit < kK; unit += kUnit) {
    const std::uint32_t plain = operand.address + row / 8 * operand.stride + row % 8 * 128 + unit;
    const std::uint32_t address = (plain ^ (plain >> 7 & 7U) << 4) | (rank + 1) << kRankShift;
    const std::byte* p = cluster->memory(address, kUnit, kUnit);
    cluster->check_fenced(address, kUnit);
    for (std::uint32_t i = 0; i < kUnit; ++i)
      values[unit + i] = p == nullptr ? std::numeric_limits<float>::quiet_NaN()
                                      : of_code[static_cast<std::uint8_t>(p[i])];
  }
  return values;
}

DType type_of(std::uint32_t field) {
  cluster->check(field <= 1, "an element type of tcgen05", field);
  return field == 0 ? DType::kE4M3 : DType::kE5M2;
}

TensorDescriptor checked(std::uint32_t low, std::uint32_t high, bool is_swizzled = true) {
  const TensorDescriptor d = decode_descriptor(low, high);
  cluster->check(d.version == 1, "a shared-memory descriptor's bits 46-48 are not 0b001", high);
  cluster->check(d.swizzle == (is_swizzled ? 2 : 0),
                 "a shared-memory descriptor's swizzle is not that of its rows", high);
  cluster->check(d.base_offset == 0 && d.others == 0,
                 "a shared-memory descriptor has a base offset, or bits that have to be 0", high);
  return d;
}

// The fields that both kinds of instructions have.
struct Shape {
  std::uint32_t m = 0, n = 0, type_of_a = 0, type_of_b = 0;
};
Shape shape_of(const TensorProduct& product) {
  if (product.kind == TensorProduct::Kind::kScaled) {
    const TensorScaledInstruction word = decode_scaled_instruction(product.instruction);
    return {word.m, word.n, word.type_of_a, word.type_of_b};
  }
  const TensorInstruction word = decode_instruction(product.instruction);
  return {word.m, word.n, word.type_of_a, word.type_of_b};
}

// Columns [first, last).
struct Columns {
  std::uint32_t first = 0, last = 0;
  bool meet(const Columns& other) const { return first < other.last && other.first < last; }
};
Columns columns_of_scales(std::uint32_t address, std::uint32_t rows) {
  const std::uint32_t first = column_of(address);
  return {first, first + (rows + kWarpLanes - 1) / kWarpLanes};
}
// Those that a product or a copy writes.
Columns written_by(const TensorProduct& product) {
  const std::uint32_t first = column_of(product.d);
  if (product.kind == TensorProduct::Kind::kCopy) return {first, first + kScaleColumns};
  return {first, first + shape_of(product).n};
}
// Whether a product reads scales there.
bool reads_scales(const TensorProduct& product, const Columns& columns) {
  if (product.kind != TensorProduct::Kind::kScaled) return false;
  const Shape shape = shape_of(product);
  return columns_of_scales(product.scales_a, shape.m).meet(columns) ||
         columns_of_scales(product.scales_b, shape.n).meet(columns);
}

// Copies 32 rows of 16 bytes to each quarter of the lanes.
void copy(TensorMemory& memory, const TensorProduct& product, std::uint32_t rank) {
  const TensorDescriptor from = checked(product.a, product.high, false);
  cluster->check(from.leading == 0, "a leading offset, of which a copy has no use", product.a);
  cluster->check(lane_of(product.d) == 0, "the first lane of a copy", product.d);
  const auto column = column_of(product.d);
  check_columns(memory, column, kScaleColumns);
  if (cluster->has_faults()) return;
  constexpr std::uint32_t kRowBytes = 16;
  for (std::uint32_t lane = 0; lane < kTensorLanes; ++lane) {
    const std::uint32_t row = lane % kWarpLanes;
    const std::uint32_t address =
        (from.address + row / 8 * from.stride + row % 8 * kRowBytes) | (rank + 1) << kRankShift;
    const std::byte* p = cluster->memory(address, kRowBytes, kRowBytes);
    cluster->check_fenced(address, kRowBytes);
    for (std::uint32_t i = 0; i < kScaleColumns; ++i) {
      const std::size_t at = lane * std::size_t{kTensorWidth} + column + i;
      memory.words[at] = 0xFFFFFFFF;
      if (p != nullptr) std::memcpy(&memory.words[at], p + i * 4, 4);
      memory.are_words[at] = true;
      memory.cells[at] = std::numeric_limits<float>::quiet_NaN();
      memory.writers[at] = {static_cast<std::uint32_t>(product.issuer), product.number};
    }
  }
}

// The codes of scales of rows 0 to `rows`. Row r's word lies in lane r % 32 of each quarter, column
// r / 32; a product reads those of its own quarter.
std::vector<int> scales_of(const TensorMemory& memory, std::uint32_t address, std::uint32_t rows,
                           std::uint32_t byte) {
  cluster->check(lane_of(address) == 0 && column_of(address) % kScaleColumns == 0,
                 "the first lane or column of scales", address);
  const Columns columns = columns_of_scales(address, rows);
  check_columns(memory, columns.first, columns.last - columns.first);
  std::vector<int> codes(rows);
  if (cluster->has_faults()) return codes;
  for (std::uint32_t row = 0; row < rows; ++row) {
    const std::uint32_t lane = row % kWarpLanes + row / kWarpLanes % 4 * kWarpLanes;
    const std::size_t at = lane * std::size_t{kTensorWidth} + columns.first + row / kWarpLanes;
    cluster->check(memory.are_words[at], "a product reads scales that no copy brought", row);
    codes[row] = static_cast<std::uint8_t>(memory.words[at] >> 8 * byte);
  }
  return codes;
}

// The scales of a product: codes of its rows and columns, none if it has none.
struct ScalesOfProduct {
  std::vector<int> of_rows, of_columns;
};
ScalesOfProduct scales_of(const TensorMemory& memory, const TensorProduct& product) {
  if (product.kind != TensorProduct::Kind::kScaled) return {};
  const TensorScaledInstruction word = decode_scaled_instruction(product.instruction);
  cluster->check(word.type_of_scales == 1 && word.others == 0 && word.m == 128,
                 "the word of an instruction with scales", product.instruction);
  return {scales_of(memory, product.scales_a, word.m, word.byte_of_a),
          scales_of(memory, product.scales_b, word.n, word.byte_of_b)};
}

// Returns `sum` and the products of a row and a column.
float add_products(float sum, const std::array<float, kK>& row, const std::array<float, kK>& column,
                   const ScalesOfProduct& scales, std::uint32_t m, std::uint32_t n) {
  constexpr int kOne = 127, kNan = 255;
  int exponent = 0;
  if (!scales.of_rows.empty()) {
    if (scales.of_rows[m] == kNan || scales.of_columns[n] == kNan)
      return std::numeric_limits<float>::quiet_NaN();
    exponent = scales.of_rows[m] + scales.of_columns[n] - 2 * kOne;
    if (mma_sums.bits != 0) return tests::add_products(sum, row, column, mma_sums, exponent);
  }
  double products = 0;
  for (std::size_t k = 0; k < kK; ++k) products += double{row[k]} * column[k];
  return static_cast<float>(double{sum} + std::ldexp(products, exponent));
}

void multiply(TensorMemory& memory, const TensorProduct& product, std::uint32_t rank) {
  const Shape word = shape_of(product);
  const std::uint32_t lane = lane_of(product.d), column = column_of(product.d);
  if (product.kind == TensorProduct::Kind::kPlain) {
    const TensorInstruction plain = decode_instruction(product.instruction);
    cluster->check(plain.sums == 1 && plain.others == 0, "an instruction's word",
                   product.instruction);
  }
  const bool is_shape = (word.m == 64 && word.n % 8 == 0) || (word.m == 128 && word.n % 16 == 0);
  cluster->check(is_shape && word.n > 0 && word.n <= 256, "the shape of an instruction",
                 product.instruction);
  cluster->check(lane == 0 || (lane == kLanesOfLoad && word.m == 64), "the first lane of D", lane);
  check_columns(memory, column, word.n);
  if (cluster->has_faults()) return;
  const TensorDescriptor a = checked(product.a, product.high), b = checked(product.b, product.high);
  const ScalesOfProduct scales = scales_of(memory, product);
  if (cluster->has_faults()) return;
  std::vector<std::array<float, kK>> columns;
  for (std::uint32_t n = 0; n < word.n; ++n)
    columns.push_back(row_of(b, n, type_of(word.type_of_b), rank));
  // A quarter of the rows lies in the first lanes of each warp's.
  const std::uint32_t quarter = word.m / 4;
  for (std::uint32_t m = 0; m < word.m; ++m) {
    const auto row = row_of(a, m, type_of(word.type_of_a), rank);
    const std::uint32_t at =
        (m / quarter * kWarpLanes + lane + m % quarter) * kTensorWidth + column;
    for (std::uint32_t n = 0; n < word.n; ++n) {
      memory.cells[at + n] =
          add_products(product.adds ? memory.cells[at + n] : 0.0F, row, columns[n], scales, m, n);
      memory.are_words[at + n] = false;
      memory.writers[at + n] = {static_cast<std::uint32_t>(product.issuer), product.number};
    }
  }
}

// Whether a product or copy and one that was issued behind it are done in the order of their issue.
bool are_in_order(const TensorProduct& earlier, const TensorProduct& later) {
  using Kind = TensorProduct::Kind;
  if (earlier.issuer != later.issuer || later.kind == Kind::kCopy) return false;
  if (earlier.kind == Kind::kCopy) return true;
  const Shape a = shape_of(earlier), b = shape_of(later);
  return earlier.kind == later.kind && earlier.d == later.d && a.m == b.m && a.n == b.n;
}

// Does a product or copy, and before it those that are in order with it.
void do_in_order(TensorMemory& memory, std::size_t index, std::uint32_t rank) {
  for (std::size_t i = 0; i <= index; ++i) {
    TensorProduct& earlier = memory.products[i];
    if (earlier.is_done || (i < index && !are_in_order(earlier, memory.products[index]))) continue;
    if (i < index) {
      do_in_order(memory, i, rank);
      continue;
    }
    earlier.is_done = true;
    earlier.kind == TensorProduct::Kind::kCopy ? copy(memory, earlier, rank)
                                               : multiply(memory, earlier, rank);
  }
}

// The running thread sees that a product is done.
bool sees_done(const TensorMemory& memory, std::uint32_t issuer, std::uint32_t number) {
  return memory.sees[me()].products[issuer] >= number;
}

// Those who write onto what another product or copy wrote, or has as scales, know that it is done,
// or are in order with it. So are those who read scales with the copies that bring them.
void check_written(const TensorMemory& memory, const TensorProduct& product) {
  const Columns columns = written_by(product);
  for (const TensorProduct& earlier : memory.products) {
    const bool writes_there = written_by(earlier).meet(columns);
    const bool reads_there = reads_scales(earlier, columns);
    const bool is_read = reads_scales(product, written_by(earlier));
    if (!(writes_there || reads_there || is_read) || are_in_order(earlier, product)) continue;
    const auto issuer = static_cast<std::uint32_t>(earlier.issuer);
    cluster->check(sees_done(memory, issuer, earlier.number),
                   reads_there ? "scales are overwritten, and nothing orders that behind a product"
                   : is_read   ? "a product reads scales, and nothing orders it behind their copy"
                               : "a product writes onto another's sums, and nothing orders the two",
                   columns.first);
  }
}

void take(const TensorMemory& memory, const TensorLoad& load) {
  for (int i = 0; i < load.count; ++i) {
    const auto lane =
        lane_of(load.address) + me() % kWarp / 4 + static_cast<unsigned>(i / 2 % 2 * 8);
    const auto column = column_of(load.address) + static_cast<unsigned>(8 * (i / 4)) +
                        2 * (me() % 4) + static_cast<unsigned>(i % 2);
    load.to[i] = memory.cells[lane * kTensorWidth + column];
  }
}

// Those who overwrite these columns know that everybody has read them.
void check_read(TensorMemory& memory, std::uint32_t first, std::uint32_t last) {
  const std::vector<std::uint32_t>& sees = memory.sees[me()].fences;
  for (auto it = memory.reads.begin(); it != memory.reads.end();) {
    const TensorRead& read = it->second;
    if (read.last <= first || read.first >= last) {
      ++it;
      continue;
    }
    cluster->check(read.has_come, "a product overwrites sums that are being read", first);
    cluster->check(
        read.published != 0 && sees[static_cast<std::size_t>(read.thread)] >= read.published,
        "a product overwrites sums whose reader has not fenced and met the issuer",
        static_cast<std::uint32_t>(read.thread));
    it = memory.reads.erase(it);
  }
}

void merge(TensorKnowledge& into, const TensorKnowledge& from) {
  for (std::size_t i = 0; i < into.fences.size(); ++i) {
    into.fences[i] = std::max(into.fences[i], from.fences[i]);
    into.products[i] = std::max(into.products[i], from.products[i]);
  }
}

// Returns what was said at an mbarrier of the memory's own block, by its phase of now.
TensorArrivals& arrivals_of(TensorMemory& memory, std::uint32_t barrier, std::uint32_t rank) {
  constexpr std::uint32_t kPlace = (1U << kRankShift) - 1;
  const std::size_t threads = memory.fences.size();
  const TensorKnowledge nothing{std::vector<std::uint32_t>(threads),
                                std::vector<std::uint32_t>(threads)};
  TensorArrivals& at =
      memory.arrivals.try_emplace(barrier & kPlace, TensorArrivals{0, nothing, nothing})
          .first->second;
  const std::uint32_t phase = cluster->barrier((barrier & kPlace) | (rank + 1) << kRankShift).phase;
  if (phase != at.phase) {
    merge(at.completed, at.pending);
    at.pending = nothing;
    at.phase = phase;
  }
  return at;
}

}  // namespace

TensorMemory::TensorMemory(int threads)
    : cells(std::size_t{kTensorLanes} * kTensorWidth, std::numeric_limits<float>::quiet_NaN()),
      words(cells.size()),
      are_words(cells.size()),
      writers(cells.size()),
      loads(static_cast<std::size_t>(threads)),
      fences(static_cast<std::size_t>(threads)),
      issued(fences),
      block_meetings(fences),
      warp_meetings(fences),
      hears(static_cast<std::size_t>(threads), TensorKnowledge{fences, fences}),
      sees(hears),
      says(hears) {}

// PTX ISA, "Shared memory descriptor" of tcgen05: bits 0-13 address >> 4, 16-29 leading offset >>
// 4, 32-45 stride >> 4, 46-48 0b001, 49-51 base offset, 52 mode of the leading offset, 53-60 zero,
// 61-63 swizzle.
TensorDescriptor decode_descriptor(std::uint32_t low, std::uint32_t high) {
  TensorDescriptor d;
  d.address = (low & 0x3FFF) << 4;
  d.leading = (low >> 16 & 0x3FFF) << 4;
  d.stride = (high & 0x3FFF) << 4;
  d.version = high >> 14 & 7;
  d.base_offset = high >> 17 & 7;
  d.swizzle = high >> 29;
  d.others = (low >> 14 & 3) | (low >> 30) | (high >> 20 & 0x1FF);
  return d;
}

// PTX ISA, "Instruction descriptor" of kind::f8f6f4: bits 0-2 sparsity, 3 saturation, 4-5 type of
// D, 7-9 and 10-12 types of A and B, 13-14 negation, 15-16 transposition, 17-22 N >> 3, 24-28 M >>
// 4, 30-31 shift; 6, 23 and 29 are reserved.
TensorInstruction decode_instruction(std::uint32_t word) {
  TensorInstruction i;
  i.sums = word >> 4 & 3;
  i.type_of_a = word >> 7 & 7;
  i.type_of_b = word >> 10 & 7;
  i.n = (word >> 17 & 0x3F) * 8;
  i.m = (word >> 24 & 0x1F) * 16;
  constexpr std::uint32_t kOthers = 0xF | 1U << 6 | 0xFU << 13 | 1U << 23 | 7U << 29;
  i.others = word & kOthers;
  return i;
}

// PTX ISA, "Instruction descriptor" of kind::mxf8f6f4: bits 2 sparsity, 4-5 byte of B's scales, 7-9
// and 10-12 types of A and B, 13-14 negation, 15-16 transposition, 17-22 N >> 3, 23 type of the
// scales (1: UE8M0), 27-28 M >> 7, 29-30 byte of A's scales; 0-1, 3, 6, 24-26 and 31 are reserved.
TensorScaledInstruction decode_scaled_instruction(std::uint32_t word) {
  TensorScaledInstruction i;
  i.byte_of_b = word >> 4 & 3;
  i.type_of_a = word >> 7 & 7;
  i.type_of_b = word >> 10 & 7;
  i.n = (word >> 17 & 0x3F) * 8;
  i.type_of_scales = word >> 23 & 1;
  i.m = (word >> 27 & 3) * 128;
  i.byte_of_a = word >> 29 & 3;
  i.others = word & (0xF | 1U << 6 | 0xFU << 13 | 7U << 24 | 1U << 31);
  return i;
}

void tensor_allocate(std::uint32_t to, std::uint32_t columns) {
  TensorMemory& memory = own();
  const auto all = exchange(to);
  const bool is_first = all.lane == 0;
  const bool agree =
      std::all_of(all.values, all.values + kWarp, [&](std::uint32_t other) { return other == to; });
  release();
  cluster->check(agree, "lanes allocate differently", to);
  if (!is_first) return;
  cluster->check(columns >= 32 && columns <= kTensorWidth && (columns & (columns - 1)) == 0,
                 "columns of tensor memory to allocate", columns);
  cluster->check(memory.columns == 0, "tensor memory is allocated twice", columns);
  memory.columns = columns;
  memory.first = columns == kTensorWidth ? 0 : kTensorWidth - columns;
  memory.place = to;
  memory.taker = static_cast<std::uint32_t>(me());
  memory.taken = memory.says[me()].fences[me()] = ++memory.fences[me()];
  std::byte* p = cluster->memory(to, 4, 4);
  if (p != nullptr) std::memcpy(p, &memory.first, 4);
}

void tensor_release(std::uint32_t address, std::uint32_t columns) {
  TensorMemory& memory = own();
  const bool is_first = exchange(address).lane == 0;
  release();
  if (!is_first) return;
  cluster->check(address == memory.first && columns == memory.columns && columns > 0,
                 "tensor memory is given back that was not taken", address);
  // dealloc is synchronous, so that it needs no fence_after().
  const TensorKnowledge& hears = memory.hears[me()];
  for (const TensorProduct& product : memory.products) {
    const auto issuer = static_cast<std::size_t>(product.issuer);
    cluster->check(product.is_done && hears.products[issuer] >= product.number,
                   "tensor memory is given back before its products are known to be done", address);
  }
  for (const auto& [number, read] : memory.reads) {
    const auto reader = static_cast<std::size_t>(read.thread);
    cluster->check(read.has_come && read.published != 0 && hears.fences[reader] >= read.published,
                   "tensor memory is given back by a thread that has not met a reader",
                   static_cast<std::uint32_t>(read.thread));
  }
  memory.columns = 0;
}

void tensor_fence_before() {
  TensorMemory& memory = own();
  const std::uint32_t fence = ++memory.fences[me()];
  memory.says[me()] = memory.sees[me()];
  memory.says[me()].fences[me()] = fence;
  for (auto& [number, read] : memory.reads) {
    if (read.thread == static_cast<int>(me()) && read.has_come && read.published == 0)
      read.published = fence;
  }
}

void tensor_fence_after() {
  TensorMemory& memory = own();
  memory.sees[me()] = memory.hears[me()];
}

void tensor_meets(int barrier, std::uint32_t generation) {
  if (cluster->own_block().tensor == nullptr) return;
  TensorMemory& memory = own();
  const auto [at, is_new] = memory.meetings.try_emplace({barrier, generation}, memory.says[me()]);
  if (is_new) memory.meetings.erase({barrier, generation - 2});
  merge(at->second, memory.says[me()]);
}

void tensor_has_met(int barrier, std::uint32_t generation) {
  if (cluster->own_block().tensor == nullptr) return;
  TensorMemory& memory = own();
  merge(memory.hears[me()], memory.meetings.at({barrier, generation}));
}

void tensor_block_barrier() {
  constexpr int kNumber = -1;  // that no named barrier has
  if (cluster->own_block().tensor == nullptr) {
    block_barrier();
    return;
  }
  const std::uint32_t generation = own().block_meetings[me()]++;
  tensor_meets(kNumber, generation);
  block_barrier();
  tensor_has_met(kNumber, generation);
}

void tensor_warp_barrier() {
  if (cluster->own_block().tensor == nullptr) {
    release();
    return;
  }
  const int number = -2 - static_cast<int>(me() / kWarp);  // that no other barrier has
  const std::uint32_t generation = own().warp_meetings[me()]++;
  tensor_meets(number, generation);
  release();
  tensor_has_met(number, generation);
}

void tensor_arrives(std::uint32_t barrier) {
  if (cluster->own_block().tensor == nullptr || cluster->rank_of(barrier) != cluster->rank())
    return;
  TensorMemory& memory = own();
  merge(arrivals_of(memory, barrier, cluster->rank()).pending, memory.says[me()]);
}

void tensor_has_waited(std::uint32_t barrier) {
  if (cluster->own_block().tensor == nullptr) return;
  TensorMemory& memory = own();
  merge(memory.hears[me()], arrivals_of(memory, barrier, cluster->rank()).completed);
}

void tensor_reads_shared(std::uint32_t address) {
  if (cluster->own_block().tensor == nullptr) return;
  const TensorMemory& memory = own();
  if (memory.columns == 0 || address != memory.place || me() == memory.taker) return;
  cluster->check(memory.hears[me()].fences[memory.taker] >= memory.taken,
                 "a thread reads the address of tensor memory and has not met the one that took it",
                 memory.taker);
}

void tensor_issue(const TensorProduct& product) {
  TensorMemory& memory = own();
  TensorProduct own_product = product;
  own_product.issuer = static_cast<int>(me());
  own_product.number = ++memory.issued[me()];
  const Columns columns = written_by(product);
  check_read(memory, columns.first, columns.last);
  check_written(memory, own_product);
  memory.products.push_back(own_product);
  const std::size_t index = memory.products.size() - 1;
  const auto run = [&memory, index, rank = cluster->rank()] { do_in_order(memory, index, rank); };
  // A commit may do it first. tensor_release() asks for those that are left.
  cluster->defer({run, 0, "a product or copy of tcgen05"});
}

void tensor_commit(std::uint32_t barrier, std::uint32_t ranks) {
  TensorMemory& memory = own();
  tensor_fence_before();  // it implies one
  TensorKnowledge said = memory.says[me()];
  said.products[me()] = memory.issued[me()];
  const std::uint32_t own_rank = cluster->rank();
  if (ranks == 0) ranks = 1U << own_rank;
  const auto run = [&memory, barrier, ranks, own_rank, issuer = static_cast<int>(me()),
                    before = memory.products.size(), said = std::move(said)] {
    for (std::size_t i = 0; i < before; ++i) {
      if (memory.products[i].issuer == issuer) do_in_order(memory, i, own_rank);
    }
    merge(arrivals_of(memory, barrier, own_rank).pending, said);
    for (std::uint32_t rank = 0; ranks >> rank != 0; ++rank) {
      if ((ranks >> rank & 1U) != 0) cluster->arrive(barrier | (rank + 1) << kRankShift);
    }
  };
  cluster->defer({run, ranks, "a commit of tcgen05"});
}

void tensor_load(float* to, int count, std::uint32_t address) {
  TensorMemory& memory = own();
  const auto all = exchange(address);
  const bool agree = std::all_of(all.values, all.values + kWarp,
                                 [&](std::uint32_t other) { return other == address; });
  release();
  cluster->check(agree, "lanes of a warp load different columns", address);
  const auto first_lane = static_cast<std::uint32_t>(me() / kWarp % 4 * kWarpLanes);
  const std::uint32_t lane = lane_of(address), column = column_of(address);
  cluster->check(lane == first_lane || lane == first_lane + kLanesOfLoad,
                 "a warp loads lanes of tensor memory that are not its own", lane);
  const auto columns = static_cast<std::uint32_t>(count * 2);
  check_columns(memory, column, columns);
  if (cluster->has_faults()) return;
  while (memory.left < memory.products.size() && memory.products[memory.left].is_done)
    ++memory.left;
  for (std::size_t i = memory.left; i < memory.products.size(); ++i) {
    const TensorProduct& product = memory.products[i];
    if (product.is_done || !written_by(product).meet({column, column + columns})) continue;
    cluster->fault("a thread loads sums that a product is to write");
    return;
  }
  for (std::uint32_t i = 0; i < kLanesOfLoad; ++i) {
    for (std::uint32_t j = 0; j < columns; ++j) {
      const auto [issuer, number] =
          memory.writers[(lane + i) * std::size_t{kTensorWidth} + column + j];
      if (sees_done(memory, issuer, number)) continue;
      cluster->fault("a thread loads sums of a product that it does not know to be done");
      return;
    }
  }
  const std::size_t number = memory.next_read++;
  memory.reads[number] = {static_cast<int>(me()), column, column + columns, false, 0};
  const TensorLoad load{to, count, address, number};
  std::fill_n(to, count, std::numeric_limits<float>::quiet_NaN());
  if (cluster->happens_at_once()) take(memory, load);
  memory.loads[me()].push_back(load);
}

// A value that comes late is one of now.
void tensor_wait_loads() {
  TensorMemory& memory = own();
  for (const TensorLoad& load : memory.loads[me()]) {
    if (std::isnan(load.to[0])) take(memory, load);
    const auto read = memory.reads.find(load.read);
    if (read != memory.reads.end()) read->second.has_come = true;
  }
  memory.loads[me()].clear();
}

}  // namespace octile::emulation
