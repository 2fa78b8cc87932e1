#include "tests/support/gemm_cells.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <variant>

#include "generator/families.h"
#include "tests/support/cell_table.h"

namespace octile::tests {
namespace {

constexpr const char* kTable = "gemm.txt";
constexpr const char* kUnnamed = "-";

}  // namespace

Result<std::vector<GemmCell>> parse_gemm_cells(std::string_view table) {
  std::vector<GemmCell> cells;
  for (const CellRow& row : split_cells(table)) {
    if (row.size() != 3) {
      return fail_at(
          kTable, row.back(),
          fmt::format("a row of {} cells; allowed: name | problem | configuration", row.size()));
    }
    const std::string& name = row[0].text;
    if (name.empty())
      return fail_at(kTable, row[0], fmt::format("no name; allowed for none: {}", kUnnamed));
    if (name != kUnnamed && std::ranges::find(cells, name, &GemmCell::name) != cells.end())
      return fail_at(kTable, row[0], fmt::format("the name {} is there twice", name));
    const Result<Problem> problem = parse_problem(row[1].text);
    if (!problem) return fail_at(kTable, row[1], problem.error().message);
    const auto* gemm = std::get_if<GemmProblem>(&*problem);
    if (gemm == nullptr) return fail_at(kTable, row[1], "the problem is not a GEMM");
    const Result<GemmConfig> config = parse_gemm_config(row[2].text);
    if (!config) return fail_at(kTable, row[2], config.error().message);
    cells.push_back({{*gemm, *config}, name});
  }
  return cells;
}

Result<std::vector<GemmCell>> gemm_cells() {
  const Result<std::string> table = read_cells(kTable);
  if (!table) return tl::unexpected(table.error());
  return parse_gemm_cells(*table);
}

GemmVariant gemm_cell(std::string_view name) {
  static const std::vector<GemmCell> all = gemm_cells().value();
  const auto found = std::ranges::find(all, name, &GemmCell::name);
  if (found == all.end()) throw std::out_of_range(fmt::format("{} has no kernel {}", kTable, name));
  return found->kernel;
}

}  // namespace octile::tests
