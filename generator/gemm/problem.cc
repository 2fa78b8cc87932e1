#include "generator/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "generator/quantize/fused_source.h"
#include "generator/core/recipe.h"

namespace octile {
namespace {

constexpr std::string_view kCountRule = "a decimal integer from 0 to 9223372036854775807";

// A field's value, or what is wrong with its text (put after the field in the error's sentence).
template <typename T>
using Parsed = tl::expected<T, std::string>;

tl::unexpected<std::string> trouble(std::string what) {
  return tl::unexpected<std::string>(std::move(what));
}

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
constexpr std::array kAllOperations{QuantizeOperation::kQuantize, QuantizeOperation::kDequantize,
                                    QuantizeOperation::kTranspose};
constexpr std::array kAllScaleFormats{ScaleFormat::kF32, ScaleFormat::kF32Pow2,
                                      ScaleFormat::kUe8m0x4, ScaleFormat::kE8M0,
                                      ScaleFormat::kBF16};

// ---- values
// --------------------------------------------------------------------------------------

bool all_digits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

Parsed<std::int64_t> parse_count(std::string_view text) {
  std::int64_t value = 0;
  if (text == "?") return trouble("'?' stands for the token count only, which this is not");
  if (!all_digits(text)) return trouble(fmt::format("the value is not {}", kCountRule));
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return trouble(fmt::format("the value is beyond {}", kCountRule));
  return value;
}

Parsed<std::int64_t> parse_token_count(std::string_view text) {
  if (text == "?") return kDynamic;
  return parse_count(text).map_error(
      [](const std::string& what) { return what + ", or '?' for a dynamic token count"; });
}

Parsed<bool> parse_flag(std::string_view text) {
  if (text != "0" && text != "1") return trouble("allowed are 0 and 1");
  return text == "1";
}

Parsed<int> parse_promote(std::string_view text) {
  if (text == "none") return kPromoteNone;
  for (const int interval : {32, 64, 128, 256, 512}) {
    if (text == fmt::format_int(interval).str()) return interval;
  }
  return trouble("allowed are 32, 64, 128, 256, 512 and none");
}

Parsed<DType> parse_element(std::string_view text) {
  if (const auto t = parse_dtype(text)) return *t;
  return trouble(
      fmt::format("'{}' is not an element type; allowed are {}", text, names(kAllDTypes)));
}

Parsed<QuantizeOutput> parse_output(std::string_view text) {
  if (text == "row") return QuantizeOutput::kRowwise;
  if (text == "col") return QuantizeOutput::kTransposed;
  if (text == "both") return QuantizeOutput::kBoth;
  return trouble("allowed are row, col and both");
}

Parsed<E8M0Rounding> parse_rounding(std::string_view text) {
  if (text == "up") return E8M0Rounding::kUp;
  if (text == "ocp_floor") return E8M0Rounding::kOcpFloor;
  return trouble("allowed are up and ocp_floor");
}

Parsed<ScalePolicy> parse_policy(std::string_view text) {
  if (text == "current") return ScalePolicy::kCurrent;
  if (text == "delayed") return ScalePolicy::kDelayed;
  return trouble("allowed are current and delayed");
}

Parsed<Grouping> parse_grouping(std::string_view text) {
  if (text == "none") return Grouping::kNone;
  if (text == "contiguous") return Grouping::kContiguous;
  if (text == "masked") return Grouping::kMasked;
  return trouble("allowed are none, contiguous and masked");
}

Parsed<ShardStep> parse_shard(std::string_view text) {
  if (text == "none") return ShardStep::kNone;
  if (text == "amax") return ShardStep::kAmax;
  if (text == "cast") return ShardStep::kCast;
  return trouble("allowed are none, amax and cast");
}

Parsed<ScaleLayout> parse_scale_layout(std::string_view text) {
  if (text == "linear") return ScaleLayout::kLinear;
  if (text == "swizzled") return ScaleLayout::kSwizzled;
  return trouble("allowed are linear and swizzled");
}

// What is no source is check_well_formed's to refuse.
Parsed<std::string> parse_source(std::string_view text) { return canonical_source(text); }

// Takes the part of `text` before the next ':', or all of it.
std::string_view take_part(std::string_view& text) {
  const std::size_t cut = std::min(text.find(':'), text.size());
  const std::string_view part = text.substr(0, cut);
  text.remove_prefix(std::min(cut + 1, text.size()));
  return part;
}

Parsed<TensorType> parse_tensor_type(std::string_view text) {
  const auto parts = 1 + std::count(text.begin(), text.end(), ':');
  if (parts > 3) return trouble("a type has at most three parts, dtype:granularity:format");
  TensorType type;
  const Parsed<DType> dtype = parse_element(take_part(text));
  if (!dtype) return trouble(dtype.error());
  type.dtype = *dtype;
  if (parts == 1) return type;

  const std::string_view granularity = take_part(text);
  const auto g = parse_granularity(granularity);
  if (!g || *g == Granularity::kNone) {
    return trouble(fmt::format("'{}' is not a scale granularity; allowed are {}", granularity,
                               names(kAllGranularities)));
  }
  type.granularity = *g;
  type.scale = default_scale_format(*g);
  if (parts == 2) return type;

  const auto f = parse_scale_format(text);
  if (!f || *f == ScaleFormat::kNone) {
    return trouble(
        fmt::format("'{}' is not a scale format; allowed are {}", text, names(kAllScaleFormats)));
  }
  type.scale = *f;
  return type;
}

Parsed<float> parse_epsilon(std::string_view text) {
  float value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) ||
      text.front() == '-') {
    return trouble("the value is not a finite decimal number >= 0 that fp32 can hold");
  }
  return value;
}

