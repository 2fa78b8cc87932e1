#include "tests/support/refusal_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "octile/layers.h"
#include "octile/pieces.h"

namespace octile::test {
namespace {

using tests::Cell;
using tests::fail_at;

constexpr const char* kTable = "refusals.txt";

// Enumerators that changes name.
constexpr auto kEnumerators = std::to_array<std::pair<std::string_view, std::int64_t>>({
    {"OCTILE_E4M3", OCTILE_E4M3},
    {"OCTILE_E5M2", OCTILE_E5M2},
    {"OCTILE_BF16", OCTILE_BF16},
    {"OCTILE_FP16", OCTILE_FP16},
    {"OCTILE_FP32", OCTILE_FP32},
    {"OCTILE_SCALE_NONE", OCTILE_SCALE_NONE},
    {"OCTILE_SCALE_1X128", OCTILE_SCALE_1X128},
    {"OCTILE_SCALE_128X128", OCTILE_SCALE_128X128},
    {"OCTILE_SCALE_PER_ROW", OCTILE_SCALE_PER_ROW},
    {"OCTILE_SCALE_1X32", OCTILE_SCALE_1X32},
    {"OCTILE_SCALE_32X32", OCTILE_SCALE_32X32},
    {"OCTILE_SCALE_UE8M0X4", OCTILE_SCALE_UE8M0X4},
    {"OCTILE_SCALE_E8M0", OCTILE_SCALE_E8M0},
    {"OCTILE_SCALE_BF16", OCTILE_SCALE_BF16},
    {"OCTILE_E8M0_OCP_FLOOR", OCTILE_E8M0_OCP_FLOOR},
    {"OCTILE_DYNAMIC", OCTILE_DYNAMIC},
    {"OCTILE_BATCH_SHARED", OCTILE_BATCH_SHARED},
    {"OCTILE_GROUPS_NONE", OCTILE_GROUPS_NONE},
    {"OCTILE_GROUPS_CONTIGUOUS", OCTILE_GROUPS_CONTIGUOUS},
    {"OCTILE_GROUPS_MASKED", OCTILE_GROUPS_MASKED},
    {"OCTILE_GROUPS_STACKED", OCTILE_GROUPS_STACKED},
    {"OCTILE_PIECES_TRANSPOSE", OCTILE_PIECES_TRANSPOSE},
    {"OCTILE_PREPARE_ASYNC", OCTILE_PREPARE_ASYNC},
    {"OCTILE_RUN_B_READY", OCTILE_RUN_B_READY},
    {"OCTILE_AMAX_AVERAGE", OCTILE_AMAX_AVERAGE},
    {"OCTILE_LAYER_X", OCTILE_LAYER_X},
    {"OCTILE_LAYER_CURRENT", OCTILE_LAYER_CURRENT},
    {"OCTILE_LAYER_CODES", OCTILE_LAYER_CODES},
    {"OCTILE_LAYER_KEEP_X", OCTILE_LAYER_KEEP_X},
    {"OCTILE_LAYER_WEIGHT_GRADIENT", OCTILE_LAYER_WEIGHT_GRADIENT},
    {"OCTILE_LAYER_BIAS_GRADIENT", OCTILE_LAYER_BIAS_GRADIENT},
    {"OCTILE_LAYER_COMPARE_W", OCTILE_LAYER_COMPARE_W},
    {"OCTILE_LAYER_HELD_W", OCTILE_LAYER_HELD_W},
});

bool is_of_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '[' ||
         c == ']';
}

const Field* find(const Fields& fields, std::string_view name) {
  const auto found = std::ranges::find(fields, name, &Field::name);
  return found == fields.end() ? nullptr : &*found;
}

// Returns the 64 bits of a number of either sign, or of an enumerator.
std::optional<std::uint64_t> number_of(const std::string& text) {
  const auto named =
      std::ranges::find(kEnumerators, text, &decltype(kEnumerators)::value_type::first);
  if (named != kEnumerators.end()) return static_cast<std::uint64_t>(named->second);
  if (text.empty() || text.find_first_of("0123456789") > 1) return std::nullopt;
  char* end = nullptr;
  errno = 0;
  const std::uint64_t value = text.front() == '-'
                                  ? static_cast<std::uint64_t>(std::strtoll(text.c_str(), &end, 0))
                                  : std::strtoull(text.c_str(), &end, 0);
  if (errno != 0 || *end != '\0') return std::nullopt;
  return value;
}

std::uint64_t bits_of(const Field& field) {
  std::uint64_t value = 0;
  std::memcpy(&value, field.at, field.size);
  return value;
}
void set_bits(const Field& field, std::uint64_t value) {
  std::memcpy(field.at, &value, field.size);
}

// Returns whether a field of this size holds the number.
bool fits(const Field& field, std::uint64_t value) {
  if (field.size == sizeof value) return true;
  const auto wide = static_cast<std::int64_t>(value);
  const auto limit = std::int64_t{1} << (8 * field.size);
  return field.kind == Field::Kind::kSigned ? wide >= -limit / 2 && wide < limit / 2
                                            : wide >= 0 && wide < limit;
}

Result<std::vector<Change>> parse_changes(const Cell& cell) {
  std::vector<Change> changes;
  if (cell.text == "-") return changes;
  const std::string& text = cell.text;
  for (std::size_t at = 0; at <= text.size();) {
    while (at < text.size() && text[at] == ' ') ++at;
    Change change;
    change.name.line = cell.line;
    change.name.column = cell.column + at;
    while (at < text.size() && is_of_name(text[at])) change.name.text += text[at++];
    if (change.name.text.empty() || at == text.size() ||
        std::string_view("=+-").find(text[at]) == std::string_view::npos) {
      return fail_at(kTable, cell.line, cell.column + at,
                     "a change is a name, then =, + or -; allowed where nothing changes: -");
    }
    change.op = text[at] == '=' ? '=' : '+';
    if (change.op == '=') ++at;
    bool quoted = false;
    for (; at < text.size() && (quoted || text[at] != ','); ++at) {
      if (text[at] == '"') quoted = !quoted;
      change.value += text[at];
    }
    if (quoted || change.value.empty()) {
      return fail_at(kTable, cell.line, cell.column + at,
                     quoted ? "a text in quotes does not end" : "a change has no value");
    }
    if (change.value.front() == '+') change.value.erase(0, 1);
    changes.push_back(std::move(change));
    ++at;
  }
  return changes;
}

Result<octile_status> parse_status(const Cell& cell) {
  for (int i = 1; i <= OCTILE_FILE_ERROR; ++i) {
    const auto status = static_cast<octile_status>(i);
    if (octile_status_name(status) == "OCTILE_" + cell.text) return status;
  }
  return fail_at(kTable, cell,
                 fmt::format("the status is '{}'; allowed: a name of octile_status without OCTILE_",
                             cell.text));
}

std::vector<std::string> split_parts(std::string_view text) {
  constexpr std::string_view kBetween = " / ";
  std::vector<std::string> parts;
  for (std::size_t end = text.find(kBetween); end != std::string_view::npos;
       end = text.find(kBetween)) {
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end + kBetween.size());
  }
  parts.emplace_back(text);
  return parts;
}

