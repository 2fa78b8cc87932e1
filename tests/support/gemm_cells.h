// The GEMM kernels of tests/cells/gemm.txt. To add a kernel, add a row.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "generator/core/error.h"
#include "tests/support/gemm_variants.h"

namespace octile::tests {

struct GemmCell {
  GemmVariant kernel;
  std::string name;  // "-": none
};

Result<std::vector<GemmCell>> gemm_cells();
// Returns the same of a table's text.
Result<std::vector<GemmCell>> parse_gemm_cells(std::string_view table);

// Returns the kernel of this name, which the table must have.
GemmVariant gemm_cell(std::string_view name);

}  // namespace octile::tests
