#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <utility>

#include "generator/core/recipe.h"
#include "tools/models/layer_works.h"
#include "tools/models/source.h"

namespace octile::tools {
namespace {

// An error about a shape of a file names the file and the layer.
Status check_works(const Model& model, const std::vector<Work>& works) {
  for (const Work& work : works) {
    if (const Status ok = check_supported(work.problem); !ok) {
      return fail(ok.error().code,
                  fmt::format("{}: '{}': {}", model.origin, work.name, ok.error().message));
    }
  }
  return {};
}

// Token counts that are used in one way.
struct Part {
  Mode mode = Mode::kPrefill;
  std::vector<std::int64_t> counts;
  bool is_list = false;  // of a list of shapes, of octile.torch or of an engine: contiguous groups
};

std::vector<Part> parts_of(const Model& model, const ModelUse& use) {
  const bool by_list = !model.tokens.empty() && !use.modes_given;
  if (is_engine(use.user)) {
    std::vector<std::int64_t> counts = use.counts;
    if (counts.empty() && by_list) counts = model.tokens;
    for (std::size_t i = 0; i < use.modes.size() && use.counts.empty() && !by_list; ++i)
      std::ranges::copy(counts_of(use.modes[i]), std::back_inserter(counts));
    return {{Mode::kPrefill, std::move(counts), true}};
  }
  const bool contiguous = by_list || use.user == LayerUser::kTorch;
  std::vector<Part> parts;
  if (use.counts.empty() && by_list) return {{Mode::kPrefill, model.tokens, true}};
  if (!use.counts.empty() && contiguous && !use.modes_given) {
    return {{Mode::kPrefill, use.counts, true}};
  }
  for (const Mode mode : use.modes) {
    Part part{mode, counts_of(mode), contiguous};
    if (!use.counts.empty()) part.counts = counts_in(mode, use.modes, use.counts);
    if (!part.counts.empty()) parts.push_back(std::move(part));
  }
  return parts;
}

Result<std::vector<TokenRange>> ranges_of_counts(const std::vector<std::int64_t>& counts) {
  std::vector<TokenRange> ranges;
  for (const std::int64_t count : counts) {
    if (count < 1) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--tokens has {}; allowed are counts of 1 and more", count));
    }
    ranges.push_back({count, count});
  }
  return ranges;
}

// The works of one part of the token counts.
class PartWorks {
 public:
  PartWorks(const ModelUse& use, const Part& part, std::vector<Pass> passes,
            std::vector<Work>& works)
      : use_(use), part_(part), passes_(std::move(passes)), works_(works) {}

  Status add(const Model& model) {
    auto ranges = ranges_of_counts(part_.counts);
    if (!ranges) return tl::unexpected<Error>(ranges.error());
    tokens_ = std::move(*ranges);
    // An engine runs every count up to the largest, and prepares them all.
    if (is_engine(use_.user)) tokens_ = {{1, std::ranges::max(part_.counts)}};
    for (const Weight& weight : model.weights) {
      if (weight.recipe.empty() || weight.layers + weight.mtp == 0) continue;
      if (!model.tokens.empty() && weight.groups > 0 && !use_.experts_of_lists) continue;
      const std::size_t before = works_.size();
      if (Status ok = add(weight); !ok) return ok;
      for (std::size_t i = before; i < works_.size(); ++i) {
        const bool is_beforehand = forward_only() && works_[i].name.ends_with(", weight");
        works_[i].layers = is_beforehand ? 0 : weight.layers + weight.mtp;
      }
    }
    return {};
  }

 private:
  bool decodes() const { return part_.mode == Mode::kDecode && !part_.is_list; }
  bool forward_only() const { return passes_ == std::vector{Pass::kFprop}; }

  Status add(const Weight& weight) {
    const LayerWorks all{*find_recipe(weight.recipe), passes_, tokens_, works_};
    if (is_engine(use_.user)) return add_served(weight, all);
    if (weight.groups > 0) return add_experts(weight);
    if (decodes() && forward_only() && weight.absorbed) {
      add_absorbed(weight, *weight.absorbed, all);
    } else {
      add_layer({weight.role, weight.n.value, weight.k.value}, all, use_.user);
    }
    return {};
  }

