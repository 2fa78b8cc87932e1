#include "tools/tune/verdicts.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/tuned/tuning_records.h"
#include "tools/common/output.h"
#include "tools/verdict/models.h"

namespace octile::tools {
namespace {

// Lines of the file that are not records are left out, as plans leave them out.
cache::TuningSet records_of(const cache::TuningFolder& folder) {
  cache::TuningSet records;
  if (auto lines = folder.read()) records.add(std::move(lines->records), folder.whole().path());
  records.add(embedded_tuning(), kEmbeddedOrigin);
  return records;
}

}  // namespace

Status print_tuned_verdicts(const WorkOptions& work, const DeviceSpec& device,
                            const cache::TuningFolder& folder, bool wide) {
  if (work.model.models.empty()) return {};
  const std::string recipe = work.problem.recipe_option.is_given() ? work.problem.recipe : "auto";
  ModelUse use = work.model.use();
  use.counts = work.tokens;
  const auto models = verdicts_of_models(work.model, recipe, use, device, {records_of(folder)});
  if (!models) return tl::unexpected<Error>(models.error());
  for (const auto& [model, verdicts] : *models) {
    print_stdout("\n");
    print_heading(fmt::format("does FP8 pay in {} on {}", model, device.name));
    print_stdout("\n");
    print_verdicts(verdicts, std::nullopt, wide);
  }
  return {};
}

}  // namespace octile::tools
