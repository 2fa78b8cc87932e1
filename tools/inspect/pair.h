// Compares two checkpoints tensor by tensor, such as an original and its FP8 form.
#pragma once

#include <string>
#include <vector>

#include "cache/json.h"
#include "generator/core/error.h"
#include "runtime/reference/quantize/loss_kernels.h"
#include "tools/common/text_table.h"
#include "tools/inspect/subjects.h"

namespace octile::tools {

struct PairRow {
  std::string name, a_dtype, b_dtype;
  std::int64_t elements = 0;
  reference::RunDifference difference;
};

// The rows of a table, and what stands in one of the two alone or has another shape.
struct Pairing {
  std::vector<std::pair<const Subject*, const Subject*>> both;
  std::vector<std::string> remarks;
};
Pairing pair_up(const Subjects& a, const Subjects& b);

// Compares values of equal shape; FP8 is code times scale. Errors: those of the files.
Result<PairRow> compare(const Subject& a, const Subject& b);

Json pair_json(const PairRow& row);
TextTable pair_table(std::vector<PairRow> rows, std::size_t top);

}  // namespace octile::tools
