#include "generator/core/text_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "generator/core/nearest.h"
#include "generator/core/token_axis.h"

namespace octile {
namespace {

template <typename Enum, std::size_t N>
std::string names(const std::array<Enum, N>& values) {
  std::string text;
  for (const Enum v : values) text.append(text.empty() ? "" : ", ").append(name_of(v));
  return text;
}

constexpr std::array kAllDTypes{DType::kE4M3, DType::kE5M2, DType::kBF16, DType::kFP16,
                                DType::kFP32};
constexpr std::array kAllGranularities{Granularity::kPerTensor, Granularity::kPerRow,
                                       Granularity::k1x128,     Granularity::k128x128,
                                       Granularity::k1x32,      Granularity::k32x32};
constexpr std::array kAllScaleFormats{ScaleFormat::kF32, ScaleFormat::kF32Pow2,
                                      ScaleFormat::kUe8m0x4, ScaleFormat::kE8M0,
                                      ScaleFormat::kBF16};

bool all_digits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Takes the part of `text` before the next ':', or all of it.
std::string_view take_part(std::string_view& text) {
  const std::size_t cut = std::min(text.find(':'), text.size());
  const std::string_view part = text.substr(0, cut);
  text.remove_prefix(std::min(cut + 1, text.size()));
  return part;
}

Parsed<Granularity> parse_scale_granularity(std::string_view text) {
  const auto g = parse_granularity(text);
  if (g && *g != Granularity::kNone) return *g;
  return malformed(fmt::format("'{}' is not a scale granularity; allowed are {}", text,
                               names(kAllGranularities)));
}

Parsed<ScaleFormat> parse_format(std::string_view text) {
  const auto f = parse_scale_format(text);
  if (f && *f != ScaleFormat::kNone) return *f;
  return malformed(
      fmt::format("'{}' is not a scale format; allowed are {}", text, names(kAllScaleFormats)));
}

std::string field_names(std::span<const FieldName> fields) {
  std::string text;
  for (const FieldName& f : fields) text.append(text.empty() ? "" : ", ").append(f.name);
  return text;
}

}  // namespace

bool leaves_open(std::string_view text) { return text == "?" || text == "_"; }

Parsed<std::int64_t> parse_count(std::string_view text) {
  std::int64_t value = 0;
  if (leaves_open(text)) {
    return malformed(fmt::format("'{}' stands for the token count only, which this is not", text));
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (!all_digits(text) || error != std::errc() || value > kMostCount)
    return malformed(fmt::format("the value is not {}", kCountRule));
  return value;
}

Parsed<std::int64_t> parse_token_count(std::string_view text) {
  if (leaves_open(text)) return kDynamic;
  return parse_count(text).map_error(
      [](const std::string& what) { return what + ", or '?' or '_' for an open token count"; });
}

std::string count_text(std::int64_t count) {
  return count == kDynamic ? "?" : fmt::format_int(count).str();
}

Parsed<bool> parse_flag(std::string_view text) {
  if (text != "0" && text != "1") return malformed("allowed are 0 and 1");
  return text == "1";
}

Parsed<float> parse_epsilon(std::string_view text) {
  float value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) ||
      text.front() == '-') {
    return malformed("the value is not a finite decimal number >= 0 that fp32 can hold");
  }
  return value;
}

Parsed<DType> parse_element(std::string_view text) {
  if (const auto t = parse_dtype(text)) return *t;
  return malformed(
      fmt::format("'{}' is not an element type; allowed are {}", text, names(kAllDTypes)));
}

Parsed<TensorType> parse_tensor_type(std::string_view text) {
  const auto parts = 1 + std::count(text.begin(), text.end(), ':');
  if (parts > 3) return malformed("a type has at most three parts, dtype:granularity:format");
  TensorType type;
  const Parsed<DType> dtype = parse_element(take_part(text));
  if (!dtype) return malformed(dtype.error());
  type.dtype = *dtype;
  if (parts == 1) return type;

  const Parsed<Granularity> granularity = parse_scale_granularity(take_part(text));
  if (!granularity) return malformed(granularity.error());
  type.granularity = *granularity;
  type.scale = default_scale_format(*granularity);
  if (parts == 2) return type;

  const Parsed<ScaleFormat> format = parse_format(text);
  if (!format) return malformed(format.error());
  type.scale = *format;
  return type;
}

