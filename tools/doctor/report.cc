#include "tools/doctor/report.h"

#include <fmt/format.h>

#include "octile/octile.h"
#include "runtime/api/boundary.h"
#include "runtime/engine/known_answers.h"
#include "runtime/engine/unit_answers.h"
#include "tools/doctor/measure.h"

namespace octile::tools {
namespace {

std::string version_text() {
  int major = 0, minor = 0, patch = 0;
  octile_version(&major, &minor, &patch);
  return fmt::format("{}.{}.{}", major, minor, patch);
}

Json verdict_json(const Status& status) {
  return {{"ok", status.has_value()},
          {"verdict", status ? "right" : "wrong: " + status.error().message}};
}

}  // namespace

Json units_json(const LibraryHandle& library, const Target& target) {
  Json units = Json::array();
  for (const UnitAnswer& answer : test_units(library.get()->library, target)) {
    Json unit = verdict_json(answer.status);
    unit.set("unit", name_of(answer.unit));
    unit.set("sum_bits", answer.sum_bits ? Json(*answer.sum_bits) : Json());
    units.push_back(unit);
  }
  return units;
}

Result<Json> card_report(const LibraryHandle& library, const Surroundings& surroundings,
                         const std::string& device) {
  const auto target = resolve_target(device);
  if (!target) return tl::unexpected<Error>(target.error());
  if (target->kind != TargetKind::kLive) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--device is {}; allowed: a live GPU, cuda or cuda:N", device));
  }
  const DeviceSpec& spec = target->spec;
  Json report{{"octile", version_text()},
              {"device",
               {{"name", spec.full_name},
                {"compute_capability", spec.capability()},
                {"sm_count", spec.sm_count},
                {"l2_bytes", spec.l2_bytes},
                {"smem_per_block_bytes", spec.max_smem_per_block_bytes}}},
              {"driver", surroundings.driver_version},
              {"nvrtc", surroundings.nvrtc_version},
              {"units", units_json(library, *target)},
              {"quantisers", verdict_json(test_known_answers(library.get()->library, *target))}};
  const auto measured = measure_device(target->text);
  report.set("rates", measured ? to_json(*measured) : Json());
  if (!measured) report.set("why_no_rates", measured.error().message);
  return report;
}

}  // namespace octile::tools
