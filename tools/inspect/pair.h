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

// The rows of a table, and what stands in one of the two alone or has another shape. Two files of
// one array each are a pair under any names (`are_arrays`).
struct Pairing {
  std::vector<std::pair<const Subject*, const Subject*>> both;
  std::vector<std::string> remarks;
};
Pairing pair_up(const Subjects& a, const Subjects& b, bool are_arrays);

// Compares values of equal shape; FP8 is code times scale. Errors: those of the files.
Result<PairRow> compare(const Subject& a, const Subject& b);

// The run before its first pair, and all of it.
Json pair_head(const std::vector<std::string>& paths, const Subjects& a, const Subjects& b,
               const Pairing& pairing);
Json pair_totals(const std::vector<PairRow>& rows, const std::vector<std::string>& problems,
                 const std::vector<std::string>& remarks);
Json pair_json(const PairRow& row);
TextTable pair_table(std::vector<PairRow> rows, std::size_t top);

}  // namespace octile::tools
