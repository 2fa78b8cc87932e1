#include "generator/quantize/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "generator/core/checks.h"
#include "generator/core/text_fields.h"
#include "generator/quantize/fused_source.h"

namespace octile {
namespace {

// ---- words

constexpr std::array<std::string_view, 5> kOperations{"quantize", "dequantize", "transpose",
                                                      "gather", "amax"};

constexpr Words<QuantizeOutput, 3> kOutputs{{{QuantizeOutput::kRowwise, "row"},
                                             {QuantizeOutput::kTransposed, "col"},
                                             {QuantizeOutput::kBoth, "both"}}};
constexpr Words<E8M0Rounding, 2> kRoundings{
    {{E8M0Rounding::kUp, "up"}, {E8M0Rounding::kOcpFloor, "ocp_floor"}}};
constexpr Words<ScalePolicy, 2> kPolicies{
    {{ScalePolicy::kCurrent, "current"}, {ScalePolicy::kDelayed, "delayed"}}};
constexpr Words<PiecesStep, 5> kPiecesWords{{{PiecesStep::kNone, "none"},
                                             {PiecesStep::kAmax, "amax"},
                                             {PiecesStep::kScales, "scales"},
                                             {PiecesStep::kCast, "cast"},
                                             {PiecesStep::kTranspose, "transpose"}}};
constexpr Words<ScaleLayout, 3> kScaleLayouts{{{ScaleLayout::kLinear, "linear"},
                                               {ScaleLayout::kSwizzled, "swizzled"},
                                               {ScaleLayout::kByRow, "rows"}}};

constexpr Words<std::optional<DType>, 2> kVias{{{std::nullopt, "none"}, {DType::kBF16, "bf16"}}};
constexpr Words<bool, 2> kSkips{{{false, "never"}, {true, "unchanged"}}};

template <const auto& words>
auto parse_as(std::string_view text) {
  return parse_word(text, words);
}

// check_well_formed refuses a text that is not a source.
Parsed<std::string> parse_source(std::string_view text) { return canonical_source(text); }

// ---- text

using Q = QuantizeProblem;
constexpr std::array<Field<Q>, 18> kFields{{
    {"rows", true, set<&Q::rows, parse_token_count, Q>},
    {"cols", true, set<&Q::cols, parse_count, Q>},
    {"x", true, set<&Q::x, parse_tensor_type, Q>},
    {"q", true, set<&Q::q, parse_tensor_type, Q>},
    {"out", true, set<&Q::output, parse_as<kOutputs>, Q>},
    {"eps", false, set<&Q::amax_epsilon, parse_epsilon, Q>},
    {"round", false, set<&Q::e8m0_rounding, parse_as<kRoundings>, Q>},
    {"policy", false, set<&Q::policy, parse_as<kPolicies>, Q>},
    {"src", false, set<&Q::source, parse_source, Q>},
    {"norm_eps", false, set<&Q::norm_epsilon, parse_epsilon, Q>},
    {"weighted", false, set<&Q::weighted, parse_flag, Q>},
    {"dbias", false, set<&Q::bias_gradient, parse_flag, Q>},
    {"tap", false, set<&Q::tap, parse_flag, Q>},
    {"group", false, set<&Q::grouping, parse_grouping, Q>},
    {"scales", false, set<&Q::scale_layout, parse_as<kScaleLayouts>, Q>},
    {"skip", false, set<&Q::skip_unchanged, parse_as<kSkips>, Q>},
    {"via", false, set<&Q::via, parse_as<kVias>, Q>},
    {"pieces", false, set<&Q::pieces, parse_as<kPiecesWords>, Q>},
}};

// The fields of an operation. "amax" writes no q, and its text has no `out`.
constexpr auto fields_of(QuantizeOperation operation) {
  auto fields = kFields;
  for (Field<Q>& field : fields) {
    if (operation == QuantizeOperation::kAmax && field.name == "out") field.required = false;
  }
  return fields;
}

// Returns " out=row", or nothing for an operation without q.
std::string output_text(const Q& p) {
  if (p.operation == QuantizeOperation::kAmax) return "";
  return fmt::format(" out={}", name_of(p.output));
}

// Ranges are pieces. The sentence names the field that a text with `shard` needs.
Status check_no_shard(std::span<const std::string_view> words) {
  constexpr std::string_view kShard = "shard=";
  for (const std::string_view word : words) {
    if (!word.starts_with(kShard)) continue;
    const std::string_view step = word.substr(kShard.size());
    const bool known = step == "amax" || step == "scales" || step == "cast";
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: field '{}': allowed {} in its place", words.front(), word,
                            known ? fmt::format("is pieces={}", step)
                                  : "are pieces=amax, pieces=scales and pieces=cast"));
  }
  return {};
}