// ---- fields
// --------------------------------------------------------------------------------------

// `set` parses into the problem and returns what is wrong, or nothing.
template <typename P>
struct Field {
  std::string_view name;
  bool required = false;
  std::optional<std::string> (*set)(P&, std::string_view) = nullptr;
};

template <auto member, auto parse, typename P>
std::optional<std::string> set(P& problem, std::string_view text) {
  const auto value = parse(text);
  if (!value) return value.error();
  problem.*member = *value;
  return std::nullopt;
}

using G = GemmProblem;
constexpr std::array<Field<G>, 9> kGemmFields{{
    {"m", true, set<&G::m, parse_token_count, G>},
    {"n", true, set<&G::n, parse_count, G>},
    {"k", true, set<&G::k, parse_token_count, G>},
    {"a", true, set<&G::a, parse_tensor_type, G>},
    {"b", true, set<&G::b, parse_tensor_type, G>},
    {"d", true, set<&G::d, parse_element, G>},
    {"acc", true, set<&G::accumulate, parse_flag, G>},
    {"promote", true, set<&G::promote, parse_promote, G>},
    {"invariant", false, set<&G::invariant, parse_flag, G>},
}};

using Q = QuantizeProblem;
constexpr std::array<Field<Q>, 15> kQuantizeFields{{
    {"rows", true, set<&Q::rows, parse_token_count, Q>},
    {"cols", true, set<&Q::cols, parse_count, Q>},
    {"x", true, set<&Q::x, parse_tensor_type, Q>},
    {"q", true, set<&Q::q, parse_tensor_type, Q>},
    {"out", true, set<&Q::output, parse_output, Q>},
    {"eps", false, set<&Q::amax_epsilon, parse_epsilon, Q>},
    {"round", false, set<&Q::e8m0_rounding, parse_rounding, Q>},
    {"policy", false, set<&Q::policy, parse_policy, Q>},
    {"src", false, set<&Q::source, parse_source, Q>},
    {"norm_eps", false, set<&Q::norm_epsilon, parse_epsilon, Q>},
    {"dbias", false, set<&Q::bias_gradient, parse_flag, Q>},
    {"tap", false, set<&Q::tap, parse_flag, Q>},
    {"group", false, set<&Q::grouping, parse_grouping, Q>},
    {"shard", false, set<&Q::shard, parse_shard, Q>},
    {"scales", false, set<&Q::scale_layout, parse_scale_layout, Q>},
}};

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

template <typename P, std::size_t N>
std::string field_names(const std::array<Field<P>, N>& fields) {
  std::string text;
  for (const Field<P>& f : fields) text.append(text.empty() ? "" : ", ").append(f.name);
  return text;
}

