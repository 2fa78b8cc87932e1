// Disassembles a cubin with a program of the CUDA toolkit.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "generator/core/error.h"

namespace octile::tools {

// Returns the output of `nvdisasm`, or else of `cuobjdump --dump-sass`. Each is searched in
// CUDA_HOME/bin, in PATH, and in the `bin` beside every folder where NVRTC is looked for: toolkits
// and the Python package nvidia-cuda-nvdisasm have it there. Its stderr is that of this process. In
// a process with more rights than its caller PATH is not searched, and the program has an empty
// environment.
// Errors: kNoCompiler if neither is found; kInternal if the program fails.
Result<std::string> disassemble(std::span<const std::uint8_t> cubin);

}  // namespace octile::tools
