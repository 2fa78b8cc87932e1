#include "tools/models/parallel.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "generator/core/text_fields.h"

namespace octile::tools {
namespace {

constexpr std::int64_t kScaleBlock = 128;  // of block-scaled FP8 checkpoints

std::string divisors_of(std::int64_t value) {
  constexpr std::size_t kMostShown = 24;
  std::vector<std::int64_t> all;
  for (std::int64_t d = 1; d * d <= value; ++d) {
    if (value % d != 0) continue;
    all.push_back(d);
    if (d != value / d) all.push_back(value / d);
  }
  std::ranges::sort(all);
  if (all.size() > kMostShown) all.resize(kMostShown);
  return fmt::format("{}", fmt::join(all, ", "));
}

tl::unexpected<Error> refuse_split(const std::string& option, std::int64_t ranks,
                                   const Weight& weight, const Extent& whole) {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} is {}; allowed are divisors of {}, {}, for {}: {}", option, ranks,
                          whole.keys, whole.value, weight.role, divisors_of(whole.value)));
}

Status check_ranks(const Parallel& parallel) {
  constexpr std::int64_t kMostRanks = 100000;
  for (const auto& [option, ranks] :
       {std::pair("--tp", parallel.tp), std::pair("--ep", parallel.ep),
        std::pair("--moe-tp", parallel.moe_tp.value_or(1))}) {
    if (ranks >= 1 && ranks <= kMostRanks) continue;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is {}; allowed: 1 to {}", option, ranks, kMostRanks));
  }
  const auto [less, more] = std::minmax(parallel.tp, parallel.ep);
  if (parallel.moe_tp || more % less == 0) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("--ep is {} with --tp {}; allowed: divisors and multiples of {}, or "
                          "--moe-tp besides",
                          parallel.ep, parallel.tp, parallel.tp));
}

// A checkpoint with a scale for 128 x 128 weights cannot be cut inside a block.
bool has_block_scales(const Weight& weight) { return weight.recipe.starts_with("blockwise"); }

class Sharder {
 public:
  Sharder(Model& model, const Parallel& parallel) : model_(model), parallel_(parallel) {}

  Status run() {
    remark_idle_options();
    for (Weight& weight : model_.weights) {
      if (weight.is_vector() || !weight.out.empty()) continue;
      Status ok = weight.groups > 0 ? share_experts(weight) : Status();
      if (ok) ok = cut(weight);
      if (!ok) return ok;
    }
    return {};
  }

 private:
  void remark_idle_options() {
    const auto has_experts = [](const Weight& weight) { return weight.groups > 0; };
    if (std::ranges::any_of(model_.weights, has_experts)) return;
    for (const auto& [option, ranks] :
         {std::pair("--ep", parallel_.ep), std::pair("--moe-tp", parallel_.moe_tp.value_or(1))}) {
      if (ranks > 1)
        model_.remarks.push_back(
            fmt::format("{} is {}, and the model has no experts that it divides", option, ranks));
    }
  }

  Status share_experts(Weight& weight) const {
    if (weight.groups % parallel_.ep != 0) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--ep is {}; allowed are divisors of the model's {} experts",
                              parallel_.ep, weight.groups));
    }
    weight.groups /= parallel_.ep;
    return {};
  }

  std::pair<std::string, std::int64_t> ranks_of(const Weight& weight) const {
    if (weight.groups > 0) return {parallel_.moe_tp ? "--moe-tp" : "--tp", parallel_.expert_tp()};
    const bool whole = parallel_.dp_attention && (weight.is_attention || weight.is_shared);
    return {"--tp", whole ? 1 : parallel_.tp};
  }

  Status cut(Weight& weight) {
    const auto [option, ranks] = ranks_of(weight);
    if (ranks == 1 || weight.cut == Cut::kNone) return {};
    if (weight.cut == Cut::kUnknown) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} is {}; allowed: 1 for {}, because neither the name of {} nor a "
                              "number of heads says how ranks divide it",
                              option, ranks, model_.name, weight.role));
    }
    if (weight.padded > 0) {
      const std::int64_t step = weight.padded * ranks;
      Extent& size = weight.cut == Cut::kN ? weight.n : weight.k;
      const std::int64_t steps = (size.value + step - 1) / step;
      size.value = steps * weight.padded;
      remark_block(weight, steps * step, size.value, ranks);
      return {};
    }
    Extent& size = weight.cut == Cut::kN ? weight.n : weight.k;
    const std::int64_t before = size.value, own = before - weight.kv_n;
    // Ranks beyond the heads of keys and values hold copies.
    std::int64_t& kv = weight.kv_heads.value;
    const std::int64_t kv_ranks = kv > 0 && ranks % kv == 0 ? std::min(ranks, kv) : ranks;
    if (own > 0 && weight.units.value % ranks != 0) {
      return refuse_split(option, ranks, weight, weight.units);
    }
    if (weight.kv_n > 0 && kv % kv_ranks != 0) {
      return refuse_split(option, ranks, weight, weight.kv_heads);
    }
    kv /= kv_ranks;
    weight.kv_n /= kv_ranks;
    weight.units.value /= ranks;
    size.value = own / ranks + weight.kv_n;
    if (weight.absorbed) weight.absorbed->heads.value /= ranks;
    remark_block(weight, before, size.value, own > 0 ? ranks : kv_ranks);
    return {};
  }

  void remark_block(const Weight& weight, std::int64_t before, std::int64_t after,
                    std::int64_t parts) {
    const std::int64_t stacked = weight.cut == Cut::kN ? weight.stacked : 1;
    const std::int64_t piece = after / stacked;
    if (!model_.is_block_fp8 || !has_block_scales(weight) || piece % kScaleBlock == 0) return;
    model_.remarks.push_back(fmt::format(
        "{}: {} / {} = {} is not a multiple of 128, so a rank's part of the checkpoint begins "
        "inside "
        "a block of scales: divide experts by --ep, pad the width to {}, or quantise BF16 weights "
        "after the cut",
        weight.role, before / stacked, parts, piece,
        (piece + kScaleBlock - 1) / kScaleBlock * kScaleBlock * parts));
  }

  Model& model_;
  const Parallel& parallel_;
};

}  // namespace

std::int64_t Parallel::token_owners() const {
  const std::int64_t ranks = std::max(tp, ep * expert_tp());
  return dp_attention ? ranks : std::max<std::int64_t>(1, ranks / tp);
}

Result<Model> shard(Model model, const Parallel& parallel) {
  Status ok = check_ranks(parallel);
  if (ok) ok = Sharder(model, parallel).run();
  if (!ok) return tl::unexpected<Error>(ok.error());
  return model;
}

Result<std::int64_t> expert_rows(const Parallel& parallel, std::int64_t per_token,
                                 std::int64_t tokens) {
  const std::int64_t each = saturating_product(per_token, parallel.token_owners());
  const std::int64_t most =
      std::min<std::int64_t>(kMostCount, saturating_product(kMostCount, parallel.ep) / each);
  if (tokens < 1 || tokens > most) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("--tokens is {}; allowed are 1 to {}: a rank's experts receive {} rows "
                    "for each{}, below 2^31 in all",
                    tokens, most, each, parallel.ep == 1 ? "" : fmt::format(" / {}", parallel.ep)));
  }
  return (saturating_product(tokens, each) + parallel.ep - 1) / parallel.ep;
}

}  // namespace octile::tools