// Returns the optional fields that differ from their default, each with a space before it.
std::string options_text(const QuantizeProblem& p) {
  std::string text;
  const auto add = [&](bool differs, std::string_view field, const auto& value) {
    if (differs) text += fmt::format(" {}={}", field, value);
  };
  // fmt prints the shortest decimal that reads back to the same float.
  add(p.amax_epsilon != 0, "eps", p.amax_epsilon);
  add(p.e8m0_rounding == E8M0Rounding::kOcpFloor, "round", name_of(p.e8m0_rounding));
  add(p.policy == ScalePolicy::kDelayed, "policy", name_of(p.policy));
  add(!p.source.empty(), "src", p.source);
  add(p.norm_epsilon != QuantizeProblem::kDefaultNormEpsilon, "norm_eps", p.norm_epsilon);
  add(p.weighted, "weighted", 1);
  add(p.bias_gradient, "dbias", 1);
  add(p.tap, "tap", 1);
  add(p.grouping != Grouping::kNone, "group", name_of(p.grouping));
  add(p.scale_layout != ScaleLayout::kLinear, "scales", name_of(p.scale_layout));
  add(p.skip_unchanged, "skip", "unchanged");
  add(p.via.has_value(), "via", word_of(p.via, kVias));
  add(p.pieces != PiecesStep::kNone, "pieces", name_of(p.pieces));
  return text;
}

// ---- well-formedness

// Returns the problem without the fields that steps of pieces and maxima refuse: it keeps the
// sizes, the types and `via`.
QuantizeProblem without_options(QuantizeProblem p) {
  QuantizeProblem plain;
  plain.operation = p.operation;
  plain.rows = p.rows;
  plain.cols = p.cols;
  plain.x = p.x;
  plain.q = p.q;
  plain.output = p.output;
  plain.via = p.via;
  plain.pieces = p.pieces;
  return plain;
}

Status check_plain_x(const QuantizeProblem& p, std::string_view with) {
  if (!is_fp8(p.x.dtype)) return {};
  return refuse_field("x", to_text(p.x), fmt::format("are bf16, fp16 and fp32 with {}", with));
}

Status check_amax(const QuantizeProblem& p) {
  if (!(without_options(p) == p)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("amax is given{}; allowed is via, because a maximum is of x alone",
                            options_text(p)));
  }
  if (p.output != QuantizeOutput::kRowwise) {
    return refuse_field("out", name_of(p.output), "is row with amax, which writes no q");
  }
  if (Status s = check_plain_x(p, "amax"); !s) return s;
  if (p.q.granularity == Granularity::kPerTensor) return {};
  return refuse_field("q", to_text(p.q), "has one scale with amax: e4m3:tensor");
}

// The operations differ in which of x and q are FP8.
Status check_operation(const QuantizeProblem& p) {
  const bool to_fp8 = p.operation != QuantizeOperation::kDequantize;
  if (is_fp8(p.q.dtype) != to_fp8) {
    return refuse_field("q", to_text(p.q),
                        to_fp8 ? "are e4m3 and e5m2, with scales" : "are bf16, fp16 and fp32");
  }
  if (p.operation == QuantizeOperation::kQuantize) return {};
  if (p.operation == QuantizeOperation::kAmax) return check_amax(p);
  QuantizeProblem plain = p;
  plain.amax_epsilon = 0.0F;
  plain.e8m0_rounding = E8M0Rounding::kUp;
  plain.policy = ScalePolicy::kCurrent;
  plain.source.clear();
  plain.weighted = plain.bias_gradient = plain.tap = plain.skip_unchanged = false;
  plain.via.reset();
  if (!(plain == p)) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "{} is given{}; options of finding scales are not allowed, because the scales are x's",
            name_of(p.operation), options_text(p)));
  }
  const bool rowwise = p.operation != QuantizeOperation::kTranspose;
  if (p.output != (rowwise ? QuantizeOutput::kRowwise : QuantizeOutput::kTransposed)) {
    return refuse_field("out", name_of(p.output), rowwise ? "is row" : "is col");
  }
  if (!is_fp8(p.x.dtype)) return refuse_field("x", to_text(p.x), "are e4m3 and e5m2, with scales");
  if (p.operation != QuantizeOperation::kDequantize && !(p.x == p.q)) {
    return refuse_field("q", to_text(p.q), fmt::format("is {}, the type of x", to_text(p.x)));
  }
  return {};
}

