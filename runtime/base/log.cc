#include "runtime/base/log.h"

#include <algorithm>
#include <utility>

#include "runtime/base/printable.h"

namespace octile {

Logger::Logger(Callback callback, LogLevel minimum)
    : callback_(std::move(callback)), minimum_(minimum) {}

void Logger::log(LogLevel level, const std::string& message) {
  if (!enabled(level)) return;
  const std::scoped_lock lock(mutex_);
  deliver(level, message);
}

void Logger::log_once(std::string_view key, LogLevel level, const std::string& message) {
  if (!enabled(level)) return;
  const std::scoped_lock lock(mutex_);
  if (seen_.emplace(key).second) deliver(level, message);
}

void Logger::deliver(LogLevel level, std::string_view text) {
  try {
    constexpr std::size_t kBytesOfEscape = 4;
    std::string message(std::min(kMaxMessageBytes, kBytesOfEscape * text.size()), '\0');
    message.resize(copy_printable(text, message));
    callback_(level, message);
  } catch (...) {  // NOLINT(bugprone-empty-catch): see the class comment
  }
}

}  // namespace octile
