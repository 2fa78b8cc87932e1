#include "tools/common/text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "tools/common/output.h"
#include "tools/common/terminal.h"

namespace octile::tools {
namespace {

constexpr std::size_t kGap = 2;         // before every cell
constexpr std::size_t kLeastCell = 5;   // columns of a cell that is cut as far as it goes
constexpr std::size_t kLeastName = 14;  // and of a name that keeps the number of its layer

std::string padded(const std::string& cell, std::size_t width, bool left) {
  const std::string spaces(width - std::min(width, columns_of(cell)), ' ');
  return left ? cell + spaces : spaces + cell;
}

}  // namespace

TextTable::TextTable(std::vector<std::string> headings) {
  for (std::string& heading : headings) {
    Column column;
    column.left = heading.starts_with('<');
    if (column.left) heading.erase(0, 1);
    column.heading = std::move(heading);
    columns_.push_back(std::move(column));
  }
}

std::size_t TextTable::index_of(std::string_view heading) const {
  const auto found = std::ranges::find(columns_, heading, &Column::heading);
  return static_cast<std::size_t>(found - columns_.begin());
}

TextTable& TextTable::cut(std::string_view heading, std::size_t least) {
  if (const std::size_t i = index_of(heading); i < columns_.size()) columns_[i].least = least;
  return *this;
}

TextTable& TextTable::cut_name(std::string_view heading, std::size_t least) {
  if (const std::size_t i = index_of(heading); i < columns_.size()) columns_[i].has_names = true;
  return cut(heading, least);
}

TextTable& TextTable::leave_out(const std::vector<std::string_view>& headings) {
  int order = 0;
  for (const std::string_view heading : headings) {
    ++order;
    if (const std::size_t i = index_of(heading); i < columns_.size()) columns_[i].leave_out = order;
  }
  return *this;
}

TextTable& TextTable::leave_out_last(const std::vector<std::string_view>& headings) {
  for (const std::string_view heading : headings) {
    if (const std::size_t i = index_of(heading); i < columns_.size()) columns_[i].is_last = true;
  }
  return leave_out(headings);
}

void TextTable::add_row(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = printable_line(cell);
  rows_.push_back(std::move(cells));
}

std::vector<std::size_t> TextTable::natural_widths() const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    widths.push_back(columns_of(columns_[i].heading));
    for (const auto& row : rows_) widths[i] = std::max(widths[i], columns_of(row[i]));
  }
  return widths;
}

std::size_t TextTable::least_of(const Column& column, Cut cut) const {
  if (cut == Cut::kToLeast) return column.least;
  return std::min(column.least,
                  column.has_names && cut == Cut::kBeyondLeast ? kLeastName : kLeastCell);
}

// Takes columns of text from the widest column that may be cut, until the table fits. Returns false
// if it does not fit even so.
bool TextTable::fit(const Shown& shown, std::size_t width, std::vector<std::size_t>& widths,
                    Cut cut) const {
  std::size_t total = 0;
  for (const std::size_t i : shown) total += widths[i] + kGap;
  while (width > 0 && total > width) {
    std::size_t widest = columns_.size();
    for (const std::size_t i : shown) {
      if (columns_[i].least == 0 || widths[i] <= least_of(columns_[i], cut)) continue;
      if (widest == columns_.size() || widths[i] > widths[widest]) widest = i;
    }
    if (widest == columns_.size()) return false;
    --widths[widest];
    --total;
  }
  return true;
}

std::string TextTable::lines(const Shown& shown, const std::vector<std::size_t>& widths) const {
  std::string text;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (const std::size_t i : shown) {
      line.append(kGap, ' ');
      const std::string cell = columns_[i].has_names ? cut_module(cell_of(i), widths[i])
                                                     : cut_middle(cell_of(i), widths[i]);
      line += padded(cell, widths[i], columns_[i].left);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_line([&](std::size_t i) -> const std::string& { return columns_[i].heading; });
  for (const auto& row : rows_) {
    add_line([&](std::size_t i) -> const std::string& { return row[i]; });
  }
  return text;
}

std::string TextTable::render(std::size_t width) const {
  Shown shown(columns_.size());
  std::iota(shown.begin(), shown.end(), std::size_t{0});
  std::vector<std::size_t> widths = natural_widths();
  std::string left_out;
  Cut cut = Cut::kToLeast;
  while (!fit(shown, width, widths, cut) && cut != Cut::kWhole) {
    const auto order = [&](std::size_t i) {
      const Column& column = columns_[i];
      const bool may_go = column.leave_out > 0 && column.is_last == (cut == Cut::kBeyondLeast);
      return may_go ? column.leave_out : static_cast<int>(columns_.size()) + 1;
    };
    const auto next = std::ranges::min_element(shown, {}, order);
    widths = natural_widths();
    if (order(*next) > static_cast<int>(columns_.size())) {
      cut = cut == Cut::kToLeast ? Cut::kBeyondLeast : Cut::kWhole;
      continue;
    }
    left_out += (left_out.empty() ? "" : ", ") + columns_[*next].heading;
    shown.erase(next);
  }
  std::string text = lines(shown, widths);
  if (left_out.empty()) return text;
  return text + "  " + wrapped("left out: " + left_out + "; --wide shows all", width, 2, 2) + "\n";
}

void print_table(const TextTable& table, bool wide) {
  const std::string text = table.render(wide ? 0 : line_width());
  const std::size_t heading = text.find('\n') + 1;
  print_heading(text.substr(0, heading));
  write_stdout(text.substr(heading));
}

}  // namespace octile::tools
