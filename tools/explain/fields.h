// The meaning of each field of a problem's text, in words.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octile::tools {

struct FieldMeaning {
  std::string_view name;
  std::string_view values;     // what it takes
  std::string_view otherwise;  // the value if it is left out; empty: it must be given
  std::string_view meaning;
  bool is_source = false;  // its functions and names are in the section "Fused sources"
};

struct OperationMeaning {
  std::string_view name;     // the first word of the text
  std::string_view formula;  // what it computes
  std::string_view example;
  std::span<const FieldMeaning> fields;
};
std::span<const OperationMeaning> operation_meanings();

// Returns nullptr if there is no such operation.
const OperationMeaning* find_operation(std::string_view name);
const FieldMeaning* find_field(const OperationMeaning& operation, std::string_view name);

// Returns the functions and the names that a fused source may have: "functions: add(a,b), ...;
// names: relu, ...".
std::string source_words();

// Returns the tables of docs/problems.md, those of fused sources last.
std::string fields_markdown();

}  // namespace octile::tools
