#include "tests/emulation/cluster_mma.h"

#include <cstring>

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

// Register j of lane i has bytes 4 * (i % 4) to 4 * (i % 4) + 3 of row i / 4 of tile j.
void read(MatrixLoad& load) {
  load.has_come = true;
  for (int tile = 0; tile < kTiles; ++tile) {
    check_banks(load, tile);
    auto& registers = load.registers[static_cast<std::size_t>(tile)];
    for (int row = 0; row < kTileRows; ++row) {
      const std::uint32_t address = load.address[static_cast<std::size_t>(tile * kTileRows + row)];
      const std::byte* p = cluster->memory(address, 16, 16);
      if (p != nullptr) std::memcpy(registers.data() + 4 * row, p, 16);
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

std::uint32_t value_for(WarpMatrices& warp, std::uint32_t name, std::size_t lane) {
  MatrixLoad* load = find(warp, name);
  if (load == nullptr) return 0xFFFFFFFF;
  cluster->check(load->lanes == kWarp, "not all lanes have called ldmatrix", name);
  if (!load->has_come) read(*load);
  return load->registers[name & 3U][lane];
}

void decode(std::uint32_t word, const tests::Fp8Values& values, float* four) {
  for (int byte = 0; byte < 4; ++byte) four[byte] = values[word >> 8 * byte & 0xFFU];
}

// With g = lane / 4 and t = lane % 4 (PTX ISA, "Matrix Fragments for mma.m16n8k32"): a[0] has row g
// and k from 4 * t on, a[1] row g + 8, a[2] and a[3] the same 16 further in k; b0 has column g and
// k from 4 * t on, b1 16 further; d[0] and d[1] are row g, columns 2 * t and 2 * t + 1, d[2] and
// d[3] those of row g + 8.
void multiply(WarpMatrices& warp, DType of_a, DType of_b) {
  std::array<std::array<float, kK>, kM> a{};
  std::array<std::array<float, kK>, kN> b{};
  const tests::Fp8Values& values_a = tests::fp8_values(of_a);
  const tests::Fp8Values& values_b = tests::fp8_values(of_b);
  for (std::size_t lane = 0; lane < kWarp; ++lane) {
    const std::size_t g = lane / 4, k = lane % 4 * 4;
    const auto value = [&](std::size_t i) { return value_for(warp, warp.operands[lane][i], lane); };
    for (std::size_t i = 0; i < 4; ++i) {
      decode(value(i), values_a, &a[g + i % 2 * 8][k + i / 2 * 16]);
    }
    for (std::size_t i = 0; i < 2; ++i) decode(value(4 + i), values_b, &b[g][k + i * 16]);
  }
  for (std::size_t lane = 0; lane < kWarp; ++lane) {
    for (std::size_t i = 0; i < 4; ++i) {
      float& d = warp.d[lane][i];
      d = tests::add_products(d, a[lane / 4 + i / 2 * 8], b[lane % 4 * 2 + i % 2], mma_sums);
    }
  }
}

}  // namespace

void load_matrices(std::uint32_t (&registers)[4], std::uint32_t address) {
  WarpMatrices& warp = cluster->matrices();
  const std::size_t lane = current_lane();
  const std::uint32_t number = warp.issued[lane]++;
  const std::uint32_t first = warp.loads.empty() ? 0 : warp.loads.front().number;
  if (number - first == warp.loads.size()) {
    warp.loads.push_back({.number = number, .is_late = cluster->comes_late()});
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
  WarpMatrices& warp = cluster->matrices();
  const std::size_t lane = current_lane();
  warp.d[lane] = d;
  warp.operands[lane] = {a[0], a[1], a[2], a[3], b0, b1};
  if (warp.meeting.arrived == kWarp - 1) multiply(warp, of_a, of_b);
  warp.meeting.wait(kWarp, "mma.sync");
}

std::uint32_t loaded_value(std::uint32_t name) {
  return value_for(cluster->matrices(), name, current_lane());
}

}  // namespace octile::emulation
