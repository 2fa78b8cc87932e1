#include "generator/core/support.h"

#include <fmt/format.h>

#include <algorithm>

namespace octile {
namespace {

// Returns the text before the next `separator`, and removes both from `text`.
std::string_view take(std::string_view& text, char separator) {
  const std::size_t cut = std::min(text.find(separator), text.size());
  const std::string_view head = text.substr(0, cut);
  text.remove_prefix(std::min(cut + 1, text.size()));
  return head;
}

bool part_matches(std::string_view alternatives, std::string_view part) {
  if (alternatives == "*") return true;
  while (!alternatives.empty()) {
    if (take(alternatives, '|') == part) return true;
  }
  return false;
}

bool value_matches(std::string_view pattern, const FieldValue& value) {
  for (std::size_t i = 0; !pattern.empty() && i < value.parts.size(); ++i) {
    if (!part_matches(take(pattern, ':'), value.parts[i])) return false;
  }
  return pattern.empty();
}

bool pattern_matches(std::string_view pattern, const FieldValues& values) {
  while (!pattern.empty()) {
    std::string_view field = take(pattern, ' ');
    const std::string_view name = take(field, '=');
    const auto it = std::find_if(values.begin(), values.end(),
                                 [&](const FieldValue& v) { return v.name == name; });
    if (it == values.end() || !value_matches(field, *it)) return false;
  }
  return true;
}

std::string supported_patterns(std::span<const SupportRow> rows, std::string_view operation) {
  std::string text;
  for (const SupportRow& row : rows) {
    if (row.operation != operation || !row.supported) continue;
    text.append(text.empty() ? "" : "; ").append(row.pattern);
  }
  return text;
}

}  // namespace

FieldValue type_value(std::string_view name, const TensorType& t) {
  return {name, {name_of(t.dtype), name_of(t.granularity), name_of(t.scale)}};
}

bool matches(const SupportRow& row, std::string_view operation, const FieldValues& values) {
  return row.operation == operation && pattern_matches(row.pattern, values);
}

const SupportRow& first_match(std::span<const SupportRow> rows, std::string_view operation,
                              const FieldValues& values) {
  return *std::find_if(rows.begin(), rows.end(),
                       [&](const SupportRow& row) { return matches(row, operation, values); });
}

Status check_rows(std::span<const SupportRow> rows, std::string_view operation,
                  const FieldValues& values, std::string_view problem_text) {
  const SupportRow& row = first_match(rows, operation, values);
  if (row.supported) return {};
  return fail(ErrorCode::kUnsupported,
              fmt::format("'{}' is not supported: {}; supported are {}", problem_text, row.reason,
                          supported_patterns(rows, operation)));
}

std::string to_markdown(const SupportRow& row) {
  std::string pattern = row.pattern.empty() ? "anything else" : fmt::format("`{}`", row.pattern);
  // A '|' would end the table's cell, also inside backquotes.
  for (std::size_t at = pattern.find('|'); at != std::string::npos;
       at = pattern.find('|', at + 2)) {
    pattern.insert(at, 1, '\\');
  }
  return fmt::format("| {} | {} | {} | {} |\n", row.operation, pattern,
                     row.supported ? "yes" : "no", row.reason);
}

}  // namespace octile
