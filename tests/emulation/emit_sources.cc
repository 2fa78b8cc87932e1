// Writes the kernels of a covering set of quantise problems and configurations as C++ files for
// quantize_kernels.h. Each holds the emitter's text from its prologue on, in a namespace of its
// own.
//   emit_sources <prefix> <files> [all]   writes <prefix>0.cc ... and <prefix>table.cc: the cells
//   in
//                                         their default configurations, or a part that covers them,
//                                         and the other configurations
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "generator/families.h"
#include "generator/quantize/emit.h"
#include "runtime/engine/engine.h"
#include "tests/emulation/source_files.h"
#include "tests/support/quantize_cells.h"

namespace octile {
namespace {

using Kernel = std::pair<QuantizeProblem, QuantizeConfig>;

void add(std::vector<Kernel>& kernels, const QuantizeProblem& problem, const QuantizeConfig& c) {
  if (!check_supported(Problem(problem)) || !check_config(problem, c, *find_device("h200"))) return;
  const Kernel kernel{problem, c};
  if (std::ranges::find(kernels, kernel) == kernels.end()) kernels.push_back(kernel);
}

// Adds every cell in its default configuration.
void add_defaults(std::vector<Kernel>& all) {
  const DeviceSpec& device = *find_device("h200");
  for (const QuantizeProblem& p : tests::covering_quantize_cells(300)) {
    add(all, p, default_config(p, kDynamic, device));
  }
  // Few rows give half-width tiles, and fewer rows tiles of as many; a part of the cells suffices.
  const std::vector<QuantizeProblem> plain = tests::covering_quantize_cells(300);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const bool few = takes_few_rows(plain[i]);
    if (i % 2 == 0) add(all, plain[i], default_config(plain[i], 128, device));
    if (few) add(all, plain[i], default_config(plain[i], i % 2 == 0 ? 16 : 32, device));
  }
  for (const QuantizeProblem& p : tests::grouped_source_cells(300)) {
    add(all, p, default_config(p, kDynamic, device));
  }
  for (const QuantizeProblem& p : tests::row_message_cells(300)) {
    add(all, p, default_config(p, kDynamic, device));
    add(all, p, default_config(p, 8, device));
  }
  for (const QuantizeProblem& p : tests::via_cells(300)) {
    add(all, p, default_config(p, kDynamic, device));
    if (takes_few_rows(p)) add(all, p, default_config(p, 16, device));
  }
  for (const QuantizeProblem& p : tests::covering_layouts(tests::all_grouped_problems(300))) {
    add(all, p, default_config(p, kDynamic, device));
  }
  // The bodies equal those of the cells above, so a part of the sources suffices.
  const std::vector<QuantizeProblem> fused = tests::fused_quantize_cells(300);
  for (std::size_t i = 0; i < fused.size(); i += 3) {
    add(all, fused[i], default_config(fused[i], kDynamic, device));
  }
  for (const auto& cells :
       {tests::normal_cells(300), tests::layer_norm_cells(300), tests::weighted_cells(300)}) {
    for (const QuantizeProblem& p : cells) add(all, p, default_config(p, kDynamic, device));
  }
}

// Adds stacked tensors: those that are compared, and those that are transposed.
void add_stacks(std::vector<Kernel>& all) {
  const DeviceSpec& device = *find_device("h200");
  QuantizeProblem p;
  p.cols = 300;
  p.grouping = Grouping::kStacked;
  p.q = {DType::kE4M3, Granularity::k128x128, ScaleFormat::kF32Pow2};
  p.output = QuantizeOutput::kBoth;
  p.skip_unchanged = true;
  add(all, p, default_config(p, kDynamic, device));
  p.skip_unchanged = false;
  p.operation = QuantizeOperation::kTranspose;
  p.output = QuantizeOutput::kTransposed;
  for (const Granularity g : {Granularity::k128x128, Granularity::kPerTensor}) {
    p.x = p.q = {DType::kE4M3, g, ScaleFormat::kF32Pow2};
    add(all, p, default_config(p, kDynamic, device));
  }
}

// Adds the steps of ranges, which belong together, and tensors that are compared.
void add_ranges(std::vector<Kernel>& all) {
  const DeviceSpec& device = *find_device("h200");
  for (const DType type : {DType::kBF16, DType::kFP32}) {
    QuantizeProblem p;
    p.cols = 300;
    p.x.dtype = type;
    p.skip_unchanged = true;
    add(all, p, default_config(p, kDynamic, device));
  }
  for (const auto& cells : {tests::pieces_cells(), tests::amax_cells(300)}) {
    for (const QuantizeProblem& p : cells) add(all, p, default_config(p, kDynamic, device));
  }
}

// Adds configurations whose warps or thread blocks have rows of RMSNorm and other sources.
void add_rows(std::vector<Kernel>& all) {
  for (const Granularity g : {Granularity::kPerRow, Granularity::k1x128, Granularity::k1x32}) {
    QuantizeProblem p;
    p.cols = 9001;
    p.q = {DType::kE4M3, g, default_scale_format(g)};
    p.source = "rmsnorm";
    add(all, p, {1, 4096, 256, 2});
    p.cols = 300;
    add(all, p, {3, 512, 32, 8});
    p.tap = true;
    add(all, p, {1, 512, 32, 8});
    p.source = "x0;exp(x1)";  // a scale's block has columns of both halves
    add(all, p, {1, 256, 64, 8});
    p.tap = false;
    p.source = "silu_mul";
    add(all, p, {1, 256, 32, 8});
    add(all, p, {64, 256, 128, 4});
    p.x = {DType::kFP32};
    add(all, p, {1, 256, 64, 8});
  }
}

// Adds configurations in which a warp has both halves of a row.
void add_halves_of_warps(std::vector<Kernel>& all) {
  const DeviceSpec& device = *find_device("h200");
  for (const Granularity g : {Granularity::kPerTensor, Granularity::k1x128, Granularity::k1x32}) {
    for (const DType x : {DType::kBF16, DType::kFP32}) {
      QuantizeProblem p;
      p.cols = 512;
      p.x = {x};
      p.q = {DType::kE4M3, g, default_scale_format(g)};
      p.source = "dsilu_mul";
      p.tap = x == DType::kBF16;
      p.policy = g == Granularity::kPerTensor ? ScalePolicy::kDelayed : ScalePolicy::kCurrent;
      add(all, p, default_config(p, kDynamic, device));
      p.source = "x0;exp(x1)";
      add(all, p, {1, 512, 32, 8});
    }
  }
}

// Adds configurations in which a thread block has both halves, one after the other.
void add_halves_of_blocks(std::vector<Kernel>& all) {
  const DeviceSpec& device = *find_device("h200");
  for (const Granularity g : {Granularity::kPerTensor, Granularity::kPerRow, Granularity::k1x128,
                              Granularity::k128x128, Granularity::k1x32, Granularity::k32x32}) {
    for (const QuantizeOutput output : {QuantizeOutput::kTransposed, QuantizeOutput::kBoth}) {
      const bool both = output == QuantizeOutput::kBoth;
      QuantizeProblem p;
      p.cols = 512;
      p.x = {both ? DType::kBF16 : DType::kFP32};
      p.q = {DType::kE4M3, g, default_scale_format(g)};
      p.output = output;
      p.source = both ? "dsilu_mul" : "x0;exp(x1)";
      QuantizeConfig c = default_config(p, kDynamic, device);
      c.halves_together = true;
      add(all, p, c);
      c.rows_fastest = !c.rows_fastest;
      p.tap = true;
      add(all, p, c);
      p.grouping = Grouping::kContiguous;
      p.tap = false;
      p.policy = g == Granularity::kPerTensor ? ScalePolicy::kDelayed : ScalePolicy::kCurrent;
      add(all, p, c);
      p.grouping = Grouping::kNone;
      p.bias_gradient = true;
      add(all, p, c);
    }
  }
}

// Adds configurations in which a tile's two copies have a thread block each.
void add_copies_apart(std::vector<Kernel>& all) {
  for (const Granularity g : {Granularity::kPerTensor, Granularity::kPerRow, Granularity::k1x128,
                              Granularity::k128x128, Granularity::k1x32}) {
    for (const DType x : {DType::kBF16, DType::kFP32}) {
      const bool blocks_of_128 = g == Granularity::k1x128 || g == Granularity::k128x128;
      if (x == DType::kFP32 && !blocks_of_128) continue;
      QuantizeProblem p;
      p.cols = 300;
      p.x = {x};
      p.q = {DType::kE4M3, g, default_scale_format(g)};
      p.output = QuantizeOutput::kBoth;
      for (const int rows : {16, 64}) {
        add(all, p,
            {.tile_rows = rows,
             .tile_cols = 128,
             .threads = 4 * rows * size_of(x),
             .blocks_per_sm = 2,
             .copies_apart = true});
      }
      for (const int cols : {64, 128}) {
        add(all, p,
            {.tile_rows = 128,
             .tile_cols = cols,
             .threads = cols * size_of(x),
             .blocks_per_sm = 1,
             .rows_fastest = cols == 64,
             .copies_apart = true});
      }
      if (g != Granularity::kPerTensor) continue;
      p.policy = ScalePolicy::kDelayed;
      add(all, p,
          {.tile_rows = 128,
           .tile_cols = 64,
           .threads = 64 * size_of(x),
           .blocks_per_sm = 1,
           .copies_apart = true});
    }
  }
}

// Adds configurations in which a cluster holds the whole tensor, or as much as it can.
void add_whole_tensors(std::vector<Kernel>& all) {
  for (const DType x : {DType::kBF16, DType::kFP16, DType::kFP32}) {
    for (const int cluster : {1, 2, 8}) {
      QuantizeProblem p;
      p.cols = 300;
      if (x == DType::kFP32 && cluster == 2) p.via = DType::kBF16;
      p.x = {x};
      p.q = {cluster == 2 ? DType::kE5M2 : DType::kE4M3, Granularity::kPerTensor,
             ScaleFormat::kF32};
      p.amax_epsilon = cluster == 2 ? 0.5F : 0.0F;
      add(all, p,
          {.tile_rows = cluster == 1 ? 4 : 2,
           .tile_cols = 512 / size_of(x),
           .threads = 32 * (16 / cluster),
           .blocks_per_sm = 1,
           .cluster = cluster});
    }
  }
}

// Adds configurations in which a table holds a part of the source.
void add_lookups(std::vector<Kernel>& all) {
  for (const Granularity g : {Granularity::kPerTensor, Granularity::k1x128, Granularity::k1x32}) {
    QuantizeProblem p;
    p.cols = 300;
    p.q = {DType::kE4M3, g, default_scale_format(g)};
    p.source = "gelu_tanh";
    p.tap = true;
    add(all, p, {8, 256, 32, 1, false, true});
    p.source = "silu";
    p.tap = false;
    add(all, p, {32, 256, 64, 1, false, true});
    add(all, p, {4, 256, 64, 1, false, true});
  }
  QuantizeProblem gelu;
  gelu.cols = 300;
  gelu.source = "gelu";
  add(all, gelu, {8, 256, 32, 1, false, true});
}

// Adds configurations that store scales by whole sectors.
void add_scale_sectors(std::vector<Kernel>& all) {
  for (const QuantizeOutput output : {QuantizeOutput::kTransposed, QuantizeOutput::kBoth}) {
    QuantizeProblem p;
    p.cols = 300;
    p.q = {DType::kE4M3, Granularity::k1x32, ScaleFormat::kE8M0};
    p.output = output;
    add(all, p, {128, 128, 256, 3, true, false, true});
    p.source = "silu_mul";
    add(all, p, {128, 128, 512, 1, false, false, true});
    p.source = "";
    p.x = {DType::kFP32};
    add(all, p, {128, 128, 512, 1, false, false, true});
    p.x = {DType::kE4M3, Granularity::k1x32, ScaleFormat::kE8M0};
    add(all, p, {128, 128, 256, 2, false, false, true});
  }
}

// Adds each template's other shapes.
void add_shapes(std::vector<Kernel>& all) {
  for (const DType x : {DType::kBF16, DType::kFP32}) {
    QuantizeProblem p;
    p.x = {x};
    p.cols = 300;
    p.amax_epsilon = 0.5F;
    for (const QuantizeConfig& c : {QuantizeConfig{1, 256, 128, 8}, QuantizeConfig{4, 512, 256, 4},
                                    QuantizeConfig{16, 256, 256, 2}}) {
      add(all, p, c);
    }
    p.q = {DType::kE4M3, Granularity::k128x128, ScaleFormat::kF32};
    add(all, p, {128, 128, 1024, 1});
    p.output = QuantizeOutput::kBoth;
    for (const Granularity g : {Granularity::k1x128, Granularity::k128x128}) {
      p.q.granularity = g;
      add(all, p, {256, 128, 256 * size_of(x), 1, true});
      add(all, p, {128, 128, 128 * size_of(x), 1, false});
      add(all, p, {128, 128, 256 * size_of(x), 1, false});
      add(all, p, {128, 64, 128 * size_of(x), 1, true});
    }
    for (const Granularity g : {Granularity::k1x32, Granularity::k32x32}) {
      p.q = {DType::kE5M2, g, ScaleFormat::kE8M0};
      add(all, p, {256, 128, 256 * size_of(x), 1, true});
      add(all, p, {128, 64, 64 * size_of(x), 1, false});
    }
    p.q = {DType::kE4M3, Granularity::kPerRow, ScaleFormat::kF32};
    p.output = QuantizeOutput::kRowwise;
    add(all, p, {1, 32 * 16 / size_of(x), 32, 4});  // rows longer than the tile
  }
}

// Adds configurations in which a warp has one row and stores its 32 scales at once.
void add_scales_of_a_row(std::vector<Kernel>& all) {
  for (const DType x : {DType::kBF16, DType::kFP32}) {
    for (const ScaleLayout layout : {ScaleLayout::kLinear, ScaleLayout::kSwizzled}) {
      QuantizeProblem p;
      p.x = {x};
      p.cols = 300;
      p.q = {DType::kE4M3, Granularity::k1x32, ScaleFormat::kE8M0};
      p.scale_layout = layout;
      add(all, p, {1, 1024, 64, 16});
    }
  }
}

// Adds dequantising and transposing.
void add_inverses(std::vector<Kernel>& all) {
  QuantizeProblem p;
  p.cols = 300;
  p.x = {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32};
  p.operation = QuantizeOperation::kDequantize;
  p.q = {DType::kBF16};
  add(all, p, {2, 512, 128, 4});
  p.operation = QuantizeOperation::kGather;
  p.q = p.x;
  add(all, p, {4, 1024, 64, 8});
  p.operation = QuantizeOperation::kTranspose;
  p.output = QuantizeOutput::kTransposed;
  p.x = p.q = {DType::kE4M3, Granularity::k128x128, ScaleFormat::kF32};
  add(all, p, {128, 128, 128, 6, false});
  add(all, p, {128, 256, 256, 3, true});
}

// Every value of a cell, those that choose a body with each output, and the values that a template
// computes with: what it reads, how it scales, and the tile.
std::vector<std::string> features_of(const Kernel& kernel) {
  const auto& [problem, config] = kernel;
  std::vector<std::string> features;
  for (const std::array<int, 3>& f : tests::features_of(problem))
    features.push_back(fmt::format("{}", fmt::join(f, " ")));
  const int body = static_cast<int>(template_of(problem));
  const auto add_of_body = [&](const char* name, int value) {
    features.push_back(fmt::format("body {} {} {}", body, name, value));
  };
  add_of_body("x", static_cast<int>(problem.x.dtype));
  add_of_body("q", static_cast<int>(problem.q.granularity));
  add_of_body("scale", static_cast<int>(problem.q.scale));
  add_of_body("groups", static_cast<int>(problem.grouping));
  add_of_body("rows", config.tile_rows);
  add_of_body("columns", config.tile_cols);
  return features;
}

// Returns the cells in their default configurations, or a part that covers them, and each
// template's other shapes for a few cells.
std::vector<Kernel> kernels(bool every_cell) {
  std::vector<Kernel> all;
  add_defaults(all);
  if (!every_cell) all = tests::cover_features(all, features_of);
  add_stacks(all);
  add_ranges(all);
  add_rows(all);
  add_halves_of_warps(all);
  add_halves_of_blocks(all);
  add_copies_apart(all);
  add_whole_tensors(all);
  add_lookups(all);
  add_scale_sectors(all);
  add_shapes(all);
  add_scales_of_a_row(all);
  add_inverses(all);
  return all;
}

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); !from.empty() && at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

