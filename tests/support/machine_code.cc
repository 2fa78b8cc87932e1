#include "tests/support/machine_code.h"

#include <elf.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

namespace octile::tests {
namespace {

constexpr std::uint32_t kWait = 0x82e;          // ACQBULK
constexpr std::uint32_t kLetNextStart = 0x82d;  // PREEXIT
constexpr std::array<std::uint32_t, 8> kMemory{
    0x980,  // LD
    0x981,  // LDG
    0x385,  // ST
    0x986,  // STG
    0xfae,  // LDGSTS
    0x98e,  // RED
    0x3a8,  // ATOMG
    0x9a8,  // ATOMG
};
constexpr std::size_t kInstructionBytes = 16;

// Returns the structure at `offset`, zeros if it passes the end.
template <typename T>
T read(std::span<const std::uint8_t> file, std::size_t offset) {
  T value{};
  if (offset <= file.size() && sizeof(T) <= file.size() - offset) {
    std::memcpy(&value, file.data() + offset, sizeof(T));
  }
  return value;
}

}  // namespace

std::vector<std::uint32_t> opcodes_of(std::span<const std::uint8_t> cubin,
                                      std::string_view kernel) {
  const auto header = read<Elf64_Ehdr>(cubin, 0);
  const auto section = [&](std::size_t i) {
    return read<Elf64_Shdr>(cubin, header.e_shoff + i * sizeof(Elf64_Shdr));
  };
  const Elf64_Shdr names = section(header.e_shstrndx);
  const std::string wanted = ".text." + std::string(kernel);
  std::vector<std::uint32_t> opcodes;
  for (std::size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr one = section(i);
    const std::size_t name = names.sh_offset + one.sh_name;
    if (name + wanted.size() >= cubin.size()) continue;
    if (!std::equal(wanted.begin(), wanted.end(),
                    cubin.begin() + static_cast<std::ptrdiff_t>(name)) ||
        cubin[name + wanted.size()] != 0) {
      continue;
    }
    for (std::size_t at = 0; at + kInstructionBytes <= one.sh_size; at += kInstructionBytes) {
      opcodes.push_back(read<std::uint32_t>(cubin, one.sh_offset + at) & 0xfffU);
    }
  }
  return opcodes;
}

bool has_programmatic_launch(std::span<const std::uint32_t> opcodes) {
  return std::ranges::any_of(
      opcodes, [](std::uint32_t opcode) { return opcode == kWait || opcode == kLetNextStart; });
}

bool waits_before_memory(std::span<const std::uint32_t> opcodes) {
  const auto wait = std::ranges::find(opcodes, kWait);
  if (wait == opcodes.end()) return false;
  return std::none_of(opcodes.begin(), wait, [](std::uint32_t opcode) {
    return std::ranges::find(kMemory, opcode) != kMemory.end();
  });
}

}  // namespace octile::tests
