// The support matrix is data: which combinations exist, which are refused and why. Validation,
// tests, the README table and `octile doctor --matrix` read this and nothing else.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/core/error.h"
#include "generator/problem.h"

namespace octile {

struct SupportRow {
  std::string_view operation;  // a problem text's first word: "gemm", "quantize", ...
  // The fields this row speaks for, in problem-text spelling; a field it does not name is free. A
  // value is given as its ':'-separated parts, each '*' or alternatives joined by '|'; parts left
  // out are free: "a=e4m3|e5m2:1x128 d=bf16" takes any scale format of those A operands.
  std::string_view pattern;
  bool supported = false;
  std::string_view reason;  // why refused, or what is special about a supported row
};

// First matching row decides; the last row of each operation refuses everything else.
std::span<const SupportRow> support_matrix();
const SupportRow& support_of(const Problem&);
bool matches(const SupportRow&, const Problem&);

// Whether the problem can be carried out: well formed, within the dimension rules (n % 8, k % 16,
// sizes within 2^63-1 bytes) and supported by the matrix.
// Errors: kInvalidArgument naming the field, its value and what is allowed; kUnsupported with the
// row's reason.
Status check_supported(const Problem&);

// The matrix as a table for the README and `octile doctor --matrix`.
std::string support_matrix_markdown();

}  // namespace octile
