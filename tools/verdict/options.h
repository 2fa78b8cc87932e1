// The options of the commands that say whether FP8 pays: from a gain of kLeastGain on
// (tools/models/verdict.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/command_line/command_line.h"
#include "tools/models/judge.h"

namespace octile::tools {

struct VerdictOptions {
  std::vector<std::int64_t> tokens;
  std::optional<std::int64_t> microbatches;
  double step_ms = 0;
  Option step_option;

  // The helps begin with `prefix`.
  void add_to(CLI::App& app, const std::string& prefix);
  std::optional<double> step() const;
  // Returns the first of these options that is given, "" if none is.
  std::string first_given() const;
  // Errors: kInvalidArgument if --step-ms is given for several sums or a model that does not fit,
  // or if it is less than one's GEMMs in BF16.
  Status check_step(const std::vector<ModelVerdict>& sums) const;
};

}  // namespace octile::tools
