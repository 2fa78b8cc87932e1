#include "tests/support/gpu_report.h"

#include <algorithm>
#include <stdexcept>
#include <variant>
#include <vector>

#include "cache/key.h"
#include "generator/gemm/cost.h"
#include "generator/core/emitter.h"
#include "runtime/engine/engine.h"
#include "tests/support/embedded_sources.h"
#include "tests/support/gemm_variants.h"
#include "tests/support/quantize_cells.h"

namespace octile::tests {
namespace {

void add(std::map<std::string, std::string>& digests, const Problem& problem,
         const KernelConfig& config, const DeviceSpec& device) {
  auto emitted = emit(problem, config, device, embedded_templates());
  if (!emitted) throw std::runtime_error(emitted.error().message);
  emitted->source = without_comments(emitted->source);
  std::string name = emitted->name;
  const auto* quantize = std::get_if<QuantizeProblem>(&problem);
  // Kernels of callers' expressions have one name.
  if (quantize != nullptr && !quantize->source.empty()) name += " of " + quantize->source;
  digests[name] = cache::digest_hex(cache::key_text(identity_of(*emitted, device)));
}

void add(std::map<std::string, std::string>& digests, const std::vector<QuantizeProblem>& cells,
         const DeviceSpec& device) {
  for (const QuantizeProblem& cell : cells)
    add(digests, cell, default_config(cell, 4096, device), device);
}

}  // namespace

std::string without_comments(std::string_view source) {
  std::string kept, line;
  const auto end_line = [&] {
    line.resize(line.find_last_not_of(' ') + 1);
    if (!line.empty()) kept += line + '\n';
    line.clear();
  };
  bool quoted = false;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\n') {
      end_line();
    } else if (!quoted && source.substr(i, 2) == "//") {
      i = std::min(source.find('\n', i), source.size()) - 1;
    } else {
      if (source[i] == '"') quoted = !quoted;
      if (quoted && source[i] == '\\') line += source[i++];
      line += source[i];
    }
  }
  end_line();
  return kept;
}

std::map<std::string, std::string> kernel_source_digests() {
  const DeviceSpec& device = *find_device("h200");
  std::map<std::string, std::string> digests;
  const GemmProblem gemm = splittable_gemm_problem();
  for (const GemmConfig& config : covering_gemm_configs(gemm, device))
    add(digests, gemm, config, device);
  add(digests, quantize_cells(7168), device);
  add(digests, fused_quantize_cells(7168), device);
  add(digests, grouped_source_cells(7168), device);
  add(digests, covering(supported(all_grouped_problems(7168))), device);
  add(digests, covering(supported(all_sharded_problems(7168))), device);
  return digests;
}

std::map<std::string, std::string> launch_code_digests() {
  std::map<std::string, std::string> digests;
  for (int i = 0; i < embedded::file_count(); ++i) {
    const embedded::File& file = embedded::files()[i];
    digests[file.path] = cache::digest_hex({file.text, file.bytes});
  }
  return digests;
}

}  // namespace octile::tests
