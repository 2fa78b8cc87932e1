#include "tools/models/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace octile::tools {
namespace {

bool can_fuse(const Weight& a, const Weight& b) {
  return a.fused == b.fused && a.k.value == b.k.value && a.recipe == b.recipe && a.at == b.at &&
         a.layers == b.layers && a.mtp == b.mtp && a.out.empty() && b.out.empty();
}

// Returns how many weights from `first` on are fused into one.
std::size_t fused_from(const std::vector<Weight>& weights, std::size_t first) {
  std::size_t end = first + 1;
  if (weights[first].fused.empty()) return 1;
  while (end < weights.size() && can_fuse(weights[first], weights[end])) ++end;
  return end - first;
}

Weight fuse(const std::vector<Weight>& weights, std::size_t first, std::size_t count) {
  Weight all = weights[first];
  for (std::size_t i = 1; i < count; ++i) {
    const Weight& more = weights[first + i];
    all.n = all.n + more.n;
    if (more.kv_n > 0) all.kv_heads = more.kv_heads;
    all.kv_n += more.kv_n;
    all.bias = all.bias || more.bias;
  }
  all.role = all.fused;
  all.stacked = static_cast<std::int64_t>(count);
  return all;
}

std::vector<Weight> serving_weights(const std::vector<Weight>& weights) {
  std::vector<Weight> all;
  for (std::size_t i = 0; i < weights.size();) {
    // A part may be apart from the first one: q_a_proj, q_b_proj, kv_a_proj.
    const std::size_t count = fused_from(weights, i);
    all.push_back(count > 1 ? fuse(weights, i, count) : weights[i]);
    i += count;
  }
  return all;
}

// Brings the parts of a fused weight together, at the place of the first.
std::vector<Weight> parts_together(std::vector<Weight> weights) {
  std::vector<Weight> all;
  for (Weight& weight : weights) {
    const auto last = std::ranges::find_if(all.rbegin(), all.rend(), [&](const Weight& other) {
      return !weight.fused.empty() && can_fuse(other, weight);
    });
    if (last == all.rend()) {
      all.push_back(std::move(weight));
    } else {
      all.insert(last.base(), std::move(weight));
    }
  }
  return all;
}

}  // namespace

Result<Layout> layout_of_option(const std::string& name) {
  if (name == "serving") return Layout::kServing;
  if (name == "separate") return Layout::kSeparate;
  if (name == "both") return Layout::kBoth;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("--layout is '{}'; allowed: serving, separate, both", name));
}

Model laid_out(Model model, Layout layout) {
  if (layout == Layout::kSeparate) return model;
  std::vector<Weight> fused = serving_weights(parts_together(model.weights));
  if (layout == Layout::kBoth) {
    for (Weight& weight : model.weights) {
      if (weight.fused.empty() || !weight.out.empty()) continue;
      if (std::ranges::find(fused, weight.role, &Weight::role) == fused.end()) {
        fused.push_back(std::move(weight));
      }
    }
  }
  model.weights = std::move(fused);
  return model;
}

}  // namespace octile::tools
