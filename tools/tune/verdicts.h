// What `octile tune --model` ends with: whether FP8 pays in the layers that were tuned.
#pragma once

#include <string>
#include <vector>

#include "cache/tuning_file.h"
#include "tools/command.h"
#include "tools/verdict/report.h"

namespace octile::tools {

struct TunedModel {
  std::string name;
  Verdicts verdicts;
};

// Returns the verdicts on the models of a run by the file's records and the library's own set; none
// without --model. Token counts are those that were asked for, else one of each mode. Errors: those
// of reading the models.
Result<std::vector<TunedModel>> tuned_verdicts(const WorkOptions& work, const DeviceSpec& device,
                                               const cache::TuningFile& file);

// Prints them.
Status print_tuned_verdicts(const WorkOptions& work, const DeviceSpec& device,
                            const cache::TuningFile& file, bool wide);

}  // namespace octile::tools
