#include "generator/core/support.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

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

FieldValue* find(FieldValues& values, std::string_view name) {
  const auto it = std::ranges::find(values, name, &FieldValue::name);
  return it == values.end() ? nullptr : &*it;
}

// Returns the pattern of a field, "e4m3|e5m2:1x128"; empty if the row leaves the field free.
std::string_view pattern_of(std::string_view pattern, std::string_view name) {
  while (!pattern.empty()) {
    std::string_view field = take(pattern, ' ');
    if (take(field, '=') == name) return field;
  }
  return {};
}

// A type that is not FP8 has no granularity and no scales.
void drop_scales_of_plain(FieldValue& value) {
  if (value.parts[1].empty()) return;
  const auto type = parse_dtype(value.parts[0]);
  if (type && !is_fp8(*type)) value = type_value(value.name, {*type});
}

// Replaces each part that the pattern refuses by the first one that it takes.
void move_into(std::string_view pattern, FieldValue& value) {
  for (std::size_t i = 0; !pattern.empty() && i < value.parts.size(); ++i) {
    std::string_view alternatives = take(pattern, ':');
    if (!part_matches(alternatives, value.parts[i])) value.parts[i] = take(alternatives, '|');
  }
  drop_scales_of_plain(value);
}

// Returns the values of a field that a supported row takes and that differ from `value` in one
// part; of a field that the row leaves free, the usual value.
std::vector<FieldValue> values_beside(const SupportRow& row, const FieldValue& value,
                                      const FieldValues& usual) {
  std::vector<FieldValue> others;
  std::string_view pattern = pattern_of(row.pattern, value.name);
  if (pattern.empty()) {
    const auto it = std::ranges::find(usual, value.name, &FieldValue::name);
    if (it != usual.end() && it->parts != value.parts) others.push_back(*it);
    return others;
  }
  for (std::size_t i = 0; !pattern.empty() && i < value.parts.size(); ++i) {
    std::string_view alternatives = take(pattern, ':');
    if (alternatives == "*") continue;
    while (!alternatives.empty()) {
      FieldValue other = value;
      other.parts[i] = take(alternatives, '|');
      drop_scales_of_plain(other);
      if (other.parts != value.parts) others.push_back(other);
    }
  }
  return others;
}

// Fields that differ, then parts that differ.
using Distance = std::pair<std::size_t, std::size_t>;

Distance distance(const FieldValues& from, const FieldValues& to) {
  Distance d{0, 0};
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (from[i].parts == to[i].parts) continue;
    ++d.first;
    for (std::size_t part = 0; part < from[i].parts.size(); ++part)
      d.second += from[i].parts[part] != to[i].parts[part] && to[i].parts[part] != "none" ? 1U : 0U;
  }
  return d;
}

// The search for the values nearest to a refused problem's that a supported row takes.
struct NearestSearch {
  std::span<const SupportRow> rows;
  std::string_view operation;
  const FieldValues& from;
  const FieldValues& usual;
  std::optional<NearestSupport> best;
  Distance best_distance;

  // Considers values that `row` takes. If an earlier row refuses them, changes a field by which it
  // does, at most `changes` times.
  void consider(const SupportRow& row, const FieldValues& values, int changes) {
    const Distance d = distance(from, values);
    if (best && d >= best_distance) return;
    const SupportRow& first = first_match(rows, operation, values);
    if (first.supported) {
      best = NearestSupport{&row, values};
      best_distance = d;
      return;
    }
    if (changes == 0) return;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::string_view refused = pattern_of(first.pattern, values[i].name);
      if (refused.empty()) continue;
      for (const FieldValue& other : values_beside(row, values[i], usual)) {
        if (value_matches(refused, other)) continue;
        FieldValues changed = values;
        changed[i] = other;
        consider(row, changed, changes - 1);
      }
    }
  }
};

// Returns the field as a sentence says it. Parts that the row's pattern refuses of `from` are given
// as the pattern has them, with all alternatives.
std::string field_text(std::string_view pattern, const FieldValue& from, const FieldValue& to) {
  if (to.parts[0] == "none" || to.parts[0] == "x") return fmt::format("no {}", to.name);
  if (to.parts[0] == "number") return fmt::format("a number as {}", to.name);
  FieldValue moved = from;
  move_into(pattern, moved);
  std::string text;
  for (std::size_t i = 0; i < to.parts.size() && !to.parts[i].empty() && to.parts[i] != "none";
       ++i) {
    const std::string_view alternatives = take(pattern, ':');
    const bool any = moved.parts == to.parts && to.parts[i] != from.parts[i];
    text.append(text.empty() ? "" : ":").append(any ? alternatives : to.parts[i]);
  }
  return fmt::format("{}={}", to.name, text);
}

