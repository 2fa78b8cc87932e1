// An error: a code that callers branch on, and one sentence for a person (the argument, its value,
// the allowed values).
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace octile {

// The values are those of octile_status in octile/octile.h, which the C API asserts, so that no
// layer translates codes. Append only.
enum class ErrorCode : int {
  kInvalidArgument = 1,
  kUnsupported = 2,
  kNotPrepared = 3,
  kNoDriver = 4,
  kNoCompiler = 5,
  kCompileFailed = 6,
  kDeviceError = 7,
  kOffline = 8,
  kOutOfMemory = 9,
  kCapturing = 10,
  kInternal = 11,
  kFile = 12,
};

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
};

// std::expected is C++23; tl::expected has the same interface in C++20.
template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> fail(ErrorCode code, std::string message) {
  return tl::unexpected<Error>(Error{code, std::move(message)});
}

}  // namespace octile
