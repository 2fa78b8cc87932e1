#include "tools/doctor/report.h"

#include <fmt/format.h>

#include <utility>

#include "octile/octile.h"
#include "runtime/api/boundary.h"
#include "runtime/engine/known_answers.h"
#include "runtime/engine/unit_answers.h"
#include "tools/doctor/measure.h"
#include "tools/doctor/times.h"

namespace octile::tools {
namespace {

std::string version_text() {
  int major = 0, minor = 0, patch = 0;
  octile_version(&major, &minor, &patch);
  return fmt::format("{}.{}.{}", major, minor, patch);
}

Json verdict_json(const Answer& answer) {
  using Kind = Answer::Kind;
  const std::string why = answer.status ? "" : answer.status.error().message;
  return {{"ok", answer.kind == Kind::kRight},
          {"tested", answer.kind != Kind::kUnknown},
          {"verdict", answer.kind == Kind::kRight   ? "right"
                      : answer.kind == Kind::kWrong ? "wrong: " + why
                                                    : "not tested: " + why}};
}

}  // namespace

CardTests test_card(const LibraryHandle& library, const Target& target) {
  CardTests tests;
  ProofRun run(library.get()->library, target, ProofRun::Earlier::kAreRepeated);
  const Answer quantisers = test_known_answers(run, target);
  tests.quantisers = verdict_json(quantisers);
  tests.ok = quantisers.kind != Answer::Kind::kWrong;
  for (const UnitAnswer& answer : test_units(run, target)) {
    Json unit = verdict_json(answer);
    unit.set("unit", name_of(answer));
    unit.set("sum_bits", answer.sum_bits ? Json(*answer.sum_bits) : Json());
    tests.units.push_back(unit);
    tests.ok = tests.ok && answer.kind != Answer::Kind::kWrong;
  }
  return tests;
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
  const CardTests tests = test_card(library, *target);
  Json report{{"octile", version_text()},
              {"device",
               {{"name", spec.full_name},
                {"compute_capability", spec.capability()},
                {"sm_count", spec.sm_count},
                {"l2_bytes", spec.l2_bytes},
                {"smem_per_block_bytes", spec.max_smem_per_block_bytes}}},
              {"driver", surroundings.driver_version},
              {"nvrtc", surroundings.nvrtc_version},
              {"units", tests.units},
              {"quantisers", tests.quantisers}};
  const auto measured = measure_device(target->text);
  report.set("rates", measured ? to_json(*measured) : Json());
  if (!measured) report.set("why_no_rates", measured.error().message);
  auto times = card_times(target->text);
  report.set("times", times ? std::move(*times) : Json());
  if (!times) report.set("why_no_times", times.error().message);
  return report;
}

}  // namespace octile::tools
