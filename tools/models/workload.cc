#include "tools/models/workload.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>
#include <utility>

#include "generator/core/nearest.h"
#include "generator/core/recipe.h"
#include "generator/gemm/passes.h"

namespace octile::tools {
namespace {

Result<std::vector<TokenRange>> ranges_of(const std::vector<std::int64_t>& counts) {
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

std::vector<std::string_view> views_of(const std::vector<std::string>& names) {
  return {names.begin(), names.end()};
}

}  // namespace

std::vector<std::string> recipe_name_list() {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes()) names.emplace_back(recipe.name);
  return names;
}

Result<const Recipe*> recipe_of_option(const std::string& name) {
  if (const Recipe* recipe = find_recipe(name)) return recipe;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("--recipe is '{}'{}; allowed: {}", name,
                          did_you_mean(name, views_of(recipe_name_list())), recipe_names()));
}

std::vector<std::string> layer_user_names() { return {"torch", "vllm", "sglang"}; }

bool is_engine(LayerUser user) { return user == LayerUser::kVllm || user == LayerUser::kSglang; }

Result<LayerUser> layer_user_of_option(const std::string& name) {
  if (name.empty()) return LayerUser::kLibrary;
  if (name == "torch") return LayerUser::kTorch;
  if (name == "vllm") return LayerUser::kVllm;
  if (name == "sglang") return LayerUser::kSglang;
  return fail(ErrorCode::kInvalidArgument, fmt::format("--for is '{}'; allowed: {}, or no --for",
                                                       name, fmt::join(layer_user_names(), ", ")));
}

std::vector<std::int64_t> counts_for(const Problem& problem,
                                     const std::vector<std::int64_t>& counts) {
  return token_axis(problem).is_dynamic() ? counts : std::vector<std::int64_t>();
}

Status check_counts(const Problem& problem, const std::vector<std::int64_t>& counts) {
  const TokenAxis axis = token_axis(problem);
  if (counts.empty() || axis.is_dynamic()) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("--tokens is given, but the problem states {0}={1}; allowed only if {0} "
                          "is '?' or '_'",
                          axis.dimension, axis.tokens));
}

Result<std::vector<Work>> work_of_problem(const Problem& problem,
                                          const std::vector<std::int64_t>& counts) {
  if (Status ok = check_counts(problem, counts); !ok) return tl::unexpected<Error>(ok.error());
  auto ranges = ranges_of(counts);
  if (!ranges) return tl::unexpected<Error>(ranges.error());
  if (ranges->empty()) {
    const TokenAxis axis = token_axis(problem);
    ranges->push_back(axis.is_dynamic() ? TokenRange{1, kMostTokens}
                                        : TokenRange{axis.tokens, axis.tokens});
  }
  return std::vector<Work>{{"", problem, std::move(*ranges)}};
}

Result<std::vector<Request>> gemms_of_shape(const std::string& mxnxk,
                                            const std::string& recipe_name,
                                            const std::vector<Pass>& passes,
                                            const std::vector<std::int64_t>& counts) {
  const auto fprop = parse_gemm_shape(mxnxk, recipe_name);
  if (!fprop) return tl::unexpected<Error>(fprop.error());
  if (Status ok = check_counts(*fprop, counts); !ok) return tl::unexpected<Error>(ok.error());
  const auto [m, n, k] = std::array{fprop->m, fprop->n, fprop->k};
  std::vector<Request> requests;
  for (const Pass pass : passes) {
    const bool opens = pass == Pass::kWgrad && m != kDynamic;
    requests.push_back({gemm_problem(*find_recipe(recipe_name), pass, opens ? kDynamic : m, n, k),
                        opens ? std::vector<std::int64_t>{m} : counts});
  }
  return requests;
}

std::vector<Work> distinct(std::vector<Work> works) {
  std::vector<Work> once;
  std::unordered_map<std::string, std::size_t> places;  // of problems, by their texts
  for (Work& work : works) {
    const auto [place, is_new] = places.try_emplace(to_text(work.problem), once.size());
    if (is_new) {
      once.push_back(std::move(work));
      continue;
    }
    Work& same = once[place->second];
    for (const TokenRange& range : work.tokens) {
      if (std::ranges::find(same.tokens, range) == same.tokens.end()) {
        same.tokens.push_back(range);
      }
    }
  }
  return once;
}

}  // namespace octile::tools
