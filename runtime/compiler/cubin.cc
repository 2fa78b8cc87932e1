#include "runtime/compiler/cubin.h"

#include <elf.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace octile {
namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::uint16_t kMachineCuda = 190;  // EM_CUDA of the ELF registry

// Versions of the ABI (EI_ABIVERSION) that the cubins of NVRTC 13 have, and 12.8's for sm_100 and
// newer. Cubins of NVRTC 12 for sm_90 have version 7.
constexpr unsigned kAbiOfNvrtc13 = 8;

// .nv.info attributes, taken from cubins of NVRTC 13.0 (`cuobjdump -elf` names them). NVRTC 12.8
// writes the same.
constexpr std::uint8_t kFormatWithPayload = 4;  // EIFMT_SVAL
constexpr std::uint8_t kMaxThreads = 0x05;      // u32 x, y, z
constexpr std::uint8_t kFrameSize = 0x11;       // u32 symbol, u32 bytes
constexpr std::uint8_t kMinStackSize = 0x12;    // u32 symbol, u32 bytes
constexpr std::uint8_t kParameterInfo =
    0x17;  // u32, u16 ordinal, u16 offset, u32 (size << 18 | ...)
constexpr std::uint8_t kRegisterCount = 0x2f;  // u32 symbol, u32 registers
constexpr int kParameterSizeShift = 18;

constexpr std::uint64_t kReservedSmemBytes = 1024;

// No kernel of Octile has nearly as many parameters. The limit keeps a corrupt count from costing
// time.
constexpr std::size_t kMaxParameters = 1024;

tl::unexpected<Error> corrupt(std::string what) {
  return fail(ErrorCode::kInternal, fmt::format("not a usable cubin: {}", what));
}

// Returns a copy of the object at `offset`, because file offsets guarantee no alignment.
template <typename T>
std::optional<T> read_at(Bytes bytes, std::uint64_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return std::nullopt;
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::optional<Bytes> slice(Bytes bytes, std::uint64_t offset, std::uint64_t size) {
  if (offset > bytes.size() || bytes.size() - offset < size) return std::nullopt;
  return bytes.subspan(offset, size);
}

// Returns the zero-terminated string at `offset`, or nullopt if it runs past the end of the table.
std::optional<std::string_view> string_at(Bytes table, std::uint64_t offset) {
  if (offset >= table.size()) return std::nullopt;
  const Bytes rest = table.subspan(offset);
  const auto end = std::find(rest.begin(), rest.end(), std::uint8_t{0});
  if (end == rest.end()) return std::nullopt;
  return std::string_view(reinterpret_cast<const char*>(rest.data()),
                          static_cast<std::size_t>(end - rest.begin()));
}

struct Section {
  std::string_view name;
  Elf64_Shdr header;
  Bytes content;  // empty for SHT_NOBITS, whose size exists only in memory
};

Result<std::vector<Section>> read_sections(Bytes bytes, const Elf64_Ehdr& file) {
  if (file.e_shentsize != sizeof(Elf64_Shdr))
    return corrupt(fmt::format("section headers of {} bytes, {} expected", file.e_shentsize,
                               sizeof(Elf64_Shdr)));
  std::vector<Section> sections;
  for (std::uint64_t i = 0; i < file.e_shnum; ++i) {
    const auto at = slice(bytes, file.e_shoff, (i + 1) * sizeof(Elf64_Shdr));
    if (!at) return corrupt(fmt::format("section header {} lies outside the file", i));
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): `at` ends with it
    const Elf64_Shdr header = *read_at<Elf64_Shdr>(*at, i * sizeof(Elf64_Shdr));
    Section section{.name = {}, .header = header, .content = {}};
    if (header.sh_type != SHT_NOBITS && header.sh_type != SHT_NULL) {
      const auto content = slice(bytes, header.sh_offset, header.sh_size);
      if (!content) return corrupt(fmt::format("section {} lies outside the file", i));
      section.content = *content;
    }
    sections.push_back(section);
  }
  if (file.e_shstrndx >= sections.size()) return corrupt("no table of section names");
  const Bytes names = sections[file.e_shstrndx].content;
  for (Section& section : sections) {
    const auto name = string_at(names, section.header.sh_name);
    if (!name) return corrupt("a section name lies outside the table of names");
    section.name = *name;
  }
  return sections;
}

const Section* find_section(std::span<const Section> sections, std::string_view name) {
  const auto found = std::ranges::find(sections, name, &Section::name);
  return found == sections.end() ? nullptr : &*found;
}

