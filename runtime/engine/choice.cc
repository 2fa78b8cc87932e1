#include "runtime/engine/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "generator/families.h"

namespace octile {
namespace {

using cache::TuningHit;
using cache::TuningMatch;
using cache::TuningRecord;

// With the token count open, whichever dimension it occupies.
Problem opened(Problem problem) {
  if (auto* quantize = std::get_if<QuantizeProblem>(&problem)) quantize->rows = kDynamic;
  if (auto* gemm = std::get_if<GemmProblem>(&problem); gemm != nullptr && gemm->k != kDynamic)
    gemm->m = kDynamic;
  return problem;
}

// The text a batch-invariant problem has when nothing holds it to one set of numerics.
std::optional<std::string> text_without_invariance(const Problem& problem) {
  const auto* gemm = std::get_if<GemmProblem>(&problem);
  if (gemm == nullptr || !gemm->invariant) return std::nullopt;
  GemmProblem free = *gemm;
  free.invariant = false;
  return tuning_text(free);
}

std::vector<TuningHit> records_for(const Problem& problem, std::int64_t tokens,
                                   const DeviceSpec& device, const cache::TuningSet& records) {
  const std::int64_t bucket = bucket_upper(bucket_of(tokens));
  const auto lookup = [&](const std::string& text) {
    return records.lookup({text, bucket, device.name, device.sm_count});
  };
  std::vector<TuningHit> hits = lookup(tuning_text(problem));
  if (const auto text = text_without_invariance(problem)) {
    for (const TuningHit& hit : lookup(*text)) hits.push_back(hit);
    std::ranges::stable_sort(hits, {}, &TuningHit::match);
  }
  return hits;
}

Result<KernelConfig> usable(const std::string& text, const GemmProblem& problem,
                            std::int64_t tokens, const DeviceSpec& device) {
  const auto config = parse_gemm_config(text);
  if (!config) return tl::unexpected<Error>(config.error());
  if (const GemmConstraint* rule = refused_by(*config, problem, tokens, device); rule != nullptr)
    return fail(ErrorCode::kUnsupported,
                fmt::format("{} refuses it: {}", rule->name, rule->reason));
  if (!problem.invariant) return *config;
  const GemmConfig model = default_config(problem, tokens, device);
  if (config->promote != model.promote || config->splits != model.splits)
    return fail(ErrorCode::kUnsupported,
                fmt::format("its numerics are promote={} splits={}, those of every token count "
                            "promote={} splits={}",
                            config->promote, config->splits, model.promote, model.splits));
  return *config;
}

Result<KernelConfig> usable(const std::string& text, const QuantizeProblem& problem,
                            std::int64_t /*tokens*/, const DeviceSpec& /*device*/) {
  const auto config = parse_quantize_config(text);
  if (!config) return tl::unexpected<Error>(config.error());
  if (const Status ok = check_config(problem, *config); !ok)
    return tl::unexpected<Error>(ok.error());
  return *config;
}

// The winner's configuration where it is one for this problem and device.
Result<KernelConfig> usable_winner(const TuningRecord& record, const Problem& problem,
                                   std::int64_t tokens, const DeviceSpec& device) {
  return std::visit([&](const auto& p) { return usable(record.winner.config, p, tokens, device); },
                    problem);
}

// How much slower than the model's own pick the model may call a near record's winner. Its
// estimates are off by some 5 % at few tokens and 2 % above; what is fastest at half the tokens can
// be twice as slow at these (H200, 200x8192x28672 by the winner at 128 tokens: 1.76 times the best,
// the model's pick 1.00). Of eight near winners above 128 tokens that it called 2 to 4 % slower
// than its pick, seven were, by 1.9 % in the mean of all.
constexpr double near_may_cost(std::int64_t tokens) { return tokens <= 128 ? 1.05 : 1.02; }

// What the model says against a near record's winner; empty: nothing. It knows products only.
std::string rejection_reason(const KernelConfig& config, const KernelConfig& model, const Problem& problem,
                      std::int64_t tokens, const DeviceSpec& device) {
  const auto* gemm = std::get_if<GemmProblem>(&problem);
  if (gemm == nullptr) return {};
  const auto expected = [&](const KernelConfig& c) {
    return estimate(std::get<GemmConfig>(c), *gemm, tokens, device).total_us;
  };
  const double here = expected(config);
  const double pick = expected(model);
  if (here <= near_may_cost(tokens) * pick) return {};
  return fmt::format("the cost model expects {:.4g} us of it and {:.4g} of its own pick", here,
                     pick);
}

// A record a person wrote may lack what was measured.
std::string describe(const TuningHit& hit) {
  const TuningRecord& r = *hit.record;
  const std::string measured =
      r.winner.median_us > 0
          ? fmt::format("{:.4g} us, {:.3f} times the default's speed", r.winner.median_us, r.gain)
          : "not timed";
  return fmt::format("the {} record of '{}' at {} tokens on {} with {} SMs ({}, {}, {})",
                     name_of(hit.match), r.problem, r.tokens, r.device, r.sm_count, measured,
                     r.date.empty() ? "undated" : r.date, hit.origin);
}

}  // namespace

std::string_view name_of(ChosenBy by) {
  switch (by) {
    case ChosenBy::kRecord:
      return "record";
    case ChosenBy::kNearRecord:
      return "near record";
    case ChosenBy::kModel:
      return "model";
  }
  return "unknown";
}

KernelConfig model_config(const Problem& problem, std::int64_t tokens, const DeviceSpec& device) {
  return std::visit(
      [&](const auto& p) -> KernelConfig { return default_config(p, tokens, device); }, problem);
}

std::string tuning_text(const Problem& problem) { return to_text(opened(problem)); }

Choice choose_config(const Problem& problem, std::int64_t tokens, const DeviceSpec& device,
                     const cache::TuningSet& records) {
  std::string passed_over;
  std::optional<KernelConfig> pick;  // the model's, which ranks the whole space: once, if at all
  const auto model = [&]() -> const KernelConfig& {
    if (!pick) pick = model_config(problem, tokens, device);
    return *pick;
  };
  for (const TuningHit& hit : records_for(problem, tokens, device, records)) {
    if (hit.match == TuningMatch::kOtherDevice) {
      passed_over += fmt::format("; not used: {}", describe(hit));
      continue;
    }
    auto config = usable_winner(*hit.record, problem, tokens, device);
    if (config && hit.match == TuningMatch::kNear) {
      std::string against = rejection_reason(*config, model(), problem, tokens, device);
      if (!against.empty()) config = fail(ErrorCode::kUnsupported, std::move(against));
    }
    if (config)
      return {std::move(*config),
              hit.match == TuningMatch::kExact ? ChosenBy::kRecord : ChosenBy::kNearRecord,
              *hit.record, describe(hit) + passed_over};
    passed_over += fmt::format("; not used: {}, because {}", describe(hit), config.error().message);
  }
  return {model(), ChosenBy::kModel, std::nullopt, "the cost model" + passed_over};
}

}  // namespace octile
