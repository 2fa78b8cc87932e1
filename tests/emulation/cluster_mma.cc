#include "tests/emulation/cluster_mma.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "tests/emulation/cluster.h"
#include "tests/support/device_emulation.h"
#include "tests/support/fp8_values.h"

namespace octile::emulation {

tests::SumModel mma_sums = tests::kExactSums;

namespace {

constexpr int kTiles = 4;     // of an ldmatrix.x4
constexpr int kTileRows = 8;  // of 16 bytes
constexpr std::size_t kM = 16, kN = 8, kK = 32;
constexpr std::size_t kMostLoads = 64;  // more than a warp holds fragments of
// A register's name: kMark, the load's number in 22 bits, the register.
constexpr std::uint32_t kMark = 0xA5;
constexpr std::uint32_t kNumbers = 1U << 22;

unsigned current_lane() { return current_thread.x % kWarp; }

void check_banks(const MatrixLoad& load, int tile) {
  std::uint32_t seen = 0;
  for (int row = 0; row < kTileRows; ++row) {
    seen |= 1U << (load.address[static_cast<std::size_t>(tile * kTileRows + row)] >> 4 & 7U);
  }
  cluster->check(seen == 0xFF, "rows of ldmatrix meet in a bank; its first row is at",
                 load.address[static_cast<std::size_t>(tile * kTileRows)]);
}

void read(MatrixLoad& load) {
  load.has_come = true;
  const auto [first, last] = std::ranges::minmax(load.address);
  const std::byte* p = cluster->memory(first, last - first + 16, 16);
  for (int tile = 0; tile < kTiles; ++tile) {
    check_banks(load, tile);
    std::uint8_t* codes = load.tiles[static_cast<std::size_t>(tile)].codes.data();
    for (int row = 0; row < kTileRows; ++row) {
      const std::uint32_t address = load.address[static_cast<std::size_t>(tile * kTileRows + row)];
      cluster->check(address % 16 == 0, "a misaligned row of ldmatrix", address);
      if (p != nullptr) std::memcpy(codes + 16 * row, p + (address - first), 16);
    }
  }
}

MatrixLoad* find(WarpMatrices& warp, std::uint32_t name) {
  const std::uint32_t number = name >> 2 & (kNumbers - 1);
  const std::uint32_t first = warp.loads.empty() ? 0 : warp.loads.front().number;
  const std::uint32_t index = (number - first) % kNumbers;
  const bool is_known = name >> 24 == kMark && index < warp.loads.size();
  cluster->check(is_known, "a fragment that ldmatrix has not loaded, or long ago", name);
  return is_known ? &warp.loads[index] : nullptr;
}

// Returns the load of a register that all lanes name, with its values.
MatrixLoad* arrived(WarpMatrices& warp, std::uint32_t name) {
  MatrixLoad* load = find(warp, name);
  if (load == nullptr) return nullptr;
  cluster->check(load->lanes == kWarp, "not all lanes have called ldmatrix", name);
  if (!load->has_come) read(*load);
  return load;
}

const MatrixTile* tile_of(WarpMatrices& warp, std::uint32_t name, DType type) {
  MatrixLoad* load = arrived(warp, name);
  if (load == nullptr) return nullptr;
  if (!std::exchange(load->is_decoded, true)) {
    const tests::Fp8Values& values = tests::fp8_values(type);
    for (MatrixTile& tile : load->tiles) {
      for (std::size_t i = 0; i < tile.codes.size(); ++i) {
        tile.values[i] = tile.transposed[i % 16 * 8 + i / 16] = values[tile.codes[i]];
      }
    }
  }
  return &load->tiles[name & 3U];
}

using Sums = std::array<float, kM * kN>;

// Adds the exact products of 8 rows and 8 columns over 16 of K.
void add_exactly(const MatrixTile& a, const MatrixTile& b, float* sums) {
  for (std::size_t row = 0; row < 8; ++row) {
    for (std::size_t k = 0; k < 16; ++k) {
      const float value = a.values[row * 16 + k];
      for (std::size_t n = 0; n < kN; ++n) sums[row * kN + n] += value * b.transposed[k * kN + n];
    }
  }
}

constexpr std::uint8_t kOne = 127;  // the code of a scale of 1
constexpr std::uint8_t kNan = 255;

// The codes of an instruction's scales. PTX ISA, "Block Scaling for mma.sync", scale_vec::1X with
// thread-id 0: of a quad's lanes the first has the scale of A's row lane / 4 and of B's column, and
// the second that of row lane / 4 + 8.
struct Scales {
  std::array<std::uint8_t, kM> of_rows;
  std::array<std::uint8_t, kN> of_columns;

