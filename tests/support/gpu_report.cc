#include "tests/support/gpu_report.h"

#include <stdexcept>

#include "cache/key.h"
#include "generator/cost_model.h"
#include "generator/emitter.h"
#include "runtime/engine/engine.h"
#include "tests/support/embedded_sources.h"
#include "tests/support/gemm_variants.h"
#include "tests/support/quantize_cells.h"

namespace octile::tests {
namespace {

void add(std::map<std::string, std::string>& digests, const Problem& problem,
         const KernelConfig& config, const DeviceSpec& device) {
  const auto emitted = emit(problem, config, device, embedded_templates());
  if (!emitted) throw std::runtime_error(emitted.error().message);
  digests[emitted->name] = cache::digest_hex(cache::key_text(identity_of(*emitted, device)));
}

}  // namespace

std::map<std::string, std::string> kernel_source_digests() {
  const DeviceSpec& device = *find_device("h200");
  std::map<std::string, std::string> digests;
  const GemmProblem gemm = splittable_gemm_problem();
  for (const GemmConfig& config : covering_gemm_configs(gemm, device))
    add(digests, gemm, config, device);
  for (const QuantizeProblem& cell : quantize_cells(7168)) {
    add(digests, cell, default_config(cell, 4096, device), device);
  }
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
