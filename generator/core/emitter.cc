#include "generator/core/emitter.h"

#include <fmt/format.h>

#include "generator/gemm/emit.h"
#include "generator/quantize/emit.h"
#include "generator/core/support_matrix.h"

namespace octile {
namespace {

Error mismatch(const Problem& problem) {
  return {ErrorCode::kInternal,
          fmt::format("problem '{}' was given a configuration of another kernel family",
                      to_text(problem))};
}

}  // namespace

std::vector<std::string> compile_options(const DeviceSpec& device) {
  return {
      "--gpu-architecture=" + device.arch(),
      "--std=c++17",
      // The numerics contract names every fused multiply-add; none is left to
      // the compiler.
      "--fmad=false",
      "--device-as-default-execution-space",
      // Without NVRTC's declarations of textures and the runtime API: 4 to 8 ms less a compile.
      "--minimal",
      "--ptxas-options=-v",
  };
}

Result<EmittedKernel> emit(const Problem& problem, const KernelConfig& config,
                           const DeviceSpec& device, TemplateSet templates) {
  if (const Status supported = check_supported(problem); !supported) {
    return tl::unexpected<Error>(supported.error());
  }
  if (const auto* gemm = std::get_if<GemmProblem>(&problem)) {
    const auto* c = std::get_if<GemmConfig>(&config);
    if (c == nullptr) return tl::unexpected<Error>(mismatch(problem));
    return emit_gemm(*gemm, *c, device, templates);
  }
  const auto* c = std::get_if<QuantizeConfig>(&config);
  if (c == nullptr) return tl::unexpected<Error>(mismatch(problem));
  return emit_quantize(std::get<QuantizeProblem>(problem), *c, device, templates);
}

std::string explain(const Problem& problem, const KernelConfig& config, const DeviceSpec& device) {
  std::string text = fmt::format("problem = {}\ndevice = {}\n", to_text(problem), device.name);
  if (const auto* c = std::get_if<GemmConfig>(&config)) {
    if (const auto* gemm = std::get_if<GemmProblem>(&problem)) {
      text += fmt::format("configuration = {}\n", to_text(*c)) + gemm_prologue(*gemm, *c).explain();
    }
  } else if (const auto* quantize = std::get_if<QuantizeProblem>(&problem)) {
    text += explain_quantize(*quantize, std::get<QuantizeConfig>(config));
  }
  return text +
         "n, k, m and every leading dimension stay run-time arguments: "
         "one kernel serves all "
         "shapes of its recipe.\n";
}

}  // namespace octile
