// The support matrix is data: rows say which combinations exist, which are refused and why.
// Validation, tests, the documents' table and `octile doctor --matrix` read the rows and nothing
// else. This is the engine; each family has its rows.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/core/device_spec.h"
#include "generator/core/error.h"
#include "generator/core/types.h"

namespace octile {

struct SupportRow {
  std::string_view operation;  // a problem text's first word: "gemm", "quantize", ...
  // The fields that the row restricts, in problem-text spelling; any other field is free. A value
  // is given as its ':'-separated parts, each '*' or alternatives joined by '|'. Parts left out are
  // free: "a=e4m3|e5m2:1x128 d=bf16" takes any scale format of those A operands.
  std::string_view pattern;
  bool supported = false;
  std::string_view reason;  // why refused, or what is special about a supported row
};

// A field's name and the parts of its value, defaults included; parts it lacks are empty.
struct FieldValue {
  std::string_view name;
  std::array<std::string_view, 3> parts;
};
using FieldValues = std::vector<FieldValue>;

// Returns the value of a field that is an operand's type.
FieldValue type_value(std::string_view name, const TensorType& type);

bool matches(const SupportRow& row, std::string_view operation, const FieldValues& values);

// Returns the first row that matches. The last row of each operation has an empty pattern, so that
// one always does.
const SupportRow& first_match(std::span<const SupportRow> rows, std::string_view operation,
                              const FieldValues& values);

// A supported row, and values that differ from a refused problem's and that the row takes.
struct NearestSupport {
  const SupportRow* row = nullptr;
  FieldValues values;  // in the order of the problem's
};

// Returns the values that differ from `values` in the fewest fields and whose first row is a
// supported one; nothing if no change of a few fields leads to one. `usual` are the values of the
// family's default problem, which a field that no row restricts may take.
std::optional<NearestSupport> nearest_supported(std::span<const SupportRow> rows,
                                                std::string_view operation,
                                                const FieldValues& values,
                                                const FieldValues& usual);

// Checks that the first row that matches is a supported one. Errors: kUnsupported with the
// problem's text, the row's reason, the fields in which the nearest supported problem differs, and
// where the matrix is.
Status check_rows(std::span<const SupportRow> rows, std::string_view operation,
                  const FieldValues& values, const FieldValues& usual,
                  std::string_view problem_text);

// Returns the device's fields, which rows may restrict as those of a problem: unit= (the default
// matrix unit, or none), serves= (the first unit by which kernels are chosen), inside=0|1 (whether
// one of these multiplies scales of blocks itself), tma=0|1, pdl=0|1 and clusters=0|1. A problem
// without a device has none of them, so that rows about devices do not match it.
FieldValues device_values(const DeviceSpec& device);

// Returns the first row that matches the problem's and the device's values.
const SupportRow& first_match_on(const DeviceSpec& device, std::span<const SupportRow> rows,
                                 std::string_view operation, const FieldValues& values);

// Checks that the first row that matches the problem's and the device's values is a supported one.
// Errors: kUnsupported with `what` is asked for, the device, the row's reason and the known devices
// of which a supported row is the first.
Status check_device_rows(std::span<const SupportRow> rows, std::string_view operation,
                         const FieldValues& values, std::string_view what,
                         const DeviceSpec& device);

// Returns the row as a line of the table whose head is kSupportMarkdownHead.
std::string to_markdown(const SupportRow& row);
inline constexpr std::string_view kSupportMarkdownHead =
    "| operation | problem | supported | remark |\n|---|---|---|---|\n";

}  // namespace octile
