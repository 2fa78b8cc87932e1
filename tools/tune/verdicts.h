// The end of `octile tune --model`: whether FP8 pays in the layers that were tuned.
#pragma once

#include "cache/tuning_folder.h"
#include "tools/command.h"

namespace octile::tools {

// Prints the verdicts on the models of a run by the folder's records and the library's own set;
// nothing without --model. Token counts are those that were asked for, else one of each mode.
// Errors: those of reading the models.
Status print_tuned_verdicts(const WorkOptions& work, const DeviceSpec& device,
                            const cache::TuningFolder& folder, bool wide);

}  // namespace octile::tools
