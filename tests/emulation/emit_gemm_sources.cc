// Writes the GEMM kernels of tests/cells/gemm.txt, and mutants of kernels by tcgen05, as C++ files
// for gemm_kernels.h. Each kernel is
// the emitter's text without the wrappers of templates/lib, in a namespace of its own.
//   emit_gemm_sources <prefix> <files>     writes <prefix>0.cc ... and <prefix>table.cc
#include <fmt/format.h>

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "generator/families.h"
#include "generator/gemm/emit.h"
#include "runtime/engine/engine.h"
#include "tests/emulation/gemm_device.h"
#include "tests/emulation/source_files.h"
#include "tests/emulation/tcgen05_mutants.h"
#include "tests/support/gemm_cells.h"

namespace octile {
namespace {

constexpr std::string_view kSection = "#line 1 \"";

// Returns the sections of an emitted source that are not of the library.
std::string without_library(const std::string& source) {
  std::string text;
  for (std::size_t at = source.find(kSection); at != std::string::npos;) {
    const std::size_t next = source.find(kSection, at + 1);
    const std::string section = source.substr(at, next - at);
    if (!section.substr(kSection.size()).starts_with("lib/")) text += section;
    at = next;
  }
  return text;
}

// Returns "#undef NAME" for each macro that a text defines.
std::string undefine_macros_of(const std::string& text) {
  constexpr std::string_view kDefine = "\n#define ";
  std::string undefine;
  for (std::size_t at = text.find(kDefine); at != std::string::npos; at = text.find(kDefine, at)) {
    at += kDefine.size();
    undefine += "#undef " + text.substr(at, text.find_first_of(" (\n", at) - at) + "\n";
  }
  return undefine;
}

void replace_once(std::string& text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos || text.find(from, at + 1) != std::string::npos) {
    std::cerr << "the emitted text does not contain once: " << from << "\n";
    std::exit(1);  // NOLINT(concurrency-mt-unsafe): there is one thread
  }
  text.replace(at, from.size(), to);
}

void apply(std::string& text, const emulation::Edit& edit) {
  if (!edit.from.empty()) replace_once(text, edit.from, edit.to);
}

std::string source_of(const tests::GemmVariant& v, int index,
                      const emulation::Mutant* mutant = nullptr) {
  const auto emitted =
      emit(v.problem, v.config, emulation::device_of(v.config), embedded_templates());
  if (!emitted) {
    std::cerr << emitted.error().message << "\n";
    std::exit(1);  // NOLINT(concurrency-mt-unsafe)
  }
  std::string text = without_library(emitted->source);
  if (mutant != nullptr) {
    apply(text, mutant->edit);
    apply(text, mutant->also);
    apply(text, mutant->third);
  }
  replace_once(text, emitted->name, fmt::format("gemm_{}", index));
  replace_once(text, "extern __shared__ __align__(1024) u8 tile_memory[];",
               "u8* const tile_memory = OCTILE_TILE_MEMORY;");
  return fmt::format(
      "namespace gemm_kernel_{0} {{\n"
      "namespace wgmma {{\nusing namespace ::wgmma;\ntemplate <int kN>\nstruct Mma;\n"
      "template <int kN>\nstruct MmaOnto;\ntemplate <int kN>\nstruct MmaOuter;\n}}\n"
      "{1}\n"
      "extern \"C\" void gemm_{0}_of_bytes(const void* args) {{\n"
      "  gemm_{0}(*static_cast<const gemm::Arguments*>(args));\n}}\n}}\n{2}",
      index, text, undefine_macros_of(text));
}

int emit_all(const std::string& prefix, int file_count) {
  const auto cells = tests::gemm_cells();
  if (!cells) {
    std::cerr << cells.error().message << "\n";
    return 1;
  }
  const std::string head = "#include \"tests/emulation/gemm_kernels.h\"\n";
  std::vector<std::string> sources(static_cast<std::size_t>(file_count),
                                   head + "#pragma GCC system_header\n");
  std::string declarations, entries;
  int index = 0;
  for (const auto& [v, name] : *cells) {
    sources[static_cast<std::size_t>(index % file_count)] += source_of(v, index);
    declarations += fmt::format("extern \"C\" void gemm_{}_of_bytes(const void*);\n", index);
    entries += fmt::format("    {{\"{}\", \"{}\", gemm_{}_of_bytes}},\n", to_text(v.problem),
                           to_text(v.config), index);
    ++index;
  }
  std::string mutants;
  for (const emulation::Mutant& mutant : emulation::kMutants) {
    const tests::GemmVariant v = tests::gemm_cell(mutant.kernel);
    sources[static_cast<std::size_t>(index % file_count)] += source_of(v, index, &mutant);
    declarations += fmt::format("extern \"C\" void gemm_{}_of_bytes(const void*);\n", index);
    mutants += fmt::format("    {{\"{}\", \"{}\", gemm_{}_of_bytes}},\n", to_text(v.problem),
                           to_text(v.config), index);
    ++index;
  }
  std::ostringstream table;
  table << head << declarations << "namespace octile::emulation {\n"
        << "std::span<const EmittedGemm> emitted_gemms() {\n"
        << "  static const EmittedGemm all[] = {\n"
        << entries << "  };\n  return all;\n}\n"
        << "std::span<const EmittedGemm> emitted_mutants() {\n"
        << "  static const EmittedGemm all[] = {\n"
        << mutants << "  };\n  return all;\n}\n}\n";
  return emulation::write_source_files(prefix, sources, table.str()) ? 0 : 1;
}

}  // namespace
}  // namespace octile

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "emit_gemm_sources <prefix> <files>\n";
    return 2;
  }
  return octile::emit_all(argv[1], std::stoi(argv[2]));
}
