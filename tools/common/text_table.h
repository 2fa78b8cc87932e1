// A table for the terminal. Numbers are aligned right, words left.
#pragma once

#include <string>
#include <vector>

namespace octile::tools {

class TextTable {
 public:
  // A heading that begins with '<' aligns its column left; the '<' is not printed.
  explicit TextTable(std::vector<std::string> headings);
  // Takes one cell per heading. A cell's control characters, newlines among them, are escaped.
  void add_row(std::vector<std::string> cells);
  // Returns the lines, each indented by two spaces.
  std::string render() const;

 private:
  std::vector<std::string> headings_;
  std::vector<bool> left_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace octile::tools
