#include "runtime/tuner/exploration.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "generator/cost_model.h"
#include "runtime/measure/operands.h"

namespace octile::tuner {

std::string to_text(const Question& question) {
  return fmt::format("{} at {} tokens", octile::to_text(Problem(question.problem)),
                     question.tokens);
}

Exploration explore(const Question& question, const DeviceSpec& device,
                    const ShortlistOptions& options) {
  GemmCandidates candidates = gemm_candidates(question.problem, device);
  Exploration exploration;
  exploration.enumerated = candidates.enumerated;
  exploration.admitted = candidates.admitted.size();
  exploration.shortlist =
      shortlist(rank(question.problem, question.tokens, device, candidates),
                default_config(question.problem, question.tokens, device), options);
  exploration.removed = std::move(candidates.removed);
  return exploration;
}

double floor_us(const Question& question, const DeviceSpec& device) {
  const auto [problem, tokens] = question;
  const double bytes = static_cast<double>(bytes_of_call(problem, tokens));
  const double flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(problem.n) *
                       static_cast<double>(problem.k);
  return std::max(bytes / (device.dram_tbps * 1e6), flops / (device.fp8_tflops * 1e6));
}

}  // namespace octile::tuner
