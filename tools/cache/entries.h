// Entries of the kernel cache as the verbs of `octile cache` choose and show them.
#pragma once

#include <string>
#include <vector>

#include "cache/store.h"
#include "tools/common/handles.h"

namespace octile::tools {

// Digits of a digest that a table shows; a verb takes any prefix that names one entry.
inline constexpr std::size_t kShownDigits = 12;

// The identity's digest, from the file's name: a damaged entry has one too.
const std::string& digest_of(const cache::Listing& listing);

// What the entry's head says. A damaged entry has "digest", "path", "bytes", and "damaged" with the
// reason.
Json to_json(const cache::Listing& listing);

// The one entry whose digest begins with `prefix`. Errors: kInvalidArgument, saying how many do.
Result<const cache::Listing*> find_entry(const std::vector<cache::Listing>& entries,
                                         const std::string& prefix);

}  // namespace octile::tools