// words[0] is the operation; the rest are its fields, set in `problem`.
template <typename P, std::size_t N>
Result<Problem> parse_fields(const std::vector<std::string_view>& words,
                             const std::array<Field<P>, N>& fields, P problem = {}) {
  const std::string_view operation = words.front();
  const auto refuse = [&](std::string what) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", operation, what));
  };
  std::array<bool, N> seen{};
  for (std::size_t w = 1; w < words.size(); ++w) {
    const std::size_t equals = words[w].find('=');
    const std::string_view name = words[w].substr(0, equals);
    const auto field = std::find_if(fields.begin(), fields.end(),
                                    [&](const Field<P>& f) { return f.name == name; });
    if (field == fields.end()) {
      return refuse(
          fmt::format("there is no field '{}'; the fields are {}", name, field_names(fields)));
    }
    if (equals == std::string_view::npos) {
      return refuse(fmt::format("field '{}' has no value; a field is written name=value", name));
    }
    const auto index = static_cast<std::size_t>(field - fields.begin());
    if (seen[index]) return refuse(fmt::format("field '{}' is given twice", name));
    seen[index] = true;
    if (const auto wrong = field->set(problem, words[w].substr(equals + 1))) {
      return refuse(fmt::format("field '{}': {}", words[w], *wrong));
    }
  }
  for (std::size_t i = 0; i < N; ++i) {
    if (fields[i].required && !seen[i]) {
      return refuse(fmt::format("field '{}' is missing; the fields are {}", fields[i].name,
                                field_names(fields)));
    }
  }
  if (Status s = check_well_formed(problem); !s) return tl::unexpected<Error>(s.error());
  return problem;
}

// ---- printing
// ------------------------------------------------------------------------------------

std::string count_text(std::int64_t count) {
  return count == kDynamic ? "?" : fmt::format_int(count).str();
}

std::string promote_text(int promote) {
  return promote == kPromoteNone ? "none" : fmt::format_int(promote).str();
}

std::string_view output_text(QuantizeOutput output) {
  switch (output) {
    case QuantizeOutput::kRowwise:
      return "row";
    case QuantizeOutput::kTransposed:
      return "col";
    case QuantizeOutput::kBoth:
      return "both";
  }
  return "unknown";
}

std::string text_of(const GemmProblem& p) {
  return fmt::format("gemm m={} n={} k={} a={} b={} d={} acc={:d} promote={}{}", count_text(p.m),
                     count_text(p.n), count_text(p.k), to_text(p.a), to_text(p.b), name_of(p.d),
                     p.accumulate, promote_text(p.promote), p.invariant ? " invariant=1" : "");
}

std::string_view grouping_text(Grouping grouping) {
  return grouping == Grouping::kContiguous ? "contiguous" : "masked";
}

// The optional fields that differ from their default, each with a space before it.
std::string options_text(const QuantizeProblem& p) {
  std::string text;
  const auto add = [&](bool differs, std::string_view field, const auto& value) {
    if (differs) text += fmt::format(" {}={}", field, value);
  };
  // fmt prints the shortest decimal that reads back to the same float.
  add(p.amax_epsilon != 0, "eps", p.amax_epsilon);
  add(p.e8m0_rounding == E8M0Rounding::kOcpFloor, "round", "ocp_floor");
  add(p.policy == ScalePolicy::kDelayed, "policy", "delayed");
  add(!p.source.empty(), "src", p.source);
  add(p.norm_epsilon != QuantizeProblem::kDefaultNormEpsilon, "norm_eps", p.norm_epsilon);
  add(p.bias_gradient, "dbias", 1);
  add(p.tap, "tap", 1);
  add(p.grouping != Grouping::kNone, "group", grouping_text(p.grouping));
  add(p.shard != ShardStep::kNone, "shard", p.shard == ShardStep::kAmax ? "amax" : "cast");
  add(p.scale_layout == ScaleLayout::kSwizzled, "scales", "swizzled");
  return text;
}

std::string text_of(const QuantizeProblem& p) {
  return fmt::format("{} rows={} cols={} x={} q={} out={}{}", name_of(p.operation),
                     count_text(p.rows), count_text(p.cols), to_text(p.x), to_text(p.q),
                     output_text(p.output), options_text(p));
}

// ---- well-formedness
// -----------------------------------------------------------------------------

Status refuse_field(std::string_view field, std::string_view value, std::string_view allowed) {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} is {}; allowed {}", field, value, allowed));
}

Status check_count(std::string_view name, std::int64_t value, bool dynamic_allowed) {
  if (value >= 0 || (dynamic_allowed && value == kDynamic)) return {};
  return refuse_field(name, count_text(value),
                      dynamic_allowed ? fmt::format("is {}, or '?'", kCountRule)
                                      : fmt::format("is {}", kCountRule));
}

bool has_scales(const TensorType& t) { return t.granularity != Granularity::kNone; }

Status check_type(std::string_view name, const TensorType& t) {
  if (is_fp8(t.dtype) && (!has_scales(t) || t.scale == ScaleFormat::kNone)) {
    return refuse_field(name, to_text(t),
                        fmt::format("is a granularity after it: {}:G with G one of {}",
                                    name_of(t.dtype), names(kAllGranularities)));
  }
  if (!is_fp8(t.dtype) && (has_scales(t) || t.scale != ScaleFormat::kNone)) {
    return refuse_field(
        name, to_text(t),
        fmt::format("is {} alone: only e4m3 and e5m2 carry scales", name_of(t.dtype)));
  }
  return {};
}

