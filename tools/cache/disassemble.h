// A cubin as the toolkit's disassembler shows it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "generator/core/error.h"

namespace octile::tools {

// The output of `nvdisasm`, else of `cuobjdump --dump-sass`: the first that is found in
// CUDA_HOME/bin, in PATH or in /usr/local/cuda/bin. What it writes to stderr goes to ours. Errors:
// kNoCompiler where neither is found; kInternal where it fails.
Result<std::string> disassemble(std::span<const std::uint8_t> cubin);

}  // namespace octile::tools
