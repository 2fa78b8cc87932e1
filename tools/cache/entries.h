// Finds entries of the kernel cache and prints them.
#pragma once

#include <string>
#include <vector>

#include "cache/store.h"
#include "tools/common/handles.h"

namespace octile::tools {

// The digits of a digest that a table shows. A verb takes any prefix that names one entry.
inline constexpr std::size_t kShownDigits = 12;

// Returns the identity's digest, which is in the file's name: a damaged entry has one too.
const std::string& digest_of(const cache::Listing& listing);

// Returns "damaged" or "unread": what an entry is of which this is the error.
const char* word_of(const cache::EntryError& error);
// Returns the error with the path of its entry.
std::string sentence_of(const cache::Listing& listing, const cache::EntryError& error);

// Returns what the entry's head says. One that is damaged or could not be read has "digest",
// "path", "bytes", and the reason as "damaged" or "unread".
Json to_json(const cache::Listing& listing);

// Returns the one entry whose digest begins with `prefix`. Errors: kInvalidArgument, saying how
// many do; kInternal if none does and some parts of the cache are `unread`.
Result<const cache::Listing*> find_entry(const std::vector<cache::Listing>& entries,
                                         const std::vector<cache::UnreadPart>& unread,
                                         const std::string& prefix);

}  // namespace octile::tools