bool is_block_scaled(const TensorType& t) {
  return has_scales(t) && t.granularity != Granularity::kPerTensor &&
         t.granularity != Granularity::kPerRow;
}

// The tensor core keeps about 14 bits of a sum: a block's scale is applied when its partial sum is
// promoted, so an interval may not be longer than the shortest block it could cross.
Status check_promote(const GemmProblem& p) {
  const bool blocks = is_block_scaled(p.a) || is_block_scaled(p.b);
  const std::array<int, 3> with_blocks{32, 64, 128};
  const std::array<int, 4> without{128, 256, 512, kPromoteNone};
  const bool ok = blocks ? std::count(with_blocks.begin(), with_blocks.end(), p.promote) != 0
                         : std::count(without.begin(), without.end(), p.promote) != 0;
  if (ok) return {};
  return refuse_field("promote", promote_text(p.promote),
                      blocks ? fmt::format("with block scales (a={}, b={}) are 32, 64 and 128",
                                           to_text(p.a), to_text(p.b))
                             : fmt::format("without block scales (a={}, b={}) are 128, 256, 512 "
                                           "and none",
                                           to_text(p.a), to_text(p.b)));
}

Status check(const GemmProblem& p) {
  if (Status s = check_count("m", p.m, true); !s) return s;
  if (Status s = check_count("n", p.n, false); !s) return s;
  if (Status s = check_count("k", p.k, true); !s) return s;
  if (p.m == kDynamic && p.k == kDynamic) {
    return refuse_field("k", "?", "is a number where m is '?': a problem has one token count");
  }
  if (Status s = check_type("a", p.a); !s) return s;
  if (Status s = check_type("b", p.b); !s) return s;
  return check_promote(p);
}

// Which of x and q are FP8 is what tells the operations apart.
Status check_operation(const QuantizeProblem& p) {
  const bool to_fp8 = p.operation != QuantizeOperation::kDequantize;
  if (is_fp8(p.q.dtype) != to_fp8) {
    return refuse_field("q", to_text(p.q),
                        to_fp8 ? "are e4m3 and e5m2, with scales" : "are bf16, fp16 and fp32");
  }
  if (p.operation == QuantizeOperation::kQuantize) return {};
  QuantizeProblem plain = p;
  plain.amax_epsilon = 0.0F;
  plain.e8m0_rounding = E8M0Rounding::kUp;
  plain.policy = ScalePolicy::kCurrent;
  plain.source.clear();
  plain.bias_gradient = plain.tap = false;
  plain.shard = ShardStep::kNone;
  if (!(plain == p)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is given{}; allowed are no options of finding scales, because they "
                            "are x's",
                            name_of(p.operation), options_text(p)));
  }
  const bool rowwise = p.operation == QuantizeOperation::kDequantize;
  if (p.output != (rowwise ? QuantizeOutput::kRowwise : QuantizeOutput::kTransposed)) {
    return refuse_field("out", output_text(p.output), rowwise ? "is row" : "is col");
  }
  if (!is_fp8(p.x.dtype)) return refuse_field("x", to_text(p.x), "are e4m3 and e5m2, with scales");
  if (p.operation == QuantizeOperation::kTranspose && !(p.x == p.q)) {
    return refuse_field("q", to_text(p.q), fmt::format("is {}, the type of x", to_text(p.x)));
  }
  return {};
}

Status check_source(const QuantizeProblem& p) {
  if (p.source.empty()) {
    if (!p.tap) return {};
    return refuse_field("tap", "1", "is 0 without src: the cast sees x itself");
  }
  const Result<FusedSource> source = fused_source(p.source);
  if (!source) return fail(source.error().code, fmt::format("src: {}", source.error().message));
  if (source->halves() && p.cols % 2 != 0) {
    return refuse_field(
        "cols", count_text(p.cols),
        fmt::format("is an even number with src={}, whose halves are as wide as its "
                    "inputs",
                    p.source));
  }
  return {};
}

Status check_options(const QuantizeProblem& p) {
  if (!std::isfinite(p.norm_epsilon) || p.norm_epsilon < 0) {
    return refuse_field("norm_eps", fmt::format("{}", p.norm_epsilon), "is a finite number >= 0");
  }
  if (Status s = check_source(p); !s) return s;
  if (p.scale_layout == ScaleLayout::kSwizzled && p.q.scale != ScaleFormat::kE8M0) {
    return refuse_field(
        "scales", "swizzled",
        fmt::format("is linear with {}: only e8m0 scales have another layout", to_text(p.q)));
  }
  return {};
}