// Calls use(attribute, payload) for each record that has a payload. Returns false if a record is
// cut off.
template <typename Use>
bool for_each_record(Bytes info, Use use) {
  std::uint64_t at = 0;
  while (at < info.size()) {
    const auto head = read_at<std::uint32_t>(info, at);
    if (!head) return false;
    at += sizeof(std::uint32_t);
    const auto format = static_cast<std::uint8_t>(*head & 0xff);
    const auto attribute = static_cast<std::uint8_t>(*head >> 8 & 0xff);
    const std::uint32_t value = *head >> 16;
    if (format != kFormatWithPayload) continue;  // the value is the complete record
    const auto payload = slice(info, at, value);
    if (!payload) return false;
    use(attribute, *payload);
    at += value;
  }
  return true;
}

// A kernel's function symbol, whose name also appears in the name of its text section, and the
// symbol's index.
struct KernelSymbol {
  std::uint32_t index;
  std::string_view name;
};

Result<std::vector<KernelSymbol>> read_kernel_symbols(std::span<const Section> sections) {
  const Section* symbols = find_section(sections, ".symtab");
  if (symbols == nullptr) return corrupt("no symbol table");
  if (symbols->header.sh_link >= sections.size()) return corrupt("no table of symbol names");
  const Bytes names = sections[symbols->header.sh_link].content;
  std::vector<KernelSymbol> kernels;
  for (std::uint32_t i = 0; i < symbols->content.size() / sizeof(Elf64_Sym); ++i) {
    const std::uint64_t offset = std::uint64_t{i} * sizeof(Elf64_Sym);
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): the loop ends with the table
    const Elf64_Sym symbol = *read_at<Elf64_Sym>(symbols->content, offset);
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx >= sections.size()) continue;
    const auto name = string_at(names, symbol.st_name);
    if (!name) return corrupt("a symbol name lies outside the table of names");
    // A device function that was not inlined also has a function symbol, but only an entry point
    // has its own .nv.info section.
    const std::string_view text = sections[symbol.st_shndx].name;
    if (text.starts_with(".text.") && text.substr(6) == *name &&
        find_section(sections, fmt::format(".nv.info.{}", *name)) != nullptr)
      kernels.push_back({i, *name});
  }
  return kernels;
}

// Reads the values for one function symbol from the global .nv.info. Returns false if a record is
// cut off.
bool read_function_values(Bytes info, std::uint32_t symbol, CubinKernel* kernel) {
  return for_each_record(info, [&](std::uint8_t attribute, Bytes payload) {
    const auto index = read_at<std::uint32_t>(payload, 0);
    const auto value = read_at<std::uint32_t>(payload, 4);
    if (!index || !value || *index != symbol) return;
    const int number = static_cast<int>(*value & 0x7fffffff);
    if (attribute == kRegisterCount) kernel->registers = number;
    if (attribute == kFrameSize) kernel->frame_bytes = number;
    if (attribute == kMinStackSize) kernel->min_stack_bytes = number;
  });
}

Status read_kernel_values(Bytes info, CubinKernel* kernel) {
  struct Ordered {
    std::uint16_t ordinal;
    CubinParameter parameter;
  };
  std::vector<Ordered> parameters;
  const bool whole = for_each_record(info, [&](std::uint8_t attribute, Bytes payload) {
    if (attribute == kMaxThreads) {
      std::uint64_t threads = 1;
      for (std::uint64_t dimension = 0; dimension < 3; ++dimension)
        threads *= read_at<std::uint32_t>(payload, 4 * dimension).value_or(1) & 0xffff;
      kernel->max_threads = static_cast<int>(std::min<std::uint64_t>(threads, 0xffff));
    }
    const auto ordinal = read_at<std::uint16_t>(payload, 4);
    const auto offset = read_at<std::uint16_t>(payload, 6);
    const auto size = read_at<std::uint32_t>(payload, 8);
    if (attribute != kParameterInfo || !ordinal || !offset || !size) return;
    parameters.push_back(
        {*ordinal,
         {.offset_bytes = *offset, .size_bytes = static_cast<int>(*size >> kParameterSizeShift)}});
  });
  if (!whole) return corrupt(fmt::format("the records of kernel {} are cut off", kernel->name));
  if (parameters.size() > kMaxParameters)
    return corrupt(fmt::format("kernel {} has {} parameters, at most {} expected", kernel->name,
                               parameters.size(), kMaxParameters));
  std::ranges::sort(parameters, {}, &Ordered::ordinal);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].ordinal != i)
      return corrupt(fmt::format("kernel {} lacks parameter {}", kernel->name, i));
    kernel->parameters.push_back(parameters[i].parameter);
  }
  return {};
}

