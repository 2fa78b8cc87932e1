#include "tests/support/gpu_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <variant>
#include <vector>

#include "cache/key.h"
#include "generator/core/identity.h"
#include "generator/families.h"
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
  std::string name = emitted->name;
  const auto* quantize = std::get_if<QuantizeProblem>(&problem);
  // All kernels with callers' expressions share one name, so the expression is added.
  if (quantize != nullptr && !quantize->source.empty()) name += " of " + quantize->source;
  digests[name] = cache::digest_hex(cache::key_text(identity_of(*emitted, device)));
}

void add(std::map<std::string, std::string>& digests, const std::vector<QuantizeProblem>& cells,
         const DeviceSpec& device) {
  for (const QuantizeProblem& cell : cells)
    add(digests, cell, default_config(cell, 4096, device), device);
}

std::string group_of(const std::string& kernel) {
  constexpr int kWords = 4;
  std::size_t end = 0;
  for (int i = 0; i < kWords && end != std::string::npos; ++i) end = kernel.find('_', end + 1);
  return kernel.substr(0, end);
}

std::map<std::string, std::string> digests_of_groups(
    const std::map<std::string, std::string>& kernels) {
  struct Group {
    int kernels = 0;
    std::string text;
  };
  std::map<std::string, Group> groups;
  for (const auto& [name, digest] : kernels) {
    Group& group = groups[group_of(name)];
    ++group.kernels;
    group.text += fmt::format("{} {}\n", name, digest);
  }
  std::map<std::string, std::string> digests;
  for (const auto& [name, group] : groups)
    digests[name] = fmt::format("{} of {}", cache::digest_hex(group.text), group.kernels);
  return digests;
}

}  // namespace

std::map<std::string, std::string> kernel_source_digests(bool all) {
  const DeviceSpec& device = *find_device("h200");
  std::map<std::string, std::string> digests;
  const GemmProblem gemm = splittable_gemm_problem();
  for (const GemmConfig& config : covering_gemm_configs(gemm, device))
    add(digests, gemm, config, device);
  std::vector<GemmVariant> variants = covering_gemm_variants(device);
  for (const GemmVariant& v : covering_fp8_d_variants(device)) variants.push_back(v);
  for (const GemmVariant& v : covering_group_variants(device)) variants.push_back(v);
  for (const GemmVariant& v : covering_batch_variants(device)) variants.push_back(v);
  for (const auto& [problem, config] : variants) {
    add(digests, problem, config, device);
  }
  add(digests, all ? quantize_cells(7168) : covering_quantize_cells(7168), device);
  add(digests, fused_quantize_cells(7168), device);
  add(digests, grouped_source_cells(7168), device);
  add(digests, covering(supported(all_grouped_problems(7168))), device);
  add(digests, amax_cells(7168), device);
  add(digests, via_cells(7168), device);
  add(digests, pieces_cells(), device);
  add(digests, row_message_cells(7168), device);
  return digests_of_groups(digests);
}

std::map<std::string, std::string> launch_code_digests() {
  std::map<std::string, std::string> digests;
  for (int i = 0; i < embedded::file_count(); ++i) {
    const embedded::File& file = embedded::files()[i];
    digests[file.path] = cache::digest_hex(identity_text({file.text, file.bytes}));
  }
  return digests;
}

}  // namespace octile::tests
