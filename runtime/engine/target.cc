#include "runtime/engine/target.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "generator/families.h"
#include "runtime/driver/device.h"

namespace octile {
namespace {

constexpr std::string_view kCuda = "cuda";
constexpr std::string_view kHostName = "host";

Error unknown_device(std::string_view text) {
  const std::string older = older_capability(text);
  return {
      ErrorCode::kInvalidArgument,
      fmt::format("device is \"{}\"{}; allowed: \"cuda\", \"cuda:N\", \"host\", or a device to "
                  "compile for: {}",
                  text,
                  older.empty() ? ""
                                : fmt::format(", of compute capability {}: FP8 needs {} or newer",
                                              older, kOldestCapability),
                  supported_device_names())};
}

// Returns the ordinal after "cuda:", or -1 if it is not a number.
int parse_ordinal(std::string_view digits) {
  int ordinal = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), ordinal);
  const bool complete = error == std::errc() && end == digits.data() + digits.size();
  return complete ? ordinal : -1;
}

int current_ordinal(const Driver& driver) {
  CUdevice device = 0;  // CUdevice handles are ordinals
  return driver->cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : 0;
}

Result<Target> live_target(std::string_view text) {
  const bool names_one = text.size() > kCuda.size();
  const int asked = names_one ? parse_ordinal(text.substr(kCuda.size() + 1)) : 0;
  if (asked < 0) return tl::unexpected<Error>(unknown_device(text));
  auto driver = Driver::open();
  if (!driver) return tl::unexpected<Error>(driver.error());
  const int ordinal = names_one ? asked : current_ordinal(**driver);
  auto spec = query_device(**driver, ordinal);
  if (!spec) return tl::unexpected<Error>(spec.error());
  if (Status ok = check_device(*spec); !ok) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("device cuda:{}: {}", ordinal, ok.error().message));
  }
  return Target{TargetKind::kLive, fmt::format("cuda:{}", ordinal), std::move(*spec),
                std::move(*driver), ordinal};
}

}  // namespace

Result<Target> resolve_target(std::string_view text) {
  if (text == kHostName) return Target{TargetKind::kHost, std::string(kHostName), {}, nullptr, 0};
  if (text == kCuda || text.starts_with("cuda:")) return live_target(text);
  if (const DeviceSpec* known = find_device(text))
    return Target{TargetKind::kNamed, known->name, *known, nullptr, 0};
  return tl::unexpected<Error>(unknown_device(text));
}

}  // namespace octile
