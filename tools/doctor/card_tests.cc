#include "tools/doctor/card_tests.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "runtime/api/boundary.h"
#include "runtime/base/environment.h"
#include "runtime/driver/device.h"
#include "runtime/engine/known_answers.h"
#include "runtime/engine/unit_answers.h"

namespace octile::tools {
namespace {

using Kind = Answer::Kind;

struct Outcomes {
  Answer quantisers;
  std::vector<UnitAnswer> units;
};
Outcomes find_outcomes(const LibraryHandle& library, const Target& target,
                       ProofRun::Earlier earlier) {
  ProofRun run(library.get()->library, target, earlier);
  Outcomes outcomes;
  outcomes.quantisers = test_known_answers(run, target);
  outcomes.units = test_units(run, target);
  return outcomes;
}

// Returns what to do about a test that cannot run; nothing if its own sentence says it.
std::string_view remedy_of(const Error& why) {
  constexpr std::string_view kAhead =
      "; run `octile doctor` once where kernels are compiled, or `octile compile` with --device "
      "ahead, and keep the cache folder";
  if (why.code == ErrorCode::kOffline || why.code == ErrorCode::kNoCompiler) return kAhead;
  if (why.message.find("OUT_OF_MEMORY") != std::string::npos)
    return "; run `octile doctor` again while no other program has memory of the device";
  if (why.message.find("OCTILE_PROVER") == std::string::npos && environment_value("OCTILE_PROVER"))
    return "; unset OCTILE_PROVER, so that octile-prover beside the library tests";
  if (why.message.find("octile-prover") != std::string::npos &&
      why.message.find("cannot be started") != std::string::npos)
    return "; install Octile's programs again: octile-prover belongs beside the library";
  return {};
}

std::string verdict_of(const Answer& answer) {
  if (answer.kind == Kind::kRight) return "right";
  const Error& why = answer.status.error();
  return answer.kind == Kind::kWrong ? "wrong: " + why.message
                                     : fmt::format("not tested: {}{}", why.message, remedy_of(why));
}

// Returns when a part of the device was last tested.
std::string date_of(const std::vector<cache::Proof>& kept, const std::string& part) {
  std::string date;
  for (const cache::Proof& proof : kept)
    if (proof.test.starts_with(part + ": ")) date = std::max(date, proof.date);
  return date;
}

Json to_json(const Answer& now, const Answer& earlier, const std::string& date) {
  Json remembered;
  if (now.kind == Kind::kUnknown && earlier.kind != Kind::kUnknown)
    remembered = {{"verdict", verdict_of(earlier)}, {"date", date}};
  return {{"ok", now.kind == Kind::kRight},
          {"tested", now.kind != Kind::kUnknown},
          {"verdict", verdict_of(now)},
          {"remembered", std::move(remembered)}};
}

}  // namespace

std::vector<cache::Proof> kept_outcomes(const LibraryHandle& library, const Target& target) {
  const EngineOptions& options = library.get()->library.engine.options();
  const auto uuid = device_uuid(*target.driver, target.ordinal);
  if (!uuid) return {};
  return cache::Proofs(options.writable_root, *uuid, options.file_ops)
      .read()
      .value_or(std::vector<cache::Proof>());
}

CardTests test_card(const LibraryHandle& library, const Target& target) {
  const Outcomes now = find_outcomes(library, target, ProofRun::Earlier::kAreRepeated);
  const auto is_unknown = [](const Answer& answer) { return answer.kind == Kind::kUnknown; };
  const bool has_unknown = is_unknown(now.quantisers) || std::ranges::any_of(now.units, is_unknown);
  const Outcomes serving =
      has_unknown ? find_outcomes(library, target, ProofRun::Earlier::kCount) : now;
  const std::vector<cache::Proof> kept = kept_outcomes(library, target);
  CardTests tests;
  const auto take_wrong = [&](const std::string& part, const Answer& first, const Answer& second) {
    const Answer& found = is_unknown(first) ? second : first;
    if (found.kind == Kind::kWrong && tests.first_wrong.empty())
      tests.first_wrong = fmt::format("{}: {}", part, verdict_of(found));
  };
  tests.quantisers = to_json(now.quantisers, serving.quantisers, date_of(kept, "quantisers"));
  take_wrong("quantisers", now.quantisers, serving.quantisers);
  for (const UnitAnswer& answer : serving.units) {
    const std::string part = "matrix unit " + name_of(answer);
    // The tests with scales are left out while those without have no outcome.
    const auto same = std::ranges::find(now.units, name_of(answer),
                                        [](const UnitAnswer& unit) { return name_of(unit); });
    const auto plain = std::ranges::find(now.units, answer.unit, &UnitAnswer::unit);
    const UnitAnswer& tested = same != now.units.end() ? *same : *plain;
    const std::string date = date_of(kept, fmt::format("matrix unit {}", name_of(answer.unit)));
    Json unit = to_json(tested, answer, date);
    unit.set("unit", name_of(answer));
    unit.set("sum_bits", answer.sum_bits ? Json(*answer.sum_bits) : Json());
    tests.units.push_back(unit);
    take_wrong(part, tested, answer);
  }
  return tests;
}

}  // namespace octile::tools
