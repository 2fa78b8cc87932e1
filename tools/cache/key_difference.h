// The fields in which the keys of two kernels differ.
#pragma once

#include <string>
#include <vector>

#include "cache/key.h"

namespace octile::tools {

// Long values are cut.
struct KeyDifference {
  std::string field;  // "entry", "arch", "option 2", "source line 17" or "toolchain"
  std::string wanted;
  std::string found;
};

// Returns the differences in the order of the key text, the toolchain last. It returns only the
// first line of the source that differs. If `toolchain` is null, toolchains are not compared.
std::vector<KeyDifference> key_differences(const cache::Identity& wanted,
                                           const cache::Toolchain* toolchain,
                                           const cache::Identity& found,
                                           const cache::Toolchain& found_toolchain);

// Returns how near two keys are, from 0 to 1: the share of source lines that are equal at both
// ends, reduced if architecture, options or name differ.
double key_nearness(const cache::Identity& a, const cache::Identity& b);

}  // namespace octile::tools
