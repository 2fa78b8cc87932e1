#include "runtime/engine/unit_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "generator/core/sum_bits.h"
#include "runtime/engine/unit_call.h"

namespace octile {
namespace {

// Computes the form on the device, and finds the bits behind the point that the unit keeps.
Answer answer_of(ProofRun& run, const DeviceSpec& only, const UnitForm& form) {
  const GemmProblem problem = problem_of(form);
  const UnitCall given(problem, form);
  UnitCall expected = given;
  return run.test(
      fmt::format("matrix unit {}", name_of(only.units.front())), problem, config_of(form, only),
      only, given.memory(), [&] { return expected.run_on_host(); }, form.times,
      [&](void* base) { return given.at(base); },
      [&](const std::vector<std::uint8_t>& memory) { return expected.judge(memory); });
}

// Tests the unit by its forms, as far as they are right.
UnitAnswer test_unit(ProofRun& run, const UnitTests& tests) {
  const int described = octile::sum_bits(tests.device, tests.unit);
  UnitAnswer all;
  all.unit = tests.unit;
  all.is_of_scales = tests.is_of_scales;
  for (const UnitForm& form : tests.forms) {
    const Answer answer = answer_of(run, tests.device, form);
    all.kind = answer.kind;
    all.is_remembered |= answer.is_remembered;
    const auto refuse = [&](const std::string& why) {
      const bool is_unknown = answer.kind == Answer::Kind::kUnknown;
      all.kind = is_unknown ? answer.kind : Answer::Kind::kWrong;
      all.status = fail(is_unknown ? answer.status.error().code : ErrorCode::kDeviceError,
                        fmt::format("{}{}", is_unknown ? "" : form.what, why));
    };
    if (!answer.status) {
      refuse(answer.status.error().message);
      return all;
    }
    if (!answer.sum_bits) continue;
    const int bits = *answer.sum_bits;
    all.sum_bits = std::min(all.sum_bits.value_or(bits), bits);
    if (bits < described) {
      refuse(
          fmt::format("it keeps {} bits of a sum, and {} are taken for granted", bits, described));
      return all;
    }
  }
  return all;
}

}  // namespace

std::string name_of(const UnitAnswer& answer) {
  return fmt::format("{}{}", name_of(answer.unit),
                     answer.is_of_scales ? " with scales in the instruction" : "");
}

std::vector<UnitAnswer> test_units(ProofRun& run, const Target& target) {
  std::vector<UnitAnswer> answers;
  for (const UnitTests& tests : unit_tests(target.spec)) {
    // Scales in the instruction are of no use without the unit.
    if (tests.is_of_scales && answers.back().kind != Answer::Kind::kRight) continue;
    answers.push_back(test_unit(run, tests));
  }
  return answers;
}

}  // namespace octile