Status check_source(const QuantizeProblem& p) {
  if (p.source.empty()) {
    if (p.weighted) return refuse_field("weighted", "1", "is 0 without src");
    if (!p.tap) return {};
    return refuse_field("tap", "1", "is 0 without src: the cast sees x itself");
  }
  const Result<FusedSource> source = fused_source(p.source);
  if (!source) return fail(source.error().code, fmt::format("src: {}", source.error().message));
  if (p.weighted && source->inputs() == Expr::kMaxInputs && !source->norms) {
    return refuse_field(
        "weighted", "1",
        fmt::format("is 0 with src={}, which has {} inputs beside it", p.source, Expr::kMaxInputs));
  }
  if (source->halves() && p.cols % 2 != 0) {
    return refuse_field(
        "cols", count_text(p.cols),
        fmt::format("is an even number with src={}, whose halves are as wide as its "
                    "inputs",
                    p.source));
  }
  return {};
}

// Returns whether pieces of the operation take the step.
Status check_step(const QuantizeProblem& p) {
  const bool transposes = p.pieces == PiecesStep::kTranspose;
  const std::string_view step = name_of(p.pieces);
  if (p.operation == QuantizeOperation::kTranspose) {
    return transposes ? Status{}
                      : refuse_field("pieces", step, "are none and transpose with transpose");
  }
  if (p.operation != QuantizeOperation::kQuantize) {
    return refuse_field("pieces", step, fmt::format("is none with {}", name_of(p.operation)));
  }
  return transposes ? refuse_field("pieces", step, "are none, amax, scales and cast with quantize")
                    : Status{};
}

// A table has the rows and columns of every piece.
Status check_pieces(const QuantizeProblem& p) {
  if (p.pieces == PiecesStep::kNone) return {};
  if (Status s = check_step(p); !s) return s;
  const std::string step = fmt::format("pieces={}", name_of(p.pieces));
  if (p.rows != kDynamic) {
    return refuse_field("rows", count_text(p.rows),
                        fmt::format("is '?' with {}: each has its own", step));
  }
  if (p.cols != 0) {
    return refuse_field("cols", count_text(p.cols),
                        fmt::format("is 0 with {}: each has its own", step));
  }
  QuantizeProblem plain = without_options(p);
  plain.amax_epsilon = p.amax_epsilon;
  plain.e8m0_rounding = p.e8m0_rounding;
  if (!(plain == p)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is given{}; allowed beside it are eps, round and via", step,
                            options_text(p)));
  }
  if (p.pieces == PiecesStep::kTranspose) return {};
  if (Status s = check_plain_x(p, step); !s) return s;
  const bool makes_scales = p.pieces == PiecesStep::kScales;
  if (p.output == (makes_scales ? QuantizeOutput::kBoth : QuantizeOutput::kRowwise)) return {};
  return refuse_field("out", name_of(p.output),
                      fmt::format("is {} with {}", makes_scales ? "both" : "row", step));
}

Status check_options(const QuantizeProblem& p) {
  if (Status s = check_pieces(p); !s) return s;
  if (!std::isfinite(p.norm_epsilon) || p.norm_epsilon < 0) {
    return refuse_field("norm_eps", fmt::format("{}", p.norm_epsilon), "is a finite number >= 0");
  }
  if (Status s = check_source(p); !s) return s;
  if (p.scale_layout == ScaleLayout::kSwizzled && p.q.scale != ScaleFormat::kE8M0) {
    return refuse_field(
        "scales", "swizzled",
        fmt::format("is linear with {}: only e8m0 scales have another layout", to_text(p.q)));
  }
  if (p.scale_layout == ScaleLayout::kByRow && p.q.granularity != Granularity::k1x128) {
    return refuse_field(
        "scales", "rows",
        fmt::format("is linear with {}: only 1x128 scales lie by rows", to_text(p.q)));
  }
  return {};
}

}  // namespace