struct Written {
  std::string source;  // one of the files
  std::string entry;   // the kernel's line in the table
  std::string declaration;
};

Written write(const Kernel& kernel, int index) {
  const auto& [problem, config] = kernel;
  const auto emitted = emit(problem, config, *find_device("h200"), embedded_templates()).value();
  const std::string name = fmt::format("kernel_{}", index);
  std::string text = emitted.source.substr(emitted.source.find("#line 1 \"prologue\""));
  text = replace_all(text, emitted.name, name);
  Written w;
  const auto declare = [&](const std::string& kernel_name, std::string_view argument) {
    w.declaration += fmt::format("extern \"C\" void {}({});\n", kernel_name, argument);
  };
  const bool of_pieces = problem.pieces != PiecesStep::kNone;
  const bool of_stack = problem.grouping == Grouping::kStacked;
  declare(name, of_pieces  ? "const quantize::PiecesArgs"
                : of_stack ? "const quantize::StackArgs"
                           : "const quantize::Args");
  std::string stack_first_pass = "nullptr";
  std::array<std::string, kCompanions> others;  // in the table's order
  others.fill("nullptr");
  const std::vector<Companion> companions = companions_of(problem, config);
  for (std::size_t i = 0; i < companions.size(); ++i) {
    const auto which = static_cast<std::size_t>(companions[i]);
    std::string& other = others[which];
    other = fmt::format("companion_{}_{}", index, which);
    text = replace_all(text, emitted.companions[i].name, other);
    const bool updates = companions[i] == Companion::kScaleUpdate;
    if (of_stack && companions[i] == Companion::kFirstPass) {
      declare(other, "const quantize::StackArgs");
      stack_first_pass = std::exchange(other, "nullptr");
      continue;
    }
    if (!updates && companions[i] != Companion::kFingerprint) {
      declare(other, "const quantize::Args");
      continue;
    }
    text += fmt::format(  // the argument's type exists only in this namespace
        "extern \"C\" void {0}_of_bytes(const void* args) {{\n"
        "  {0}(*static_cast<const {1}::Args*>(args));\n}}\n",
        other, updates ? "scale_update" : "fingerprint");
    other += "_of_bytes";
    declare(other, "const void*");
  }
  w.source = fmt::format(
      "#undef OCTILE_KERNEL_NAME\n#undef OCTILE_AMAX_NAME\n#undef OCTILE_UPDATE_NAME\n"
      "#undef OCTILE_NORM_NAME\n#undef OCTILE_BIAS_NAME\n#undef OCTILE_ORDER_NAME\n"
      "#undef OCTILE_FINGERPRINT_NAME\n"
      "namespace n{} {{\nusing namespace octile::emulation::quantizers;\n{}\n}}\n",
      index, text);
  w.entry = fmt::format("    {{\"{}\", \"{}\", {}, {}, {}, {}, {}}},\n", to_text(Problem(problem)),
                        to_text(config), of_pieces || of_stack ? "nullptr" : name,
                        fmt::join(others, ", "), of_pieces ? name : "nullptr",
                        of_stack ? name : "nullptr", stack_first_pass);
  return w;
}

