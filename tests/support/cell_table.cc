#include "tests/support/cell_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace octile::tests {
namespace {

constexpr std::string_view kBlanks = " \t\r";

CellRow split_line(std::string_view text, std::size_t line) {
  CellRow row;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('|', begin), text.size());
    const std::string_view cell = text.substr(begin, end - begin);
    const std::size_t first = std::min(cell.find_first_not_of(kBlanks), cell.size());
    const std::size_t last = cell.find_last_not_of(kBlanks) + 1;
    row.push_back({std::string(cell.substr(first, last > first ? last - first : 0)), line,
                   begin + first + 1});
    begin = end + 1;
  }
  return row;
}

}  // namespace

std::vector<CellRow> split_cells(std::string_view table) {
  std::vector<CellRow> rows;
  for (std::size_t begin = 0, line = 1; begin < table.size(); ++line) {
    const std::size_t end = std::min(table.find('\n', begin), table.size());
    const std::string_view text = table.substr(begin, end - begin);
    const bool is_row = text.find_first_not_of(kBlanks) != std::string_view::npos;
    if (is_row && text.front() != '#') rows.push_back(split_line(text, line));
    begin = end + 1;
  }
  return rows;
}

Result<std::string> read_cells(const std::string& name) {
  const std::string path = OCTILE_SOURCE_DIR "/tests/cells/" + name;
  std::ostringstream text;
  if (std::ifstream file(path); !(text << file.rdbuf()))
    return fail(ErrorCode::kFile, path + " cannot be read");
  return text.str();
}

tl::unexpected<Error> fail_at(const std::string& name, std::size_t line, std::size_t column,
                              const std::string& sentence) {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{}:{}:{}: {}", name, line, column, sentence));
}

}  // namespace octile::tests
