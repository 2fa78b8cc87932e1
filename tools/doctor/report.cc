#include "tools/doctor/report.h"

#include <fmt/format.h>

#include <utility>

#include "octile/octile.h"
#include "runtime/api/boundary.h"
#include "runtime/base/environment.h"
#include "tools/doctor/card_tests.h"
#include "tools/doctor/measure.h"
#include "tools/doctor/times.h"
#include "tools/doctor/without_paths.h"

namespace octile::tools {
namespace {

std::string version_text() {
  int major = 0, minor = 0, patch = 0;
  octile_version(&major, &minor, &patch);
  return fmt::format("{}.{}.{}", major, minor, patch);
}

Json kept_json(const std::vector<cache::Proof>& kept) {
  Json all = Json::array();
  for (const cache::Proof& proof : kept)
    all.push_back({{"test", proof.test},
                   {"verdict", proof.is_right() ? "right" : "wrong: " + proof.wrong},
                   {"sum_bits", proof.sum_bits > 0 ? Json(proof.sum_bits) : Json()},
                   {"driver", proof.driver},
                   {"date", proof.date}});
  return all;
}

}  // namespace

Result<Json> card_report(const LibraryHandle& library, const Surroundings& surroundings,
                         const std::string& device) {
  const auto target = resolve_target(device);
  if (!target) return tl::unexpected<Error>(target.error());
  if (target->kind != TargetKind::kLive) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--device is {}; allowed: a live GPU, cuda or cuda:N", device));
  }
  const DeviceSpec& spec = target->spec;
  const CardTests tests = test_card(library, *target);
  const auto commit = environment_value("OCTILE_COMMIT");
  Json report{{"octile", version_text()},
              {"commit", commit ? Json(*commit) : Json()},
              {"device",
               {{"name", spec.full_name},
                {"compute_capability", spec.capability()},
                {"sm_count", spec.sm_count},
                {"l2_bytes", spec.l2_bytes},
                {"smem_per_block_bytes", spec.max_smem_per_block_bytes}}},
              {"driver", surroundings.driver_version},
              {"driver_build", target->driver->build()},
              {"nvrtc", surroundings.nvrtc_version},
              {"units", tests.units},
              {"quantisers", tests.quantisers},
              {"kept", kept_json(kept_outcomes(library, *target))}};
  const auto measured = measure_device(target->text);
  report.set("rates", measured ? to_json(*measured) : Json());
  if (!measured) report.set("why_no_rates", measured.error().message);
  auto times = card_times(target->text);
  report.set("times", times ? std::move(*times) : Json());
  if (!times) report.set("why_no_times", times.error().message);
  return WithoutPaths(surroundings).of(report);
}

}  // namespace octile::tools
