#include "runtime/base/log.h"

#include <utility>

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

void Logger::deliver(LogLevel level, const std::string& message) {
  try {
    if (message.size() <= kMaxMessageBytes) return callback_(level, message);
    constexpr std::string_view kCut = " ...";
    callback_(level, message.substr(0, kMaxMessageBytes - kCut.size()).append(kCut));
  } catch (...) {  // NOLINT(bugprone-empty-catch): see the class comment
  }
}

}  // namespace octile
