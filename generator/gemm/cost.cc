#include "generator/gemm/cost.h"

#include <algorithm>
#include <limits>

#include "generator/gemm/candidates.h"
#include "generator/gemm/cost_roofline.h"
#include "generator/gemm/cost_wgmma.h"

namespace octile {

GemmCost estimate(const GemmConfig& c, const GemmProblem& p, std::int64_t tokens,
                  const DeviceSpec& d) {
  if (c.unit != MatrixUnit::kWgmma) return gemm_cost::estimate_roofline(c, p, tokens, d);
  return gemm_cost::estimate_wgmma(c, p, tokens, d, gemm_cost::problem_factor(p, tokens, d));
}

double estimate_us(const GemmConfig& c, const GemmProblem& p, std::int64_t tokens,
                   const DeviceSpec& d) {
  return estimate(c, p, tokens, d).total_us;
}

std::vector<double> estimates_us(const std::vector<GemmConfig>& configs, const GemmProblem& p,
                                 std::int64_t tokens, const DeviceSpec& d) {
  const double factor = gemm_cost::problem_factor(p, tokens, d);
  std::vector<double> all;
  all.reserve(configs.size());
  for (const GemmConfig& c : configs) {
    const GemmCost cost = c.unit != MatrixUnit::kWgmma
                              ? gemm_cost::estimate_roofline(c, p, tokens, d)
                              : gemm_cost::estimate_wgmma(c, p, tokens, d, factor);
    all.push_back(cost.total_us);
  }
  return all;
}

GemmConfig default_config(const GemmProblem& problem, std::int64_t tokens,
                          const DeviceSpec& device) {
  const std::int64_t known = std::max<std::int64_t>(tokens, 1);
  // Ties fall to the first enumerated, which is the smaller tile without a cluster.
  GemmConfig best;
  double best_us = std::numeric_limits<double>::infinity();
  const std::vector<GemmConfig> all = candidates(problem, known, device).admitted;
  const std::vector<double> us = estimates_us(all, problem, known, device);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (us[i] < best_us * (1 - 1e-9)) {
      best_us = us[i];
      best = all[i];
    }
  }
  return best;
}

std::string default_reason(const GemmProblem& /*problem*/, std::int64_t /*tokens*/,
                           const DeviceSpec& device) {
  if (units_to_enumerate(device).front() == MatrixUnit::kWgmma) return "the cost model";
  return "the cost model, which is a roofline for this card and not fitted to it: run octile tune";
}

}  // namespace octile
