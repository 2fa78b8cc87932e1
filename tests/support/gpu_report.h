// The GPU suite's report (tests/gpu/REPORT.json): which sources and which launch code the results
// in it were obtained with. The suite writes it on a machine with a GPU; a test without one
// recomputes the digests and says STALE where they differ.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace octile::tests {

// Path or kernel name -> XXH3-128. Kernels: the covering set of the GEMM, every cell of the
// quantise family and those that cover its computed sources, groups and flat ranges, by their
// identity; launch code: what turns a call into a launch, without comments.
std::map<std::string, std::string> kernel_source_digests();
std::map<std::string, std::string> launch_code_digests();

}  // namespace octile::tests