  // Adds a layer that the plug-in of an engine serves: none of experts.
  Status add_served(const Weight& weight, const LayerWorks& all) {
    if (weight.groups > 0) return {};
    const Recipe& recipe = all.recipe;
    if (recipe.activation.granularity != Granularity::k1x128 ||
        recipe.weight.granularity != Granularity::k128x128) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("'{}' has recipe {}; allowed for serving: recipes of 128x128 blocks",
                              weight.role, recipe.name));
    }
    add_layer({weight.role, weight.n.value, weight.k.value}, all, use_.user);
    return {};
  }

  static void add_absorbed(const Weight& weight, const Absorbed& absorbed, const LayerWorks& all) {
    const auto& [heads, nope, v] = absorbed;
    add_batched({weight.role + " absorbed into q", weight.k.value, nope.value}, heads.value, all);
    add_batched({weight.role + " absorbed into o", v.value, weight.k.value}, heads.value, all);
  }

  Status add_experts(const Weight& weight) {
    const Layer layer{weight.role, weight.n.value, weight.k.value, weight.groups};
    std::vector<TokenRange> all_rows, expected;
    for (const TokenRange& range : tokens_) {
      const auto rows = expert_rows(use_.parallel, weight.per_token, range.lo);
      if (!rows) return tl::unexpected<Error>(rows.error());
      const std::int64_t each = (*rows + weight.groups - 1) / weight.groups;
      add_once(all_rows, {*rows, *rows});
      add_once(expected, {each, each});
    }
    const Recipe& recipe = *find_recipe(weight.recipe);
    const LayerWorks masked{recipe, passes_, expected, works_};
    if (decodes() && forward_only() && add_masked(layer, masked)) return {};
    add_layer(layer, {recipe, passes_, all_rows, works_}, use_.user);
    return {};
  }

  static void add_once(std::vector<TokenRange>& ranges, const TokenRange& range) {
    if (std::ranges::find(ranges, range) == ranges.end()) ranges.push_back(range);
  }

  const ModelUse& use_;
  const Part& part_;
  const std::vector<Pass> passes_;
  std::vector<TokenRange> tokens_;
  std::vector<Work>& works_;
};

Layout layout_of(const ModelUse& use, Mode mode) {
  if (use.layout) return *use.layout;
  const bool separate = mode == Mode::kTraining || use.user == LayerUser::kTorch;
  return separate ? Layout::kSeparate : Layout::kServing;
}

}  // namespace

Result<std::vector<Work>> works_of_model(const Model& rank, const ModelUse& use) {
  std::vector<Work> works;
  for (const Part& part : parts_of(rank, use)) {
    const std::vector<Pass> passes = use.passes.empty() ? passes_of(part.mode) : use.passes;
    const Model model = laid_out(rank, layout_of(use, part.mode));
    if (Status ok = PartWorks(use, part, passes, works).add(model); !ok) {
      return tl::unexpected<Error>(ok.error());
    }
  }
  if (Status ok = check_works(rank, works); !ok) return tl::unexpected<Error>(ok.error());
  return works;
}

Result<ExpertShare> share_of_experts(const Model& model, const std::string& name,
                                     std::int64_t ranks) {
  std::vector<const Weight*> experts;
  for (const Weight& weight : model.weights) {
    if (weight.groups > 0) experts.push_back(&weight);
  }
  if (experts.size() != 2) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--model is '{}', which has no experts; allowed: a model that has, or "
                            "one of {}",
                            name, fmt::join(shipped_models_with_experts(), ", ")));
  }
  const Weight &up = *experts.front(), &down = *experts.back();
  if (ranks < 1 || up.groups % ranks != 0) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--ep is {}; allowed are divisors of the model's {} experts", ranks,
                            up.groups));
  }
  return ExpertShare{
      up.groups / ranks, up.per_token, {up.n.value, up.k.value}, {down.n.value, down.k.value}};
}

Result<std::int64_t> rows_of(const ExpertShare& share, std::int64_t tokens) {
  const std::int64_t most = std::numeric_limits<std::int32_t>::max() / share.rows_per_token;
  if (tokens >= 1 && tokens <= most) return tokens * share.rows_per_token;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("--tokens is {}; allowed are 1 to {}: a rank's experts receive {} rows "
                          "for each, below 2^31 in all",
                          tokens, most, share.rows_per_token));
}

}  // namespace octile::tools
