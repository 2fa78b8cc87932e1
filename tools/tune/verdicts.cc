#include "tools/tune/verdicts.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/tuned/tuning_records.h"
#include "tools/common/output.h"
#include "tools/models/estimated_times.h"

namespace octile::tools {
namespace {

// Lines of the file that are no records are left out, as plans leave them out.
cache::TuningSet records_of(const cache::TuningFile& file) {
  cache::TuningSet records;
  if (auto lines = file.read()) records.add(std::move(lines->records), file.path());
  records.add(embedded_tuning(), kEmbeddedOrigin);
  return records;
}

}  // namespace

Result<std::vector<TunedModel>> tuned_verdicts(const WorkOptions& work, const DeviceSpec& device,
                                               const cache::TuningFile& file) {
  std::vector<TunedModel> models;
  if (work.model.models.empty()) return models;
  const cache::TuningSet records = records_of(file);
  const std::string recipe = work.problem.recipe_option.is_given() ? work.problem.recipe : "auto";
  ModelUse use = work.model.use();
  use.counts = work.tokens;
  for (const std::string& name : work.model.models) {
    if (name == "-") continue;  // standard input was read
    const auto rank = work.model.read(name, recipe);
    if (!rank) return tl::unexpected<Error>(rank.error());
    const auto cases = layer_cases(*rank, use, 1);
    if (!cases) return tl::unexpected<Error>(cases.error());
    TunedModel& model = models.emplace_back();
    model.name = rank->name;
    for (const LayerCase& layer : *cases) {
      model.verdicts.layers.push_back(judge(layer, estimated_times(layer, device, records)));
    }
    model.verdicts.sums = sum_up(model.verdicts.layers);
  }
  return models;
}

Status print_tuned_verdicts(const WorkOptions& work, const DeviceSpec& device,
                            const cache::TuningFile& file, bool wide) {
  const auto models = tuned_verdicts(work, device, file);
  if (!models) return tl::unexpected<Error>(models.error());
  for (const TunedModel& model : *models) {
    print_stdout("\n");
    print_heading(fmt::format("does FP8 pay in {} on {}", model.name, device.name));
    print_stdout("\n");
    print_verdicts(model.verdicts, std::nullopt, wide);
  }
  return {};
}

}  // namespace octile::tools
