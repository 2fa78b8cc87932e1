// How far a GEMM's result is from FP64 on the same operands, sampled.
#pragma once

#include <cstdint>
#include <vector>

#include "generator/gemm/problem.h"
#include "runtime/measure/tensor.h"
#include "runtime/prove/gemm/tensor_arguments.h"
#include "runtime/prove/gemm/tolerance.h"

namespace octile {

struct GemmCheck {
  bool ok = true;
  std::int64_t elements = 0;
  // The largest (|D - R| - ulp(R) / 2) / S of all windows; infinite if D is not finite where R is.
  double error = 0;
  // The failing window that was checked first. If none fails: the one of the largest |D - R| / S.
  reference::ToleranceReport worst;
};

// R and S (reference::gemm_fp64) of one window of D.
struct Sample {
  reference::Fp64Window window;
  std::vector<double> r, s;  // row-major [rows][cols]
  std::int64_t k = 0;        // the length of the sums
  // The window is of a group of K without tokens: no operand belongs to it, and D keeps its value.
  bool sums_nothing = false;
};

Result<Sample> sample_window(const GemmProblem& problem, const GemmCall& operands,
                             const reference::Fp64Window& window);

// Returns windows of the first, the middle and the last rows and columns of D, and `scattered` more
// at places drawn by `seed`, which are those of sample_gemm. Reads no operand.
std::vector<reference::Fp64Window> windows_of(const GemmProblem& problem, const GemmCall& operands,
                                              int scattered, std::uint64_t seed);
// Returns samples of these windows. Errors: as reference::gemm_fp64.
Result<std::vector<Sample>> sample_gemm(const GemmProblem& problem, const GemmCall& operands,
                                        int scattered = 0, std::uint64_t seed = 0);

// Returns how many elements of D a call leaves as they are: of a problem that adds to D, those of
// groups along K without tokens. group_rows: [groups + 1], where such groups begin; without such
// groups unread.
std::int64_t elements_left(const GemmProblem& problem, const std::int32_t* group_rows);

// Returns the scales of a window of FP8 D, of which `scales`, [..][ld], are all.
reference::ScalesOfD scales_of(const reference::Fp64Window& window, const float* scales,
                               std::int64_t ld);

// Compares one window of D, [window.rows][ldd] from its first element, with its sample. A window
// whose operands are not finite or all zero is not ok either. FP8 D has scales. sums: of the
// device that D comes from.
void check_sample(const GemmProblem& problem, const Sample& sample, const void* d, std::int64_t ldd,
                  GemmCheck& check, const reference::ScalesOfD& scales = {},
                  SumPrecision sums = {});

// Checks samples of d, whose rows are packed, and returns the result. No sample has a row that a
// masked group lacks.
// d_scale: the scales of FP8 D, packed. sums: as for check_sample.
Result<GemmCheck> check_gemm(const GemmProblem& problem, const HostTensor& a, const HostTensor& b,
                             const void* d, const GemmAddends& addends = {},
                             const float* d_scale = nullptr, SumPrecision sums = {});

}  // namespace octile
