#include "runtime/prove/gemm/check.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "generator/core/layout.h"
#include "runtime/reference/gemm/reference.h"
#include "runtime/reference/synthetic.h"

namespace octile {
namespace {

constexpr std::int64_t kRows = 2;
constexpr std::int64_t kCols = 64;

std::vector<reference::Fp64Window> sample_windows(std::int64_t m, std::int64_t n, int scattered,
                                                  std::uint64_t seed) {
  std::vector<reference::Fp64Window> windows;
  const auto add = [&](std::int64_t row, std::int64_t col) {
    windows.push_back({row, std::min(kRows, m - row), col, std::min(kCols, n - col)});
  };
  const std::int64_t last_row = std::max<std::int64_t>(m - kRows, 0);
  const std::int64_t last_col = std::max<std::int64_t>(n - kCols, 0);
  for (const std::int64_t row : {std::int64_t{0}, m / 2, last_row}) {
    for (const std::int64_t col : {std::int64_t{0}, n / 2, last_col}) add(row, col);
  }
  const auto draw = [&](int i, std::int64_t most) {
    return static_cast<std::int64_t>(reference::random_bits(seed, static_cast<std::uint64_t>(i)) %
                                     static_cast<std::uint64_t>(most + 1));
  };
  for (int i = 0; i < scattered; ++i) add(draw(2 * i, last_row), draw(2 * i + 1, last_col));
  return windows;
}

// Moves a window to rows of its masked group that exist. Returns false if there are none.
bool move_to_existing_rows(const GemmProblem& problem, const GemmCall& operands,
                           reference::Fp64Window& window) {
  if (problem.grouping != Grouping::kMasked) return true;
  const std::int64_t group = window.row0 / operands.shape.m;
  const std::int64_t rows = operands.group_rows[group];
  window.rows = std::min(window.rows, rows);
  window.row0 =
      group * operands.shape.m + std::min(window.row0 % operands.shape.m, rows - window.rows);
  return rows > 0;
}

// Returns true if no group of the window's rows has tokens in K.
bool sums_nothing(const GemmProblem& problem, const GemmCall& operands,
                  const reference::Fp64Window& window) {
  if (!groups_k(problem)) return false;
  const auto is_empty_at = [&](std::int64_t row) {
    const std::int64_t group = row / operands.shape.m;
    return operands.group_rows[group] == operands.group_rows[group + 1];
  };
  return is_empty_at(window.row0) && is_empty_at(window.row0 + window.rows - 1);
}

// Returns true if the sample can tell right from wrong. Operands that are zero or NaN cannot.
bool is_telling(const Sample& sample) {
  const auto finite = [](double value) { return std::isfinite(value); };
  return std::all_of(sample.r.begin(), sample.r.end(), finite) &&
         (sample.sums_nothing ||
          std::any_of(sample.s.begin(), sample.s.end(), [](double value) { return value > 0; }));
}

}  // namespace

std::int64_t elements_left(const GemmProblem& problem, const std::int32_t* group_rows) {
  if (!problem.accumulate || !groups_k(problem)) return 0;
  std::int64_t empty = 0;
  for (std::int64_t group = 0; group < problem.groups; ++group)
    empty += group_rows[group] == group_rows[group + 1] ? 1 : 0;
  return empty * problem.m * problem.n;
}

std::vector<reference::Fp64Window> windows_of(const GemmProblem& problem, const GemmCall& operands,
                                              int scattered, std::uint64_t seed) {
  auto windows =
      sample_windows(reference::rows_of_d(problem, operands), problem.n, scattered, seed);
  std::erase_if(windows, [&](reference::Fp64Window& window) {
    return !move_to_existing_rows(problem, operands, window);
  });
  return windows;
}

Result<Sample> sample_window(const GemmProblem& problem, const GemmCall& operands,
                             const reference::Fp64Window& window) {
  const auto count = static_cast<std::size_t>(window.rows * window.cols);
  Sample sample{window, std::vector<double>(count), std::vector<double>(count), operands.shape.k,
                sums_nothing(problem, operands, window)};
  if (Status ok = reference::gemm_fp64(problem, operands, window, sample.r.data(), sample.s.data());
      !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  return sample;
}

Result<std::vector<Sample>> sample_gemm(const GemmProblem& problem, const GemmCall& operands,
                                        int scattered, std::uint64_t seed) {
  std::vector<Sample> samples;
  for (const auto& window : windows_of(problem, operands, scattered, seed)) {
    auto sample = sample_window(problem, operands, window);
    if (!sample) return tl::unexpected<Error>(sample.error());
    samples.push_back(std::move(*sample));
  }
  return samples;
}

reference::ScalesOfD scales_of(const reference::Fp64Window& window, const float* scales,
                               std::int64_t ld) {
  if (scales == nullptr) return {};
  return {scales + window.col0 / 128 * ld + window.row0, ld, window.col0 % 128};
}

void check_sample(const GemmProblem& problem, const Sample& sample, const void* d, std::int64_t ldd,
                  GemmCheck& check, const reference::ScalesOfD& scales, SumPrecision sums) {
  const reference::Fp64Window at_origin{0, sample.window.rows, 0, sample.window.cols};
  auto report =
      reference::check_tolerance(d, problem.d.dtype, ldd, at_origin, sample.r, sample.s,
                                 reference::tolerance_c(problem.promote, sample.k, sums), scales);
  report.row += sample.window.row0;
  report.col += sample.window.col0;
  // The first window that fails is kept, else the worst.
  const bool ok = report.ok && is_telling(sample);
  const bool worse = report.worst_error_over_s > check.worst.worst_error_over_s;
  if (check.elements == 0 || (check.ok && (!ok || worse))) check.worst = report;
  check.error = std::max(check.error, report.worst_c * 0x1p-13);
  check.ok = check.ok && ok;
  check.elements += sample.window.rows * sample.window.cols;
}

Result<GemmCheck> check_gemm(const GemmProblem& problem, const HostTensor& a, const HostTensor& b,
                             const void* d, const GemmAddends& addends, const float* d_scale,
                             SumPrecision sums) {
  const auto operands = oracle_call(problem, a, b, addends);
  if (!operands) return tl::unexpected<Error>(operands.error());
  const auto samples = sample_gemm(problem, *operands);
  if (!samples) return tl::unexpected<Error>(samples.error());
  GemmCheck check;
  const std::int64_t ldd = default_ld(problem.d.dtype, problem.n);
  for (const Sample& sample : *samples) {
    const std::int64_t first = sample.window.row0 * ldd + sample.window.col0;
    check_sample(problem, sample, static_cast<const char*>(d) + first * size_of(problem.d.dtype),
                 ldd, check, scales_of(sample.window, d_scale, round_up(a.rows, 4)), sums);
  }
  return check;
}

}  // namespace octile
