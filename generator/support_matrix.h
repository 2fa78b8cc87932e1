// The support matrix is data: which combinations exist, which are refused and why. Validation, tests,
// the README table and `octile doctor --matrix` read this and nothing else.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/error.h"
#include "generator/problem.h"

namespace octile {

struct SupportRow {
  std::string_view operation;  // "gemm" or "quantize"
  std::string_view pattern;    // the fields this row speaks for, in problem-text spelling, '*' free
  bool supported = false;
  std::string_view reason;     // why refused, or what is special about a supported row
};

// First matching row decides; the last row of each operation refuses everything else.
std::span<const SupportRow> support_matrix();
const SupportRow& support_of(const Problem&);

// Dimension rules (n % 8, k % 16, sizes within 2^63-1) and the matrix. The error names the field, its
// value and what is allowed.
Status check_supported(const Problem&);

std::string support_matrix_markdown();

}  // namespace octile
