#include "tools/shapes/estimate.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/api/boundary.h"
#include "tools/common/on_workers.h"
#include "tools/common/output.h"
#include "tools/common/terminal.h"
#include "tools/models/estimated_times.h"
#include "tools/models/verdict_report.h"

namespace octile::tools {
namespace {

constexpr const char* kDefaultNamedDevice = "h200";

std::size_t layers_of(const ModelEstimate& estimate, const ModelVerdict& sum) {
  std::size_t count = 0;
  for (const JudgedLayer& judged : estimate.layers) {
    count += judged.verdict.mode == sum.mode && judged.verdict.tokens == sum.tokens ? 1 : 0;
  }
  return count;
}

Status check_step(const ModelEstimate& estimate, const EstimateOptions& options) {
  if (!options.step()) return {};
  if (estimate.sums.size() != 1) {
    return refuse(
        fmt::format("--step-ms is {}, and {} modes and token counts are estimated; allowed with "
                    "one, by --mode and --tokens",
                    options.step_ms, estimate.sums.size()));
  }
  const double least = estimate.sums.front().bf16_us * 1e-3;
  if (options.step_ms >= least) return {};
  return refuse(
      fmt::format("--step-ms is {}; allowed: at least {:.3f}, what the GEMMs in BF16 take",
                  options.step_ms, least));
}

}  // namespace

void EstimateOptions::add_to(CLI::App& app) {
  add_flag(app, "--estimate", estimate,
           "whether FP8 pays in each layer, without a GPU: from tuning records, the cost model and "
           "rooflines");
  add_target_option(app, device, "with --estimate: the device; default a GPU, else h200");
  add_list(app, "--tokens", tokens,
           "with --estimate: token counts, or ranges such as 1:256; default 64 to decode, 4096 to "
           "prefill, 8192 to train");
  add_option(app, "--microbatches", microbatches,
             "with --estimate of training: passes for which a weight is quantised once; default 1")
      .in_range(1, 1 << 20);
  step_option = add_option(
      app, "--step-ms", step_ms,
      "with --estimate of one mode and token count: milliseconds of the whole step in BF16, "
      "to say what it becomes");
}

std::optional<double> EstimateOptions::step() const {
  return step_option.is_given() ? std::optional(step_ms) : std::nullopt;
}

Status EstimateOptions::check() const {
  for (const auto& [name, given] :
       {std::pair("--device", !device.empty()), std::pair("--tokens", !tokens.empty()),
        std::pair("--microbatches", microbatches.has_value()),
        std::pair("--step-ms", step_option.is_given())}) {
    if (given && !estimate) {
      return refuse(fmt::format("{} without --estimate; allowed with --estimate only", name));
    }
  }
  return {};
}

Result<DeviceSpec> device_to_estimate(const std::string& device) {
  auto spec = device_spec(device.empty() ? "cuda" : device);
  if (!spec && device.empty()) spec = device_spec(kDefaultNamedDevice);
  if (!spec) return spec;
  if (const Status ok = check_device(*spec); !ok) return tl::unexpected<Error>(ok.error());
  return spec;
}

Result<ModelEstimate> estimate_model(const Model& rank, ModelUse use, const DeviceSpec& device,
                                     const EstimateOptions& options, const LibraryHandle& library) {
  use.counts = options.tokens;
  const auto cases = layer_cases(rank, use, options.microbatches.value_or(1));
  if (!cases) return tl::unexpected<Error>(cases.error());
  ModelEstimate estimate;
  estimate.layers.resize(cases->size());
  Library& internals = library.get()->library;
  const auto records = internals.engine.records();
  for_each_on(internals.workers, cases->size(), [&](std::size_t i) {
    estimate.layers[i] = judge((*cases)[i], estimated_times((*cases)[i], device, *records));
  });
  estimate.sums = sum_up(estimate.layers);
  if (Status ok = check_step(estimate, options); !ok) return tl::unexpected<Error>(ok.error());
  return estimate;
}

void print(const ModelEstimate& estimate, const DeviceSpec& device, const EstimateOptions& options,
           bool wide) {
  print_stdout("\n");
  print_heading(fmt::format("does FP8 pay on {}", device.name));
  print_stdout("\n");
  print_table(verdicts_table(estimate.layers), wide);
  print_stdout("\n{}\n", wrapped(verdicts_legend(), line_width(), 2));
  for (const ModelVerdict& sum : estimate.sums) {
    print_stdout("\n{}\n", wrapped(model_text(sum, layers_of(estimate, sum), options.step()),
                                   line_width(), 2));
  }
}

Json to_json(const ModelEstimate& estimate, const EstimateOptions& options) {
  Json layers = Json::array(), sums = Json::array();
  for (const JudgedLayer& judged : estimate.layers) layers.push_back(to_json(judged));
  for (const ModelVerdict& sum : estimate.sums) {
    sums.push_back(to_json(sum));
    if (!options.step()) continue;
    sums.back()["step_ms"] = options.step_ms;
    sums.back()["step_ms_best_mix"] = step_of_mix(sum, *options.step());
  }
  return {{"layers", std::move(layers)}, {"sums", std::move(sums)}};
}

}  // namespace octile::tools
