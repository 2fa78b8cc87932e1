// A build as the cache keeps it, and back.
#pragma once

#include <string>

#include "cache/entry.h"
#include "runtime/engine/kernel_build.h"

namespace octile {

cache::Entry entry_of_build(const KernelBuild& build, const cache::Identity& identity,
                            std::string problem);

// Everything but `emitted`, `source_digest` and `cache_path`, which the entry does not hold.
KernelBuild build_of_entry(cache::Entry entry);

}  // namespace octile
