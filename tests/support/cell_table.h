// Reads the tables of tests/cells: one row a line, whose cells are separated by bars. Empty lines
// and lines that begin with # are skipped.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "generator/core/error.h"

namespace octile::tests {

// Text of a table, and the line and column of its first character, from 1.
struct Cell {
  std::string text;
  std::size_t line = 0, column = 0;
};
using CellRow = std::vector<Cell>;  // at least one cell

std::vector<CellRow> split_cells(std::string_view table);

// Returns the text of tests/cells/<name>. Errors: kFile.
Result<std::string> read_cells(const std::string& name);

// Returns an error at a place of a table: "gemm.txt:12:30: <sentence>".
tl::unexpected<Error> fail_at(const std::string& name, std::size_t line, std::size_t column,
                              const std::string& sentence);
inline tl::unexpected<Error> fail_at(const std::string& name, const Cell& cell,
                                     const std::string& sentence) {
  return fail_at(name, cell.line, cell.column, sentence);
}

}  // namespace octile::tests
