#include "tests/support/gemm_cells.h"

#include <fmt/format.h>

#include <string>
#include <variant>

#include "generator/families.h"
#include "tests/support/cell_table.h"

namespace octile::tests {
namespace {

constexpr const char* kTable = "gemm.txt";
constexpr std::string_view kPrograms = "e";  // the letters that a program reads

}  // namespace

Result<std::vector<GemmVariant>> parse_gemm_cells(std::string_view table, char where) {
  std::vector<GemmVariant> found;
  for (const CellRow& row : split_cells(table)) {
    if (row.size() != 3) {
      return fail_at(
          kTable, row.back(),
          fmt::format("a row of {} cells; allowed: where | problem | configuration", row.size()));
    }
    const std::size_t unknown = row[0].text.find_first_not_of(kPrograms);
    if (row[0].text.empty() || unknown != std::string::npos) {
      return fail_at(
          kTable, row[0].line, row[0].column + (row[0].text.empty() ? 0 : unknown),
          fmt::format("where is '{}'; allowed: letters of '{}'", row[0].text, kPrograms));
    }
    const Result<Problem> problem = parse_problem(row[1].text);
    if (!problem) return fail_at(kTable, row[1], problem.error().message);
    const auto* gemm = std::get_if<GemmProblem>(&*problem);
    if (gemm == nullptr) return fail_at(kTable, row[1], "the problem is not a GEMM");
    const Result<GemmConfig> config = parse_gemm_config(row[2].text);
    if (!config) return fail_at(kTable, row[2], config.error().message);
    if (row[0].text.find(where) != std::string::npos) found.push_back({*gemm, *config});
  }
  return found;
}

Result<std::vector<GemmVariant>> gemm_cells(char where) {
  const Result<std::string> table = read_cells(kTable);
  if (!table) return tl::unexpected(table.error());
  return parse_gemm_cells(*table, where);
}

}  // namespace octile::tests
