// Files of tuning records that a user names.
#pragma once

#include <string>
#include <vector>

#include "cache/tuning_merge.h"
#include "generator/core/error.h"

namespace octile::tools {

// Reads the files. A folder stands for its tuning.jsonl and for all of its tuning.d/*.jsonl.
// Errors: kInvalidArgument for a folder without either, for what cannot be read, and for a file of
// more than 64 MiB.
Result<std::vector<cache::TuningText>> read_tuning_files(const std::vector<std::string>& paths);

}  // namespace octile::tools
