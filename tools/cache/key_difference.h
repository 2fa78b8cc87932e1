// Why a kernel is not the one an entry holds: the fields of the key that differ.
#pragma once

#include <string>
#include <vector>

#include "cache/key.h"

namespace octile::tools {

// "entry", "arch", "option 2", "source line 17" or "toolchain", and what either side has there.
// Long values are cut.
struct KeyDifference {
  std::string field;
  std::string wanted;
  std::string found;
};

// In the order of the key text, of the source only the first line that differs; the toolchain last.
// Empty: the same kernel of the same toolchain, or of any where `toolchain` is null.
std::vector<KeyDifference> key_differences(const cache::Identity& wanted,
                                           const cache::Toolchain* toolchain,
                                           const cache::Identity& found,
                                           const cache::Toolchain& found_toolchain);

// How near two keys are, 0 to 1: the share of source lines that are the same at both ends, less
// where architecture, options or name differ.
double key_nearness(const cache::Identity& a, const cache::Identity& b);

}  // namespace octile::tools
