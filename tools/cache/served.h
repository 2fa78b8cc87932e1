// Problems that a cached kernel serves beside the one that it was compiled for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cache/store.h"

namespace octile::tools {

// Returns true if each pattern matches a word of the entry's problem, or if the entry's kernel is
// the same for the problem that has those of the patterns as fields that match no word: dimensions
// are arguments of a kernel, so that it serves layers of other shapes too. A pattern with * or ?
// among letters matches words only.
bool serves_problem_with(const cache::Listing& listing, const std::vector<std::string>& patterns);

// Returns the text with the fields replaced that `words` name: "n=512" of "gemm m=? n=7168 ...".
// Fields that it lacks are added at the end.
std::string with_fields(std::string_view problem, const std::vector<std::string>& words);

}  // namespace octile::tools
