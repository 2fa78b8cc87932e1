#include "tools/common/text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tools/common/output.h"

namespace octile::tools {

TextTable::TextTable(std::vector<std::string> headings) : headings_(std::move(headings)) {
  for (std::string& heading : headings_) {
    left_.push_back(heading.starts_with('<'));
    if (left_.back()) heading.erase(0, 1);
  }
}

void TextTable::add_row(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = printable_line(cell);
  rows_.push_back(std::move(cells));
}

std::string TextTable::render() const {
  std::vector<std::size_t> widths;
  for (const std::string& heading : headings_) widths.push_back(heading.size());
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      line += left_[i] ? fmt::format("  {:<{}}", cells[i], widths[i])
                       : fmt::format("  {:>{}}", cells[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_line(headings_);
  for (const auto& row : rows_) add_line(row);
  return text;
}

}  // namespace octile::tools