  explicit Scales(const WarpMatrices& warp) {
    for (std::size_t row = 0; row < kM; ++row) of_rows[row] = warp.scales_a[row % 8 * 4 + row / 8];
    for (std::size_t column = 0; column < kN; ++column)
      of_columns[column] = warp.scales_b[column * 4];
  }
  bool are_ones() const {
    const auto is_one = [](std::uint8_t code) { return code == kOne; };
    return std::ranges::all_of(of_rows, is_one) && std::ranges::all_of(of_columns, is_one);
  }
};

// Adds the products as the card does.
void add_as(const tests::SumModel& model, const std::array<const MatrixTile*, 6>& tiles,
            const Scales& scales, Sums& sums) {
  std::array<float, kK> a{}, b{};
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::size_t row = i / kN, column = i % kN;
    for (std::size_t half = 0; half < 2; ++half) {
      const auto put = [&](const MatrixTile& tile, std::size_t from, std::array<float, kK>& to) {
        std::copy_n(tile.values.data() + from % 8 * 16, 16, to.data() + half * 16);
      };
      put(*tiles[half * 2 + row / 8], row, a);
      put(*tiles[4 + half], column, b);
    }
    const int of_row = scales.of_rows[row], of_column = scales.of_columns[column];
    sums[i] = of_row == kNan || of_column == kNan
                  ? std::numeric_limits<float>::quiet_NaN()
                  : tests::add_products(sums[i], a, b, model, of_row + of_column - 2 * kOne);
  }
}

// PTX ISA, "Matrix Fragments for mma.m16n8k32", with g = lane / 4 and t = lane % 4: a[0] has row g
// and k from 4 * t on, a[1] row g + 8, a[2] and a[3] the same 16 further in k; b0 has column g and
// k from 4 * t on, b1 16 further; d[0] and d[1] are row g, columns 2 * t and 2 * t + 1, d[2] and
// d[3] those of row g + 8.
void multiply(WarpMatrices& warp, DType of_a, DType of_b) {
  std::array<const MatrixTile*, 6> tiles{};
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const std::uint32_t name = warp.operands[0][i];
    for (const auto& lane : warp.operands) {
      cluster->check(lane[i] == name, "lanes multiply what they loaded at different times", name);
    }
    tiles[i] = tile_of(warp, name, i < 4 ? of_a : of_b);
    if (tiles[i] == nullptr) return;
  }
  Sums sums{};
  const auto place_of = [](std::size_t lane, std::size_t i) {
    return (lane / 4 + i / 2 * 8) * kN + lane % 4 * 2 + i % 2;
  };
  for (std::size_t lane = 0; lane < kWarp; ++lane) {
    for (std::size_t i = 0; i < 4; ++i) sums[place_of(lane, i)] = warp.d[lane][i];
  }
  const Scales scales(warp);
  if (mma_sums.bits == 0 && scales.are_ones()) {
    for (std::size_t half = 0; half < 2; ++half) {
      for (std::size_t rows = 0; rows < 2; ++rows) {
        add_exactly(*tiles[half * 2 + rows], *tiles[4 + half], sums.data() + rows * 8 * kN);
      }
    }
  } else {
    add_as(mma_sums, tiles, scales, sums);
  }
  for (std::size_t lane = 0; lane < kWarp; ++lane) {
    for (std::size_t i = 0; i < 4; ++i) warp.d[lane][i] = sums[place_of(lane, i)];
  }
}

}  // namespace

void load_matrices(std::uint32_t (&registers)[4], std::uint32_t address) {
  WarpMatrices& warp = cluster->matrices();
  const std::size_t lane = current_lane();
  const std::uint32_t number = warp.issued[lane]++;
  const std::uint32_t first = warp.loads.empty() ? 0 : warp.loads.front().number;
  if (number - first == warp.loads.size()) {
    warp.loads.push_back({.number = number, .is_late = !cluster->happens_at_once()});
    if (warp.loads.size() > kMostLoads) warp.loads.pop_front();
  }
  const std::uint32_t name = kMark << 24 | number % kNumbers << 2;
  for (std::uint32_t i = 0; i < kTiles; ++i) registers[i] = name | i;
  MatrixLoad* load = find(warp, name);
  if (load == nullptr) return;
  load->address[lane] = address;
  if (++load->lanes == kWarp && !load->is_late) read(*load);
}

void multiply_fragments(DType of_a, DType of_b, float (&d)[4], const std::uint32_t (&a)[4],
                        std::uint32_t b0, std::uint32_t b1) {
  multiply_scaled_fragments(of_a, of_b, d, a, b0, b1, kOne, kOne, 0);
}

void multiply_scaled_fragments(DType of_a, DType of_b, float (&d)[4], const std::uint32_t (&a)[4],
                               std::uint32_t b0, std::uint32_t b1, std::uint32_t scales_a,
                               std::uint32_t scales_b, int byte) {
  WarpMatrices& warp = cluster->matrices();
  const std::size_t lane = current_lane();
  warp.d[lane] = d;
  warp.operands[lane] = {a[0], a[1], a[2], a[3], b0, b1};
  warp.scales_a[lane] = static_cast<std::uint8_t>(scales_a >> byte * 8);
  warp.scales_b[lane] = static_cast<std::uint8_t>(scales_b >> byte * 8);
  if (warp.meeting.arrived == kWarp - 1) multiply(warp, of_a, of_b);
  warp.meeting.wait(kWarp, "mma.sync");
}

std::uint32_t loaded_value(std::uint32_t name) {
  const MatrixLoad* load = arrived(cluster->matrices(), name);
  std::uint32_t value = 0xFFFFFFFF;
  if (load != nullptr) {
    std::memcpy(&value, load->tiles[name & 3U].codes.data() + 4 * current_lane(), sizeof value);
  }
  return value;
}

}  // namespace octile::emulation
