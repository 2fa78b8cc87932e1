#include "runtime/engine/trusted_devices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/known_answers.h"
#include "runtime/engine/library.h"
#include "runtime/engine/unit_answers.h"

namespace octile {
namespace {

using Trusted = TrustedDevices::Trusted;
using Kind = Answer::Kind;

constexpr std::chrono::hours kLongestPause{1};

std::string name_of_card(const DeviceSpec& device) {
  return fmt::format("{} (compute capability {})", device.full_name, device.capability());
}
// Says that an outcome is not of now.
std::string_view repeated_by(const Answer& answer) {
  return answer.is_remembered ? " (as found earlier; `octile doctor` repeats the test)" : "";
}

// The unit whose instruction is older than every card here. It is trusted without a test.
bool needs_no_test(MatrixUnit unit) { return unit == MatrixUnit::kMma; }

void take_quantisers(const Target& target, const Answer& answer, Trusted& trusted) {
  if (answer.kind != Kind::kWrong) return;
  trusted.any = fail(
      ErrorCode::kDeviceError,
      fmt::format("{} does not pass the known-answer test of {}{}; no kernel is "
                  "handed out for it",
                  name_of_card(target.spec), answer.status.error().message, repeated_by(answer)));
}

void take_units(const std::vector<UnitAnswer>& answers, Trusted& trusted) {
  DeviceSpec& device = trusted.device;
  std::string first;
  for (const UnitAnswer& answer : answers) {
    const bool is_left_out = answer.kind == Kind::kWrong ||
                             (answer.kind == Kind::kUnknown && !needs_no_test(answer.unit));
    if (answer.is_of_scales) {
      device.has_unused_scales = is_left_out;
    } else {
      std::erase(device.unused_units, answer.unit);
      if (is_left_out) device.unused_units.push_back(answer.unit);
    }
    if (!is_left_out) continue;
    if (answer.kind == Kind::kUnknown) continue;
    const std::string why = fmt::format(
        "{} does not pass the known-answer test of its matrix unit {}: {}{}", name_of_card(device),
        name_of(answer), answer.status.error().message, repeated_by(answer));
    if (first.empty()) first = why;
    trusted.warnings.push_back(why + "; no GEMM uses it");
  }
  const bool has_any = answers.empty() || std::ranges::any_of(answers, [&](const UnitAnswer& a) {
                         return !device.is_unused(a.unit);
                       });
  if (!has_any)
    trusted.multiplies = fail(ErrorCode::kDeviceError, first + "; no GEMM is handed out for it");
}

// Adds one warning about the parts that have no test.
void take_unknown(const Target& target, const Answer& quantisers,
                  const std::vector<UnitAnswer>& units, Trusted& trusted) {
  const DeviceSpec& device = trusted.device;
  const Error* why = nullptr;
  std::vector<std::string> used, unused;
  const auto take = [&](const Answer& answer, bool is_used, std::string name) {
    if (answer.kind != Kind::kUnknown) return;
    if (why == nullptr) why = &answer.status.error();
    (is_used ? used : unused).push_back(std::move(name));
  };
  take(quantisers, true, "quantisers");
  for (const UnitAnswer& unit : units)
    take(unit, unit.is_of_scales ? !device.has_unused_scales : !device.is_unused(unit.unit),
         fmt::format("matrix unit {}", name_of(unit)));
  if (why == nullptr) return;
  trusted.is_final = false;
  std::string said;
  if (!used.empty()) said = fmt::format("; used without one: {}", fmt::join(used, ", "));
  if (!unused.empty()) said += fmt::format("; not used: {}", fmt::join(unused, ", "));
  trusted.warnings.push_back(fmt::format("{} has no known-answer test{}: {}",
                                         name_of_card(target.spec), said, why->message));
}

Trusted tested(Library& library, const Target& target) {
  ProofRun run(library, target, ProofRun::Earlier::kCount);
  Trusted trusted;
  trusted.device = target.spec;
  const Answer quantisers = test_known_answers(run, target);
  take_quantisers(target, quantisers, trusted);
  if (!trusted.any) return trusted;
  const std::vector<UnitAnswer> units = test_units(run, target);
  take_units(units, trusted);
  take_unknown(target, quantisers, units, trusted);
  return trusted;
}

// before: the earlier outcome, of which the log has the warnings; null: none.
void warn(Logger& logger, const Trusted& trusted, const Trusted* before) {
  for (const std::string& warning : trusted.warnings) {
    if (before == nullptr || std::ranges::find(before->warnings, warning) == before->warnings.end())
      logger.log(LogLevel::kWarning, warning);
  }
}

}  // namespace

TrustedDevices::Entry& TrustedDevices::entry_of(const Target& target) {
  const std::scoped_lock lock(mutex_);
  return devices_[{target.driver.get(), target.ordinal}];
}

std::shared_ptr<const Trusted> TrustedDevices::known(Entry& entry, bool& is_due) {
  const std::scoped_lock lock(entry.mutex);
  is_due = entry.trusted == nullptr || Clock::now() >= entry.again;
  return entry.trusted;
}

std::shared_ptr<const Trusted> TrustedDevices::of(Library& library, const Target& target) {
  Entry& entry = entry_of(target);
  bool is_due = false;
  auto before = known(entry, is_due);
  if (!is_due) return before;
  std::unique_lock testing(entry.testing, std::defer_lock);
  if (before == nullptr) {
    testing.lock();
  } else if (!testing.try_lock()) {
    return before;
  }
  before = known(entry, is_due);
  if (!is_due) return before;  // another thread has tested it meanwhile
  const auto found = std::make_shared<const Trusted>(
      target.spec.is_proven ? Trusted{{}, {}, target.spec} : tested(library, target));
  warn(library.logger, *found, before.get());
  const std::scoped_lock lock(entry.mutex);
  entry.trusted = found;
  entry.pause = entry.pause == Clock::duration{}
                    ? Clock::duration(first_pause_.load())
                    : std::min<Clock::duration>(2 * entry.pause, kLongestPause);
  entry.again = found->is_final ? Clock::time_point::max() : Clock::now() + entry.pause;
  return found;
}

}  // namespace octile
