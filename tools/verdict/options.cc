#include "tools/verdict/options.h"

#include <fmt/format.h>

namespace octile::tools {

void VerdictOptions::add_to(CLI::App& app, const std::string& prefix) {
  add_list(app, "--tokens", tokens,
           prefix +
               "token counts, or ranges such as 1:256; default 64 to decode, 4096 to prefill, "
               "8192 to train");
  add_option(app, "--microbatches", microbatches,
             prefix + "to train, passes for which a weight is quantised once; default 1")
      .in_range(1, 1 << 20);
  step_option = add_option(app, "--step-ms", step_ms,
                           prefix +
                               "of one mode and token count, milliseconds of the whole step "
                               "in BF16, to predict the step with FP8");
}

std::optional<double> VerdictOptions::step() const {
  return step_option.is_given() ? std::optional(step_ms) : std::nullopt;
}

std::string VerdictOptions::first_given() const {
  if (!tokens.empty()) return "--tokens";
  if (microbatches) return "--microbatches";
  return step() ? "--step-ms" : "";
}

Status VerdictOptions::check_step(const std::vector<ModelVerdict>& sums) const {
  if (!step()) return {};
  if (sums.size() != 1) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("--step-ms is {}, and there are {} modes and token counts; allowed with "
                    "one, by --mode and --tokens",
                    step_ms, sums.size()));
  }
  if (const std::string& why = sums.front().too_large; !why.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--step-ms is {}, and the sum is missing: {}", step_ms, why));
  }
  const double least = sums.front().bf16_us * 1e-3;
  if (step_ms >= least) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("--step-ms is {}; allowed: at least {:.3f}, what the GEMMs in BF16 take",
                          step_ms, least));
}

}  // namespace octile::tools