// Returns "; the nearest supported one has d=bf16 and promote=32|64|128 instead".
std::string nearest_text(const FieldValues& values, const NearestSupport& nearest) {
  std::vector<std::string> fields;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const FieldValue& to = nearest.values[i];
    if (to.parts == values[i].parts) continue;
    fields.push_back(field_text(pattern_of(nearest.row->pattern, to.name), values[i], to));
  }
  std::string text = "; the nearest supported one has ";
  for (std::size_t i = 0; i < fields.size(); ++i)
    text.append(i == 0 ? "" : i + 1 < fields.size() ? ", " : " and ").append(fields[i]);
  return text.append(" instead");
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

std::optional<NearestSupport> nearest_supported(std::span<const SupportRow> rows,
                                                std::string_view operation,
                                                const FieldValues& values,
                                                const FieldValues& usual) {
  constexpr int kChanges = 2;  // beside those that move the problem into the row
  struct Start {
    Distance distance;
    const SupportRow* row;
    FieldValues values;
  };
  std::vector<Start> starts;
  for (const SupportRow& row : rows) {
    if (row.operation != operation || !row.supported) continue;
    FieldValues moved = values;
    std::string_view pattern = row.pattern;
    while (!pattern.empty()) {
      std::string_view field = take(pattern, ' ');
      FieldValue* const value = find(moved, take(field, '='));
      if (value != nullptr) move_into(field, *value);
    }
    starts.push_back({distance(values, moved), &row, std::move(moved)});
  }
  // Near rows first, so that most of the search is cut off.
  std::ranges::stable_sort(starts, {}, &Start::distance);
  NearestSearch search{rows, operation, values, usual, std::nullopt, {}};
  for (const Start& start : starts) search.consider(*start.row, start.values, kChanges);
  return std::move(search.best);
}

Status check_rows(std::span<const SupportRow> rows, std::string_view operation,
                  const FieldValues& values, const FieldValues& usual,
                  std::string_view problem_text) {
  const SupportRow& row = first_match(rows, operation, values);
  if (row.supported) return {};
  const auto nearest = nearest_supported(rows, operation, values, usual);
  return fail(ErrorCode::kUnsupported,
              fmt::format("'{}' is not supported: {}{}; docs/support.md and `octile doctor "
                          "--matrix` list the supported ones",
                          problem_text, row.reason, nearest ? nearest_text(values, *nearest) : ""));
}

FieldValues device_values(const DeviceSpec& device) {
  const auto name = [](std::optional<MatrixUnit> unit) { return unit ? name_of(*unit) : "none"; };
  const bool inside = std::ranges::any_of(
      device.units, [&](MatrixUnit unit) { return device.multiplies_scales(unit); });
  return {{"unit", {name(device.default_unit())}}, {"serves", {name(device.serving_unit())}},
          {"inside", {inside ? "1" : "0"}},        {"tma", {device.has_tma ? "1" : "0"}},
          {"pdl", {device.has_pdl ? "1" : "0"}},   {"clusters", {device.has_clusters ? "1" : "0"}}};
}

const SupportRow& first_match_on(const DeviceSpec& device, std::span<const SupportRow> rows,
                                 std::string_view operation, const FieldValues& values) {
  FieldValues all = values;
  for (const FieldValue& value : device_values(device)) all.push_back(value);
  return first_match(rows, operation, all);
}

Status check_device_rows(std::span<const SupportRow> rows, std::string_view operation,
                         const FieldValues& values, std::string_view what,
                         const DeviceSpec& device) {
  const SupportRow& row = first_match_on(device, rows, operation, values);
  if (row.supported) return {};
  std::string others;
  for (const DeviceSpec& known : known_devices()) {
    if (first_match_on(known, rows, operation, values).supported)
      others += (others.empty() ? "" : ", ") + known.name;
  }
  return fail(
      ErrorCode::kUnsupported,
      fmt::format("{} is not supported on {} (compute capability {}): {}{}", what,
                  device.full_name.empty() ? device.name : device.full_name, device.capability(),
                  row.reason, others.empty() ? "" : "; supported on: " + others));
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
