// `octile tune --devices`: a process for each GPU, of which all work on one shared run.
#pragma once

#include <string>
#include <vector>

#include "tools/tune/options.h"
#include "tools/tune/questions.h"

namespace octile::tools {

// Decides the questions on the GPUs, each in a process that is forked before this one has a
// library or a driver. Shows one progress and ends as a run on one GPU does. A process that dies is
// named, and the others decide what it leaves. `run`: cache::SharedTuningOptions::run. Errors:
// kInvalidArgument for GPUs that there are not, that differ in kind, or in a launcher's rank;
// kInternal if processes died and questions are undecided, or if none lived.
Status tune_on_devices(const TuneOptions& options, const std::string& run,
                       std::vector<Question> questions);

}  // namespace octile::tools
