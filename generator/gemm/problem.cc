#include "generator/gemm/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "generator/core/checks.h"
#include "generator/core/text_fields.h"
#include "generator/gemm/passes.h"

namespace octile {
namespace {

// ---- text

Parsed<std::optional<DType>> parse_bias(std::string_view text) {
  const auto type = parse_element(text);
  if (!type) return tl::unexpected(type.error());
  return *type;
}

Parsed<Sentry> parse_sentry(std::string_view text) {
  if (text == "0") return Sentry::kNone;
  if (text == "1") return Sentry::kWord;
  if (text == "squares") return Sentry::kSquares;
  return malformed("allowed are 0, 1 and squares");
}

using G = GemmProblem;
constexpr std::array<Field<G>, 15> kFields{{
    {"m", true, set<&G::m, parse_token_count, G>},
    {"n", true, set<&G::n, parse_count, G>},
    {"k", true, set<&G::k, parse_token_count, G>},
    {"a", true, set<&G::a, parse_tensor_type, G>},
    {"b", true, set<&G::b, parse_tensor_type, G>},
    {"d", true, set<&G::d, parse_tensor_type, G>},
    {"acc", true, set<&G::accumulate, parse_flag, G>},
    {"promote", true, set<&G::promote, parse_promote, G>},
    {"bias", false, set<&G::bias, parse_bias, G>},
    {"sentry", false, set<&G::sentry, parse_sentry, G>},
    {"invariant", false, set<&G::invariant, parse_flag, G>},
    {"group", false, set<&G::grouping, parse_grouping, G>},
    {"groups", false, set<&G::groups, parse_count, G>},
    {"batch", false, set<&G::batch, parse_count, G>},
    {"sum", false, set<&G::sums_batch, parse_flag, G>},
}};

// Returns the optional fields that are set, each with a space before it.
std::string options_text(const GemmProblem& p) {
  std::string text;
  if (p.bias) text += fmt::format(" bias={}", name_of(*p.bias));
  if (p.sentry == Sentry::kWord) text += " sentry=1";
  if (p.sentry == Sentry::kSquares) text += " sentry=squares";
  if (p.invariant) text += " invariant=1";
  if (is_grouped(p)) text += fmt::format(" group={} groups={}", name_of(p.grouping), p.groups);
  if (is_batched(p)) text += fmt::format(" batch={}", p.batch);
  if (p.sums_batch) text += " sum=1";
  return text;
}

// ---- well-formedness

// A block's scale is applied when its partial sum is promoted, so an interval is at most as long as
// the shortest block it could cross; or the instruction multiplies it, and nothing is promoted.
Status check_promote(const GemmProblem& p) {
  const bool blocks = !has_scales_of_all_k(p);
  const std::array<int, 4> with_blocks{32, 64, 128, kPromoteNone};
  const std::array<int, 4> without{128, 256, 512, kPromoteNone};
  const bool ok = blocks ? std::count(with_blocks.begin(), with_blocks.end(), p.promote) != 0
                         : std::count(without.begin(), without.end(), p.promote) != 0;
  if (ok) return {};
  return refuse_field("promote", promote_text(p.promote),
                      blocks
                          ? fmt::format("with block scales (a={}, b={}) are 32, 64, 128 and none",
                                        to_text(p.a), to_text(p.b))
                          : fmt::format("without block scales (a={}, b={}) are 128, 256, 512 "
                                        "and none",
                                        to_text(p.a), to_text(p.b)));
}

Status check_groups(const GemmProblem& p) {
  if (p.grouping == Grouping::kStacked) {
    return refuse_field("group", "stacked", "are contiguous and masked with gemm");
  }
  const std::string groups = fmt::format_int(p.groups).str();
  if (!is_grouped(p)) {
    if (p.groups == 0) return {};
    return refuse_field("groups", groups, "is 0 without group=contiguous or group=masked");
  }
  if (p.groups < 1 || p.groups > kMostGemmGroups) {
    return refuse_field("groups", groups, fmt::format("are 1 to {}", kMostGemmGroups));
  }
  if (p.grouping == Grouping::kMasked && has_tokens_in_k(p)) {
    return refuse_field("group", "masked", "is contiguous where k is '?'");
  }
  return {};
}

Status check_batch(const GemmProblem& p) {
  const std::string batch = fmt::format_int(p.batch).str();
  if (p.batch < 0 || p.batch > kMostBatch) {
    return refuse_field("batch", batch, fmt::format("are 0 to {}", kMostBatch));
  }
  if (p.sums_batch && !is_batched(p)) return refuse_field("sum", "1", "is 0 without a batch");
  if (!is_batched(p) || !is_grouped(p)) return {};
  return refuse_field("batch", batch, fmt::format("is 0 with group={}", name_of(p.grouping)));
}

}  // namespace

Parsed<int> parse_promote(std::string_view text) {
  if (text == "none") return kPromoteNone;
  for (const int interval : {32, 64, 128, 256, 512}) {
    if (text == fmt::format_int(interval).str()) return interval;
  }
  return malformed("allowed are 32, 64, 128, 256, 512 and none");
}

std::string promote_text(int promote) {
  return promote == kPromoteNone ? "none" : fmt::format_int(promote).str();
}

std::string to_text(const GemmProblem& p) {
  return fmt::format("gemm m={} n={} k={} a={} b={} d={} acc={:d} promote={}{}", count_text(p.m),
                     count_text(p.n), count_text(p.k), to_text(p.a), to_text(p.b), to_text(p.d),
                     p.accumulate, promote_text(p.promote), options_text(p));
}

std::string short_text(const GemmProblem& p) {
  const GemmProblem usual;
  std::string text = fmt::format("{}x{}x{}", count_text(p.m), count_text(p.n), count_text(p.k));
  if (p.a != usual.a) text += fmt::format(" a={}", to_text(p.a));
  if (p.b != usual.b) text += fmt::format(" b={}", to_text(p.b));
  if (p.d != usual.d) text += fmt::format(" d={}", to_text(p.d));
  if (p.accumulate) text += " acc=1";
  if (p.promote != usual.promote) text += fmt::format(" promote={}", promote_text(p.promote));
  return text + options_text(p);
}

Result<GemmProblem> parse_gemm_problem(std::span<const std::string_view> words) {
  return parse_problem_fields(words, kFields);
}

Status check_well_formed(const GemmProblem& p) {
  if (Status s = check_count("m", p.m, true); !s) return s;
  if (Status s = check_count("n", p.n, false); !s) return s;
  if (Status s = check_count("k", p.k, true); !s) return s;
  if (p.m == kDynamic && p.k == kDynamic) {
    return refuse_field("k", "?", "is a number where m is '?': a problem has one token count");
  }
  if (Status s = check_type("a", p.a); !s) return s;
  if (Status s = check_type("b", p.b); !s) return s;
  if (Status s = check_type("d", p.d); !s) return s;
  if (p.invariant && has_tokens_in_k(p)) {
    return refuse_field("invariant", "1", "is 0 where k is '?': every element sums all tokens");
  }
  if (Status s = check_groups(p); !s) return s;
  if (Status s = check_batch(p); !s) return s;
  return check_promote(p);
}

TokenAxis token_axis(const GemmProblem& p) {
  return has_tokens_in_k(p) ? TokenAxis{"k", p.k} : TokenAxis{"m", p.m};
}

GemmProblem with_tokens(GemmProblem p, std::int64_t tokens) {
  (has_tokens_in_k(p) ? p.k : p.m) = tokens;
  return p;
}

std::vector<Extent> extents(const GemmProblem& p) { return {{"n", p.n}, {"k", p.k}, {"m", p.m}}; }

double flops(const GemmProblem& p, std::int64_t tokens) {
  return 2.0 * static_cast<double>(whole_gemms(p)) * static_cast<double>(m_at(p, tokens)) *
         static_cast<double>(p.n) * static_cast<double>(k_at(p, tokens));
}

bool has_types_of(const GemmProblem& p, const Recipe& recipe) {
  return std::ranges::any_of(std::array{Pass::kFprop, Pass::kDgrad, Pass::kWgrad}, [&](Pass pass) {
    const GemmProblem own = gemm_problem(recipe, pass, p.m, p.n, p.k);
    return operand_type(own.a) == operand_type(p.a) && operand_type(own.b) == operand_type(p.b) &&
           own.d == p.d;
  });
}

std::optional<GemmProblem> without_invariance(const GemmProblem& p) {
  if (!p.invariant) return std::nullopt;
  GemmProblem free = p;
  free.invariant = false;
  return free;
}

std::optional<GemmProblem> tuned_alike(const GemmProblem& p) {
  GemmProblem alike = p;
  alike.a.dtype = alike.b.dtype = DType::kE4M3;
  if (p.d.dtype == DType::kFP16) alike.d.dtype = DType::kBF16;
  if (is_fp8(p.d.dtype)) alike.d = {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32};
  alike.bias.reset();
  alike.sentry = Sentry::kNone;
  if (alike == p) return std::nullopt;
  return alike;
}

}  // namespace octile