int emit_all(const std::string& prefix, int file_count, bool every_cell) {
  const std::string head = "#include \"tests/emulation/quantize_kernels.h\"\n";
  std::vector<std::string> sources(static_cast<std::size_t>(file_count),
                                   head + "#pragma GCC system_header\n");
  std::string declarations, entries;
  int index = 0;
  for (const Kernel& kernel : kernels(every_cell)) {
    const Written w = write(kernel, index);
    sources[static_cast<std::size_t>(index % file_count)] += w.source;
    declarations += w.declaration;
    entries += w.entry;
    ++index;
  }
  std::ostringstream table;
  table << head << declarations << "namespace octile::emulation {\n"
        << "std::span<const EmittedQuantizer> emitted_quantizers() {\n"
        << "  static const EmittedQuantizer all[] = {\n"
        << entries << "  };\n  return all;\n}\n}\n";
  return emulation::write_source_files(prefix, sources, table.str()) ? 0 : 1;
}

}  // namespace
}  // namespace octile

int main(int argc, char** argv) {
  const bool every_cell = argc == 4 && std::string_view(argv[3]) == "all";
  if (argc != (every_cell ? 4 : 3)) {
    std::cerr << "emit_sources <prefix> <files> [all]\n";
    return 2;
  }
  return octile::emit_all(argv[1], std::stoi(argv[2]), every_cell);
}