std::string_view name_of(QuantizeOperation operation) {
  const auto index = static_cast<std::size_t>(operation);
  return index < kOperations.size() ? kOperations[index] : "unknown";
}
std::string_view name_of(QuantizeOutput output) { return word_of(output, kOutputs); }
std::string_view name_of(E8M0Rounding rounding) { return word_of(rounding, kRoundings); }
std::string_view name_of(ScalePolicy policy) { return word_of(policy, kPolicies); }
std::string_view name_of(PiecesStep step) { return word_of(step, kPiecesWords); }
std::string_view name_of(ScaleLayout layout) { return word_of(layout, kScaleLayouts); }

std::string to_text(const QuantizeProblem& p) {
  return fmt::format("{} rows={} cols={} x={} q={}{}{}", name_of(p.operation), count_text(p.rows),
                     count_text(p.cols), to_text(p.x), to_text(p.q), output_text(p),
                     options_text(p));
}

std::string short_text(const QuantizeProblem& p) {
  const QuantizeProblem usual;
  std::string text = fmt::format("{}x{}", count_text(p.rows), count_text(p.cols));
  if (p.operation != usual.operation) text += fmt::format(" {}", name_of(p.operation));
  if (p.x != usual.x) text += fmt::format(" x={}", to_text(p.x));
  return text + fmt::format(" q={}{}{}", to_text(p.q), output_text(p), options_text(p));
}

std::string_view operation_of(const QuantizeProblem& p) { return name_of(p.operation); }

std::span<const std::string_view> quantize_operations() { return kOperations; }

Result<QuantizeProblem> parse_quantize_problem(std::span<const std::string_view> words) {
  QuantizeProblem problem;
  const auto operation = std::ranges::find(kOperations, words.front());
  problem.operation = static_cast<QuantizeOperation>(operation - kOperations.begin());
  if (Status s = check_no_shard(words); !s) return tl::unexpected<Error>(s.error());
  return parse_problem_fields(words, fields_of(problem.operation), problem);
}

Status check_well_formed(const QuantizeProblem& p) {
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
  if (p.via && *p.via != DType::kBF16) {
    return refuse_field("via", name_of(*p.via), "are none and bf16");
  }
  if (p.via && p.x.dtype != DType::kFP32 && p.source.empty()) {
    return refuse_field("via", "bf16",
                        fmt::format("is none with x={} and no src: fp32 alone is rounded on the "
                                    "way, and what is computed",
                                    to_text(p.x)));
  }
  return check_options(p);
}

std::optional<QuantizeProblem> tuned_alike(const QuantizeProblem& p) {
  if (!p.skip_unchanged && !p.via) return std::nullopt;
  QuantizeProblem plain = p;
  plain.skip_unchanged = false;
  plain.via.reset();
  return plain;
}

TokenAxis token_axis(const QuantizeProblem& p) { return {"rows", p.rows, "rows"}; }

QuantizeProblem with_tokens(QuantizeProblem p, std::int64_t tokens) {
  p.rows = tokens;
  return p;
}

std::vector<Extent> extents(const QuantizeProblem& p) {
  return {{"cols", p.cols}, {"rows", p.rows}};
}

bool has_types_of(const QuantizeProblem& p, const Recipe& recipe) {
  return p.q == recipe.activation || p.q == recipe.weight || p.q == recipe.gradient;
}

Result<QuantizeProblem> parse_quantize_shape(std::string_view rows_x_cols,
                                             std::string_view recipe) {
  std::array<std::int64_t, 2> counts{};
  if (Status s = parse_shape("the quantize shape", "ROWSxCOLS", rows_x_cols, counts); !s) {
    return tl::unexpected<Error>(s.error());
  }
  const auto row = recipe_named(recipe);
  if (!row) return tl::unexpected<Error>(row.error());
  QuantizeProblem problem;
  problem.rows = counts[0];
  problem.cols = counts[1];
  problem.q = (*row)->activation;
  return problem;
}

}  // namespace octile