Status parse_base(const tests::CellRow& row, RefusalTable& table) {
  Result<std::vector<Change>> changes = parse_changes(row[2]);
  if (!changes) return tl::unexpected(changes.error());
  if (!table.bases.try_emplace(row[0].text, Base{row[1].text, *std::move(changes)}).second)
    return fail_at(kTable, row[0], fmt::format("the base {} is there twice", row[0].text));
  return {};
}

Status parse_row(const tests::CellRow& row, RefusalTable& table) {
  const auto base = table.bases.find(row[1].text);
  if (base == table.bases.end() && row[1].text != "-") {
    return fail_at(
        kTable, row[1],
        fmt::format("no row above makes a base '{}'; allowed without one: -", row[1].text));
  }
  Result<std::vector<Change>> changes = parse_changes(row[2]);
  if (!changes) return tl::unexpected(changes.error());
  const Result<octile_status> status = parse_status(row[3]);
  if (!status) return tl::unexpected(status.error());
  if (row[4].text.empty()) return fail_at(kTable, row[4], "the sentence has no part");
  table.rows.push_back({row[0], row[1].text, *std::move(changes), *status, split_parts(row[4].text),
                        fmt::format("tests/cells/{}:{}: {} | {} | {}", kTable, row[0].line,
                                    row[0].text, row[1].text, row[2].text)});
  return {};
}

}  // namespace

Status apply(const Change& change, const Fields& fields, Texts& texts) {
  const Field* field = find(fields, change.name.text);
  if (field == nullptr) {
    std::vector<std::string> names;
    for (const Field& f : fields) names.push_back(f.name);
    return fail_at(
        kTable, change.name,
        fmt::format("the call has no '{}'; allowed: {}", change.name.text, fmt::join(names, ", ")));
  }
  const bool is_pointer = field->kind == Field::Kind::kPointer;
  const std::string& value = change.value;
  if (change.op == '=' && is_pointer && value == "null") {
    set_bits(*field, 0);
    return {};
  }
  if (change.op == '=' && is_pointer && value.size() > 1 && value.front() == '"') {
    const char* text = texts.emplace_back(value.substr(1, value.size() - 2)).c_str();
    std::memcpy(field->at, &text, sizeof text);
    return {};
  }
  if (const Field* other = find(fields, value);
      change.op == '=' && other != nullptr && other->kind == field->kind) {
    set_bits(*field, bits_of(*other));
    return {};
  }
  if (change.op == '=' && field->kind == Field::Kind::kFloat) {
    char* end = nullptr;
    const double wide = std::strtod(value.c_str(), &end);
    const auto number = static_cast<float>(wide);
    if (*end == '\0') {
      const void* const from =
          field->size == sizeof wide ? static_cast<const void*>(&wide) : &number;
      std::memcpy(field->at, from, field->size);
      return {};
    }
  }
  const std::optional<std::uint64_t> number = number_of(value);
  const bool takes_number = field->kind != Field::Kind::kFloat && (change.op == '+' || !is_pointer);
  if (number && takes_number) {
    const std::uint64_t sum = change.op == '+' ? bits_of(*field) + *number : *number;
    if (fits(*field, sum)) {
      set_bits(*field, sum);
      return {};
    }
  }
  return fail_at(kTable, change.name,
                 fmt::format("'{}' cannot become {}", change.name.text, change.value));
}

Result<RefusalTable> parse_refusals(std::string_view text) {
  RefusalTable table;
  for (const tests::CellRow& row : tests::split_cells(text)) {
    if (row.size() != 3 && row.size() != 5) {
      return fail_at(
          kTable, row.back(),
          fmt::format("a row of {} cells; allowed: 3, name | call | change, or 5, call | "
                      "base | change | status | parts",
                      row.size()));
    }
    const Status added = row.size() == 3 ? parse_base(row, table) : parse_row(row, table);
    if (!added) return tl::unexpected(added.error());
  }
  return table;
}

}  // namespace octile::test
