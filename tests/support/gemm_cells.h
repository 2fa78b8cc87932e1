// The GEMM kernels of tests/cells/gemm.txt. To add a kernel, add a row.
#pragma once

#include <string_view>
#include <vector>

#include "generator/core/error.h"
#include "tests/support/gemm_variants.h"

namespace octile::tests {

// Returns the rows whose `where` has this letter.
Result<std::vector<GemmVariant>> gemm_cells(char where);
// Returns the same of a table's text.
Result<std::vector<GemmVariant>> parse_gemm_cells(std::string_view table, char where);

}  // namespace octile::tests
