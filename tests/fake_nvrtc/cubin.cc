#include "cubin.h"

#include <elf.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "generator/core/identity.h"

namespace octile::fake_nvrtc {
namespace {

constexpr std::uint16_t kMachineCuda = 190;
constexpr std::uint32_t kRegisters = 32;

struct Section {
  std::string name;
  std::uint32_t type = SHT_NULL;
  std::string content;
  std::uint32_t link = 0;
};

template <typename T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// A record of .nv.info that has a payload (runtime/compiler/cubin.h).
std::string record(std::uint8_t attribute, std::initializer_list<std::uint32_t> payload) {
  std::string text{4, static_cast<char>(attribute)};
  text += bytes_of(static_cast<std::uint16_t>(4 * payload.size()));
  for (const std::uint32_t word : payload) text += bytes_of(word);
  return text;
}

// Lays the sections out behind the header; the last one has their names.
std::string assemble(std::vector<Section> sections) {
  std::string names(1, '\0');
  std::vector<Elf64_Shdr> headers;
  sections.push_back({".shstrtab", SHT_STRTAB, {}, 0});
  for (const Section& section : sections) {
    Elf64_Shdr header = {};
    header.sh_name = section.name.empty() ? 0 : static_cast<Elf64_Word>(names.size());
    if (!section.name.empty()) names += section.name + '\0';
    headers.push_back(header);
  }
  sections.back().content = names;
  std::string file(sizeof(Elf64_Ehdr), '\0');
  for (std::size_t i = 0; i < sections.size(); ++i) {
    headers[i].sh_type = sections[i].type;
    headers[i].sh_offset = file.size();
    headers[i].sh_size = sections[i].content.size();
    headers[i].sh_link = sections[i].link;
    file += sections[i].content;
  }
  Elf64_Ehdr head = {};
  std::memcpy(head.e_ident, ELFMAG, SELFMAG);
  head.e_ident[EI_CLASS] = ELFCLASS64;
  head.e_ident[EI_DATA] = ELFDATA2LSB;
  head.e_ident[EI_ABIVERSION] = 8;  // of NVRTC 13
  head.e_machine = kMachineCuda;
  head.e_flags = 90U << 8;
  head.e_shoff = file.size();
  head.e_shentsize = sizeof(Elf64_Shdr);
  head.e_shnum = static_cast<Elf64_Half>(headers.size());
  head.e_shstrndx = static_cast<Elf64_Half>(headers.size() - 1);
  for (const Elf64_Shdr& header : headers) file += bytes_of(header);
  return file.replace(0, sizeof(head), bytes_of(head));
}

// Returns the word that follows the first occurrence of `before`.
std::string_view word_after(std::string_view source, std::string_view before) {
  const std::size_t at = source.find(before);
  if (at == std::string_view::npos) return {};
  source.remove_prefix(at + before.size());
  std::size_t end = 0;
  while (end < source.size() &&
         (std::isalnum(static_cast<unsigned char>(source[end])) != 0 || source[end] == '_'))
    ++end;
  return source.substr(0, end);
}

std::string_view kernel_of(std::string_view source) {
  return word_after(source, "#define OCTILE_KERNEL_NAME ");
}

// FNV-1a of the text that identifies a kernel: the source that a compiler gets and the one that the
// cache keeps have the same (FORMAT.md section 3).
std::uint64_t digest_of(std::string_view source) {
  std::uint64_t digest = 0xcbf29ce484222325;
  for (const char c : identity_text(source))
    digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return digest;
}

}  // namespace

std::string make_cubin(std::string_view kernel, std::uint32_t parameter_bytes,
                       std::string_view code) {
  const std::string name(kernel);
  constexpr std::uint16_t kText = 3;  // number of the section
  Elf64_Sym symbol = {};
  symbol.st_name = 1;
  symbol.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
  symbol.st_shndx = kText;
  const std::string parameter =
      parameter_bytes == 0 ? "" : record(0x17, {0, 0, parameter_bytes << 18});
  return assemble({{},
                   {".strtab", SHT_STRTAB, '\0' + name + '\0', 0},
                   {".symtab", SHT_SYMTAB, bytes_of(Elf64_Sym{}) + bytes_of(symbol), 1},
                   {".text." + name, SHT_PROGBITS, std::string(code), 0},
                   {".nv.info", SHT_LOUSER, record(0x2f, {1, kRegisters}), 0},
                   {".nv.info." + name, SHT_LOUSER, parameter, 0}});
}

void set_architecture(std::string& cubin, std::uint32_t sm) {
  if (cubin.size() < sizeof(Elf64_Ehdr)) return;
  const std::string flags = bytes_of(static_cast<Elf64_Word>(sm << 8));
  cubin.replace(offsetof(Elf64_Ehdr, e_flags), flags.size(), flags);
}

std::string log_of(std::string_view source) {
  const std::string name(kernel_of(source));
  if (name.empty()) return {};
  return "ptxas info    : Compiling entry function '" + name +
         "' for 'sm_90a'\nptxas info    : Function properties for " + name +
         "\n    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
         "ptxas info    : Used " +
         std::to_string(kRegisters) + " registers\n";
}

std::string cubin_of(std::string_view source) {
  const std::string_view name = kernel_of(source);
  std::string_view size = word_after(source, "sizeof(Args) == ");  // of a quantiser
  if (size.empty()) size = word_after(source, "sizeof(gemm::Arguments) == ");
  std::uint32_t bytes = 0;
  std::from_chars(size.data(), size.data() + size.size(), bytes);
  if (name.empty()) return "none";
  return make_cubin(name, bytes, bytes_of(digest_of(source)));
}

}  // namespace octile::fake_nvrtc
