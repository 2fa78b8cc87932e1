// Delivers the library's messages to the caller's callback, one at a time, and never to a stream. A
// message may quote text from a caller or a file, so a long one is cut, and all are made printable
// (printable.h).
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>

namespace octile {

// The values equal those of octile_log_level in octile/octile.h (asserted in the C API).
enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

inline constexpr std::size_t kMaxMessageBytes = 8191;  // a longer message ends in " ..."

// May be used from any thread. Delivery is serialised: the callback never runs twice at once, and
// must not log through the same Logger. An exception it throws is swallowed: a destructor may send
// messages, and a message must not make a call fail.
class Logger {
 public:
  using Callback = std::function<void(LogLevel, const std::string&)>;

  Logger() = default;  // delivers nothing
  Logger(Callback callback, LogLevel minimum);
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  // Returns true if a message of this level would be delivered. Check it before composing an
  // expensive message.
  bool enabled(LogLevel level) const { return callback_ != nullptr && level >= minimum_; }

  void log(LogLevel level, const std::string& message);

  // Delivers the first message of each key and no later one. A message below the minimum level does
  // not count as the first.
  void log_once(std::string_view key, LogLevel level, const std::string& message);

 private:
  void deliver(LogLevel level, std::string_view text);

  const Callback callback_;
  const LogLevel minimum_ = LogLevel::kError;
  std::mutex mutex_;
  std::unordered_set<std::string> seen_;
};

}  // namespace octile