std::string granularity_names() { return names(kAllGranularities); }

std::vector<std::string_view> split_words(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  std::vector<std::string_view> words;
  for (std::size_t at = text.find_first_not_of(kSpace); at != std::string_view::npos;
       at = text.find_first_not_of(kSpace, at)) {
    const std::size_t end = std::min(text.find_first_of(kSpace, at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

Status read_fields(std::span<const std::string_view> words, std::span<const FieldName> fields,
                   const SetByIndex& set) {
  const auto refuse = [&](std::string what) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", words.front(), what));
  };
  std::vector<bool> seen(fields.size());
  for (const std::string_view word : words.subspan(1)) {
    const std::size_t equals = word.find('=');
    const std::string_view name = word.substr(0, equals);
    const auto field = std::ranges::find(fields, name, &FieldName::name);
    if (field == fields.end()) {
      std::vector<std::string_view> known;
      for (const FieldName& f : fields) known.push_back(f.name);
      return refuse(fmt::format(
          "there is no field '{}'{}; the fields are {}{}", name, did_you_mean(name, known),
          field_names(fields),
          equals == std::string_view::npos ? ", each written name=value without spaces" : ""));
    }
    if (equals == std::string_view::npos) {
      return refuse(fmt::format("field '{}' has no value; a field is written name=value", name));
    }
    const auto index = static_cast<std::size_t>(field - fields.begin());
    if (seen[index]) return refuse(fmt::format("field '{}' is given twice", name));
    seen[index] = true;
    if (const auto wrong = set(index, word.substr(equals + 1))) {
      return refuse(fmt::format("field '{}': {}", word, *wrong));
    }
  }
  std::string missing;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].required && !seen[i])
      missing += fmt::format("{}'{}'", missing.empty() ? "" : ", ", fields[i].name);
  }
  if (missing.empty()) return {};
  const bool many = missing.find(',') != std::string::npos;
  return refuse(fmt::format("field{} {} {} missing; the fields are {}", many ? "s" : "", missing,
                            many ? "are" : "is", field_names(fields)));
}

Status parse_shape(std::string_view argument, std::string_view spelled, std::string_view text,
                   std::span<std::int64_t> counts) {
  const auto parts = static_cast<std::size_t>(std::ranges::count(text, 'x')) + 1;
  if (parts != counts.size()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is '{}'; allowed is {}: {} numbers with an x between them",
                            argument, text, spelled, counts.size()));
  }
  std::string_view rest = text;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::size_t cut = std::min(rest.find('x'), rest.size());
    const std::string_view part = rest.substr(0, cut);
    rest.remove_prefix(std::min(cut + 1, rest.size()));
    if (part.empty())
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} is '{}'; allowed is {}: number {} is missing", argument, text,
                              spelled, i + 1));
    const Parsed<std::int64_t> count = i == 0 ? parse_token_count(part) : parse_count(part);
    if (!count) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} is '{}'; allowed is {}: of '{}', {}", argument, text, spelled,
                              part, count.error()));
    }
    counts[i] = *count;
  }
  return {};
}

bool parse_int(std::string_view text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_extents(std::string_view text, const std::vector<int*>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t cut = i + 1 < values.size() ? text.find('x') : text.size();
    if (cut == std::string_view::npos || !parse_int(text.substr(0, cut), *values[i])) return false;
    text.remove_prefix(std::min(cut + 1, text.size()));
  }
  return text.empty();
}

Status parse_fields(std::string_view text, const SetField& set, std::string_view what,
                    std::string_view allowed) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view field = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (field.empty()) continue;
    const std::size_t equals = field.find('=');
    if (equals != std::string_view::npos && set(field.substr(0, equals), field.substr(equals + 1)))
      continue;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} field '{}' is not one of {}", what, field, allowed));
  }
  return {};
}

}  // namespace octile
