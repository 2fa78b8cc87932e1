// A table for the terminal. Numbers are aligned right, words left.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace octile::tools {

class TextTable {
 public:
  // A heading that begins with '<' aligns its column left; the '<' is not printed.
  explicit TextTable(std::vector<std::string> headings);
  // Lets the cells of a column be cut in their middle if the table is too wide: to `least` columns
  // of text, and to fewer once leave_out() has no more columns.
  TextTable& cut(std::string_view heading, std::size_t least);
  // As cut(), of a column of modules, whose cells keep the number of their layer.
  TextTable& cut_name(std::string_view heading, std::size_t least);
  // Names columns that a table which is too wide even so leaves out, the first of them first.
  TextTable& leave_out(const std::vector<std::string_view>& headings);
  // Likewise columns that are left out once no cell can be cut any more.
  TextTable& leave_out_last(const std::vector<std::string_view>& headings);
  // Takes one cell per heading. A cell's control characters, newlines among them, are escaped.
  bool is_empty() const { return rows_.empty(); }
  void add_row(std::vector<std::string> cells);
  // Returns the lines, each indented by two spaces. No line has more than `width` columns, if cells
  // may be cut and columns left out so far; a width of 0 means all. A last line names what is left
  // out.
  std::string render(std::size_t width = 0) const;

 private:
  struct Column {
    std::string heading;
    bool left = false;
    std::size_t least = 0;  // 0: is not cut
    bool has_names = false;
    int leave_out = 0;     // 1: the first to be left out; 0: stays
    bool is_last = false;  // of leave_out_last()
  };
  using Shown = std::vector<std::size_t>;  // indices of columns
  std::size_t index_of(std::string_view heading) const;
  std::vector<std::size_t> natural_widths() const;
  // How far cells are cut: to their least, beyond it while names keep the number of a layer, or as
  // far as it goes.
  enum class Cut { kToLeast, kBeyondLeast, kWhole };
  std::size_t least_of(const Column& column, Cut cut) const;
  bool fit(const Shown& shown, std::size_t width, std::vector<std::size_t>& widths, Cut cut) const;
  std::string lines(const Shown& shown, const std::vector<std::size_t>& widths) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Prints the table for the terminal, or all of it if `wide`.
void print_table(const TextTable& table, bool wide = false);

}  // namespace octile::tools
