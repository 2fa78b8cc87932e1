// The GPU suite's report (tests/gpu/REPORT.json) names its results, and the sources and the launch
// code with which they were obtained. The suite writes it on a machine with a GPU. A test without a
// GPU recomputes the digests and prints STALE for each that differs.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace octile::tests {

// Return, for each group of kernels, the XXH3-128 of their names and identities, and their number:
// "<32 hex digits> of 12". The first four words of a kernel's name are its group. The kernels are
// the GEMM's covering set; the cells that cover the quantise family or, if `all`, every cell of it;
// and the cells that cover its computed sources, groups and flat ranges.
std::map<std::string, std::string> kernel_source_digests(bool all);
// Return the XXH3-128, by path, of the files that turn a call into a launch, without their comments
// and empty lines.
std::map<std::string, std::string> launch_code_digests();

}  // namespace octile::tests