Status check(const QuantizeProblem& p) {
  if (Status s = check_count("rows", p.rows, true); !s) return s;
  if (Status s = check_count("cols", p.cols, false); !s) return s;
  if (Status s = check_type("x", p.x); !s) return s;
  if (Status s = check_type("q", p.q); !s) return s;
  if (Status s = check_operation(p); !s) return s;
  if (!std::isfinite(p.amax_epsilon) || p.amax_epsilon < 0) {
    return refuse_field("eps", fmt::format("{}", p.amax_epsilon), "is a finite number >= 0");
  }
  if (p.policy == ScalePolicy::kDelayed && p.q.granularity != Granularity::kPerTensor) {
    return refuse_field("policy", "delayed",
                        fmt::format("is current with {}: only a tensor's scale is kept from step "
                                    "to step",
                                    to_text(p.q)));
  }
  if (p.e8m0_rounding != E8M0Rounding::kUp && p.q.scale != ScaleFormat::kE8M0) {
    return refuse_field("round", "ocp_floor",
                        fmt::format("is up with {}: only e8m0 scales have a choice", to_text(p.q)));
  }
  return check_options(p);
}

// ---- short forms
// ---------------------------------------------------------------------------------

// "4096x7168x2048" into N counts, the first of which may be '?'.
template <std::size_t N>
Result<std::array<std::int64_t, N>> parse_shape(std::string_view argument, std::string_view spelled,
                                                std::string_view text) {
  std::array<std::int64_t, N> counts{};
  std::string_view rest = text;
  for (std::size_t i = 0; i < N; ++i) {
    const std::size_t cut = i + 1 < N ? std::min(rest.find('x'), rest.size()) : rest.size();
    const std::string_view part = rest.substr(0, cut);
    rest.remove_prefix(std::min(cut + 1, rest.size()));
    const Parsed<std::int64_t> count = i == 0 ? parse_token_count(part) : parse_count(part);
    if (!count) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} is '{}'; allowed is {}: of '{}', {}", argument, text, spelled,
                              part, count.error()));
    }
    counts[i] = *count;
  }
  return counts;
}

Result<const Recipe*> recipe_named(std::string_view name) {
  if (const Recipe* recipe = find_recipe(name)) return recipe;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("recipe is '{}'; allowed are {}", name, recipe_names()));
}

}  // namespace

std::string_view name_of(QuantizeOperation operation) {
  switch (operation) {
    case QuantizeOperation::kQuantize:
      return "quantize";
    case QuantizeOperation::kDequantize:
      return "dequantize";
    case QuantizeOperation::kTranspose:
      return "transpose";
  }
  return "unknown";
}

std::string to_text(const Problem& problem) {
  return std::visit([](const auto& p) { return text_of(p); }, problem);
}

Status check_well_formed(const Problem& problem) {
  return std::visit([](const auto& p) { return check(p); }, problem);
}

Result<Problem> parse_problem(std::string_view text) {
  const std::vector<std::string_view> words = split_words(text);
  if (!words.empty() && words.front() == "gemm") return parse_fields(words, kGemmFields);
  for (const QuantizeOperation operation : kAllOperations) {
    if (words.empty() || words.front() != name_of(operation)) continue;
    QuantizeProblem problem;
    problem.operation = operation;
    return parse_fields(words, kQuantizeFields, problem);
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("a problem begins with '{}'; allowed are gemm, {}",
                          words.empty() ? "" : words.front(), names(kAllOperations)));
}

Result<GemmProblem> parse_gemm_shape(std::string_view mxnxk, std::string_view recipe) {
  const auto counts = parse_shape<3>("the gemm shape", "MxNxK", mxnxk);
  if (!counts) return tl::unexpected<Error>(counts.error());
  const auto row = recipe_named(recipe);
  if (!row) return tl::unexpected<Error>(row.error());
  const auto [m, n, k] = *counts;
  return gemm_problem(**row, Pass::kFprop, m, n, k);
}

Result<QuantizeProblem> parse_quantize_shape(std::string_view rows_x_cols,
                                             std::string_view recipe) {
  const auto counts = parse_shape<2>("the quantize shape", "ROWSxCOLS", rows_x_cols);
  if (!counts) return tl::unexpected<Error>(counts.error());
  const auto row = recipe_named(recipe);
  if (!row) return tl::unexpected<Error>(row.error());
  QuantizeProblem problem;
  problem.rows = (*counts)[0];
  problem.cols = (*counts)[1];
  problem.q = (*row)->activation;
  return problem;
}

}  // namespace octile
