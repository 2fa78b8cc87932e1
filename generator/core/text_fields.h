// Texts of fields "name=value" with spaces between them: the problems and the configurations of
// every family. Each family lists its fields; parsing, printing and errors about malformed text are
// here.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "generator/core/error.h"
#include "generator/core/types.h"

namespace octile {

// ---- values

// A field's value, or what is wrong with its text. The error's sentence has the field before it.
template <typename T>
using Parsed = tl::expected<T, std::string>;

inline tl::unexpected<std::string> malformed(std::string what) {
  return tl::unexpected<std::string>(std::move(what));
}

// A dimension is at most this: kernels index rows and columns with 32 bits.
inline constexpr std::int64_t kMostCount = 0x7fffffff;
inline constexpr std::string_view kCountRule = "a decimal integer from 0 to 2147483647";
Parsed<std::int64_t> parse_count(std::string_view text);
Parsed<std::int64_t> parse_token_count(std::string_view text);  // an open count is kDynamic
std::string count_text(std::int64_t count);                     // "?" for kDynamic

// Returns true for "?" and "_", which leave a token count open. Shells expand an unquoted '?';
// they leave '_' alone. Canonical texts have '?'.
bool leaves_open(std::string_view text);

Parsed<bool> parse_flag(std::string_view text);               // "0", "1"
Parsed<float> parse_epsilon(std::string_view text);           // finite and >= 0
Parsed<DType> parse_element(std::string_view text);           // "bf16"
Parsed<TensorType> parse_tensor_type(std::string_view text);  // "e4m3:1x128:pow2"

// Returns "tensor, row, 1x128, 128x128, 1x32, 32x32".
std::string granularity_names();

// The words of an enumeration, in the order that an error names them.
template <typename Enum, std::size_t N>
using Words = std::array<std::pair<Enum, std::string_view>, N>;

template <typename Enum, std::size_t N>
std::string_view word_of(Enum value, const Words<Enum, N>& words) {
  for (const auto& [meaning, word] : words) {
    if (meaning == value) return word;
  }
  return "unknown";
}

// Error: "allowed are row, col and both".
template <typename Enum, std::size_t N>
Parsed<Enum> parse_word(std::string_view text, const Words<Enum, N>& words) {
  std::string allowed = "allowed are ";
  for (std::size_t i = 0; i < N; ++i) {
    if (words[i].second == text) return words[i].first;
    allowed.append(i == 0 ? "" : i + 1 < N ? ", " : " and ").append(words[i].second);
  }
  return malformed(std::move(allowed));
}

// ---- problems

// Splits a text at white space.
std::vector<std::string_view> split_words(std::string_view text);

// A field of a problem. `set` parses a text into the problem and returns what is wrong with the
// text, or nothing.
template <typename Problem>
struct Field {
  std::string_view name;
  bool required = false;
  std::optional<std::string> (*set)(Problem&, std::string_view) = nullptr;
};

template <auto member, auto parse, typename Problem>
std::optional<std::string> set(Problem& problem, std::string_view text) {
  auto value = parse(text);
  if (!value) return std::move(value.error());
  problem.*member = std::move(*value);
  return std::nullopt;
}

// A field as read_fields knows it.
struct FieldName {
  std::string_view name;
  bool required = false;
};
// Sets the field of an index, as Field::set.
using SetByIndex = std::function<std::optional<std::string>(std::size_t, std::string_view)>;

// Reads words[1..] as fields, in any order; words[0] is the operation, which errors begin with.
// Errors: kInvalidArgument naming an unknown, repeated, missing or malformed field.
Status read_fields(std::span<const std::string_view> words, std::span<const FieldName> fields,
                   const SetByIndex& set);

// Returns `problem` with the fields of a text set, which is well formed. Errors: as read_fields and
// check_well_formed.
template <typename Problem, std::size_t N>
Result<Problem> parse_problem_fields(std::span<const std::string_view> words,
                                     const std::array<Field<Problem>, N>& fields,
                                     Problem problem = {}) {
  std::array<FieldName, N> names{};
  std::ranges::transform(fields, names.begin(),
                         [](const Field<Problem>& f) { return FieldName{f.name, f.required}; });
  const Status read = read_fields(words, names, [&](std::size_t index, std::string_view text) {
    return fields[index].set(problem, text);
  });
  if (!read) return tl::unexpected<Error>(read.error());
  if (Status s = check_well_formed(problem); !s) return tl::unexpected<Error>(s.error());
  return problem;
}

// Reads "4096x7168x2048" into counts.size() counts, the first of which may be open. `argument` and
// `spelled` are the error's words for it: "the gemm shape", "MxNxK".
Status parse_shape(std::string_view argument, std::string_view spelled, std::string_view text,
                   std::span<std::int64_t> counts);

// ---- configurations

// Returns true if all of the text is a decimal integer.
bool parse_int(std::string_view text, int& value);

// Returns true if the text is exactly values.size() integers: "128x128x128".
bool parse_extents(std::string_view text, const std::vector<int*>& values);

// Returns false if there is no such field or it takes no such value.
using SetField = std::function<bool(std::string_view name, std::string_view value)>;

// Errors: kInvalidArgument for the first field that is not set: "`what` field '...' is not one of
// `allowed`".
Status parse_fields(std::string_view text, const SetField& set, std::string_view what,
                    std::string_view allowed);

}  // namespace octile
