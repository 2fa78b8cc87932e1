#include "tools/models/bf16_roofline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace octile::tools {
namespace {

// The constants that tools/models/bf16_fit.py prints.
constexpr double kStartUs = 1.147;
constexpr double kMemoryShare = 0.95;   // of the rate of a stream that mostly reads
constexpr double kTensorShare = 0.718;  // of the datasheet's rate, which power does not allow
constexpr double kOverlapNorm = 3.52;
constexpr std::array<std::pair<std::int64_t, std::int64_t>, 4> kTiles{
    {{64, 64}, {128, 64}, {128, 128}, {128, 256}}};

// Equal GEMMs of one launch.
struct Gemms {
  std::int64_t count, m, n, k;
};

Gemms gemms_of(const GemmProblem& p, std::int64_t tokens) {
  if (groups_k(p)) return {p.groups, p.m, p.n, ceil_div(tokens, p.groups)};
  if (p.grouping == Grouping::kContiguous) {
    const std::int64_t filled = filled_groups(p, tokens);
    return {filled, ceil_div(tokens, filled), p.n, p.k};
  }
  return {whole_gemms(p), m_at(p, tokens), p.n, k_at(p, tokens)};
}

double area(std::int64_t rows, std::int64_t cols) {
  return static_cast<double>(rows) * static_cast<double>(cols);
}

// Returns the elements of D in whole rounds of the SMs, by the tile that has the fewest.
double rounds_of_tiles(const Gemms& g, int sm_count) {
  double least = 0;
  for (const auto& [rows, cols] : kTiles) {
    const std::int64_t tiles = g.count * ceil_div(g.m, rows) * ceil_div(g.n, cols);
    const double elements = static_cast<double>(round_up(tiles, sm_count)) * area(rows, cols);
    least = least == 0 ? elements : std::min(least, elements);
  }
  return least;
}

}  // namespace

std::int64_t filled_groups(const GemmProblem& problem, std::int64_t tokens) {
  return std::max<std::int64_t>(std::min(tokens, problem.groups), 1);
}

double bf16_us(const GemmProblem& problem, std::int64_t tokens, const DeviceSpec& device) {
  constexpr double kBytes = 2;
  const Gemms g = gemms_of(problem, tokens);
  const double d_bytes = size_of(problem.d.dtype) * (problem.accumulate ? 2.0 : 1.0);
  const double bytes = static_cast<double>(g.count) *
                       (kBytes * (area(g.m, g.k) + area(g.n, g.k)) + d_bytes * area(g.m, g.n));
  const double memory = bytes / (kMemoryShare * device.dram_tbps * 1e6);
  const double rate = kTensorShare * device.fp8_tflops / 2 * 1e6;  // operations a microsecond
  const double tensor = 2 * rounds_of_tiles(g, device.sm_count) * static_cast<double>(g.k) / rate;
  const double us =
      std::pow(std::pow(memory, kOverlapNorm) + std::pow(tensor, kOverlapNorm), 1 / kOverlapNorm);
  return kStartUs + us;
}

}  // namespace octile::tools