Result<Elf64_Ehdr> read_header(Bytes bytes) {
  const auto file = read_at<Elf64_Ehdr>(bytes, 0);
  if (!file) return corrupt(fmt::format("{} bytes are less than an ELF header", bytes.size()));
  if (std::memcmp(file->e_ident, ELFMAG, SELFMAG) != 0) return corrupt("no ELF magic");
  if (file->e_ident[EI_CLASS] != ELFCLASS64 || file->e_ident[EI_DATA] != ELFDATA2LSB)
    return corrupt("not a 64-bit little-endian ELF file");
  if (file->e_machine != kMachineCuda)
    return corrupt(fmt::format("ELF machine {}, {} expected", file->e_machine, kMachineCuda));
  return *file;
}

// Returns the number of the architecture that the cubin is for. e_flags have it in their lowest
// byte up to version 7 of the ABI, and in the second one since.
int read_sm(const Elf64_Ehdr& file) {
  const unsigned shift = file.e_ident[EI_ABIVERSION] < kAbiOfNvrtc13 ? 0 : 8;
  return static_cast<int>(file.e_flags >> shift & 0xff);
}

}  // namespace

const CubinKernel* CubinInfo::find(std::string_view name) const {
  const auto found = std::ranges::find(kernels, name, &CubinKernel::name);
  return found == kernels.end() ? nullptr : &*found;
}

Result<CubinInfo> read_cubin(Bytes bytes) {
  const auto file = read_header(bytes);
  if (!file) return tl::unexpected(file.error());
  const auto sections = read_sections(bytes, *file);
  if (!sections) return tl::unexpected(sections.error());
  const auto symbols = read_kernel_symbols(*sections);
  if (!symbols) return tl::unexpected(symbols.error());
  const Section* global = find_section(*sections, ".nv.info");
  if (global == nullptr) return corrupt("no .nv.info section");

  CubinInfo info;
  info.sm = read_sm(*file);
  for (const KernelSymbol& symbol : *symbols) {
    CubinKernel kernel;
    kernel.name = symbol.name;
    if (!read_function_values(global->content, symbol.index, &kernel))
      return corrupt("the records of .nv.info are cut off");
    const Section* own = find_section(*sections, fmt::format(".nv.info.{}", symbol.name));
    if (const Status read = read_kernel_values(own->content, &kernel); !read)
      return tl::unexpected(read.error());
    if (const Section* shared =
            find_section(*sections, fmt::format(".nv.shared.{}", symbol.name))) {
      // From sm_90 on, the section begins with the bytes that the system reserves in each block.
      const std::uint64_t reserved = info.sm >= 90 ? kReservedSmemBytes : 0;
      const std::uint64_t held = std::min<std::uint64_t>(shared->header.sh_size, INT32_MAX);
      kernel.static_smem_bytes = static_cast<int>(held - std::min(held, reserved));
    }
    info.kernels.push_back(std::move(kernel));
  }
  return info;
}

Status validate_cubin(Bytes bytes, std::string_view architecture, std::string_view kernel,
                      std::span<const int> parameter_bytes) {
  const auto info = read_cubin(bytes);
  if (!info) return tl::unexpected(info.error());
  // e_flags hold only the number, so sm_90 and sm_90a look alike.
  std::string_view digits = architecture;
  if (digits.starts_with("sm_")) digits.remove_prefix(3);
  while (!digits.empty() && (digits.back() < '0' || digits.back() > '9')) digits.remove_suffix(1);
  if (digits != std::to_string(info->sm))
    return corrupt(fmt::format("it is for sm_{}, {} expected", info->sm, architecture));
  const CubinKernel* found = info->find(kernel);
  if (found == nullptr) return corrupt(fmt::format("it has no kernel {}", kernel));
  std::vector<int> sizes;
  for (const CubinParameter& parameter : found->parameters) sizes.push_back(parameter.size_bytes);
  if (!std::ranges::equal(sizes, parameter_bytes))
    return corrupt(fmt::format("kernel {} takes parameters of {{{}}} bytes, {{{}}} expected",
                               kernel, fmt::join(sizes, ", "), fmt::join(parameter_bytes, ", ")));
  return {};
}

}  // namespace octile
