// A build as the cache keeps it, and back.
#pragma once

#include <string>

#include "cache/entry.h"
#include "runtime/engine/kernel_build.h"

namespace octile {

// RFC 3339 to the second: "2026-01-31T12:00:00Z".
std::string utc_now();

cache::Entry entry_of_build(const KernelBuild& build, const cache::Identity& identity,
                            std::string problem);

// Everything but `emitted`, `source_digest` and `cache_path`, which the entry does not hold.
KernelBuild build_of_entry(cache::Entry entry);

}  // namespace octile
