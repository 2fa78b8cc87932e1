// The instructions of a compiled kernel for sm_90, as far as tests ask for them. NVIDIA does not
// document the encoding; the opcodes are those that nvdisasm 13.0 prints beside the instructions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace octile::tests {

// Returns the opcodes of the kernel's instructions in the order of their addresses: the low 12 of
// an instruction's 128 bits. `cubin` is an ELF file; without such a kernel there are none.
std::vector<std::uint32_t> opcodes_of(std::span<const std::uint8_t> cubin, std::string_view kernel);

// Returns whether the kernel has an instruction of programmatic launches (griddepcontrol).
bool has_programmatic_launch(std::span<const std::uint32_t> opcodes);

// Returns whether the kernel waits for the kernels before it (griddepcontrol.wait), and accesses
// global memory only behind that. Instructions count by their addresses.
bool waits_before_memory(std::span<const std::uint32_t> opcodes);

}  // namespace octile::tests
