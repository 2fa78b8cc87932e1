// A table for the terminal: numbers to the right, words to the left.
#pragma once

#include <string>
#include <vector>

namespace octile::tools {

class TextTable {
 public:
  // A heading that begins with '<' is of a column of words, left-aligned; the mark is not printed.
  explicit TextTable(std::vector<std::string> headings);
  void add_row(std::vector<std::string> cells);  // as many as there are headings
  // Every line indented by two spaces and ended.
  std::string render() const;

 private:
  std::vector<std::string> headings_;
  std::vector<bool> left_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace octile::tools
