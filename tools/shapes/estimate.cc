#include "tools/shapes/estimate.h"

#include <fmt/format.h>

#include "runtime/api/boundary.h"
#include "tools/models/layer_records.h"
#include "tools/verdict/models.h"

namespace octile::tools {
namespace {

constexpr const char* kDefaultNamedDevice = "h200";

}  // namespace

void EstimateOptions::add_to(CLI::App& app) {
  add_flag(
      app, "--estimate", estimate,
      "whether FP8 pays in each layer, without a GPU: from records of layers (OCTILE_VERDICTS) and "
      "of kernels, the cost model and rooflines");
  add_target_option(app, device, "with --estimate: the device; default a GPU, else h200");
  verdict.add_to(app, "with --estimate: ");
}

Status EstimateOptions::check() const {
  const std::string given = device.empty() ? verdict.first_given() : "--device";
  if (estimate || given.empty()) return {};
  return refuse(fmt::format("{} without --estimate; allowed with --estimate only", given));
}

Result<DeviceSpec> device_to_estimate(const std::string& device) {
  auto spec = device_spec(device.empty() ? "cuda" : device);
  if (!spec && device.empty()) spec = device_spec(kDefaultNamedDevice);
  if (!spec) return spec;
  if (const Status ok = check_device(*spec); !ok) return tl::unexpected<Error>(ok.error());
  return spec;
}

Result<Verdicts> estimate_model(const Model& rank, ModelUse use, const DeviceSpec& device,
                                const EstimateOptions& options, const LibraryHandle& library) {
  use.counts = options.verdict.tokens;
  const auto layers = named_layer_records();
  if (!layers) return tl::unexpected<Error>(layers.error());
  auto verdicts = estimate_verdicts(rank, use, options.verdict.microbatches.value_or(1), device,
                                    {*library.get()->library.engine.records(), *layers});
  if (!verdicts || verdicts->layers.empty()) return verdicts;
  const GemmProblem& any = verdicts->layers.front().layer.gemms.front().problem;
  if (Status ok = check_supported(any, device); !ok) return tl::unexpected<Error>(ok.error());
  if (Status ok = options.verdict.check_step(verdicts->sums); !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  return verdicts;
}

}  // namespace octile::tools
