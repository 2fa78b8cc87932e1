// The entries that `octile cache prune` and `clear` removed, for people and programs.
#pragma once

#include <string>
#include <vector>

#include "cache/eviction.h"
#include "generator/core/error.h"
#include "tools/common/handles.h"

namespace octile::tools {

void print_result(const cache::PruneResult& result, const cache::PruneOptions& wanted);
Json to_json(const cache::PruneResult& result, const std::vector<std::string>& unread,
             bool dry_run);

// Returns the error if not all that should be removed could be looked at and removed.
Status outcome(const cache::PruneResult& result, const std::vector<std::string>& unread);

}  // namespace octile::tools
