// The GPU suite's report (tests/gpu/REPORT.json) names the sources and the launch code with which
// its results were obtained. The suite writes it on a machine with a GPU. A test without a GPU
// recomputes the digests and says STALE if they differ.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace octile::tests {

// Return the XXH3-128 for each path or kernel name. The kernels are the GEMM's covering set, every
// cell of the quantise family, and the cells that cover its computed sources, groups and flat
// ranges; their digest is that of their identity. The launch code turns a call into a launch; its
// digest leaves comments out.
std::map<std::string, std::string> kernel_source_digests();
std::map<std::string, std::string> launch_code_digests();

}  // namespace octile::tests
