// Builds as cache entries, and cache entries as builds.
#pragma once

#include <string>

#include "cache/entry.h"
#include "runtime/launch/kernel_build.h"

namespace octile {

// Returns the time in RFC 3339 to the second: "2026-01-31T12:00:00Z".
std::string utc_now();

cache::Entry entry_of_build(const KernelBuild& build, const cache::Identity& identity,
                            std::string problem);

// Returns the build without `emitted`, `source_digest` and `cache_path`, which no entry holds.
KernelBuild build_of_entry(cache::Entry entry);

}  // namespace octile
