#include "tools/common/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <exception>
#include <utility>

#include "tools/common/output.h"

namespace octile::tools {
namespace {

using std::chrono::seconds;

}  // namespace

std::string time_left_text(std::chrono::duration<double> elapsed, std::size_t done,
                           std::size_t total) {
  if (done == 0 || done >= total) return {};
  const double left =
      elapsed.count() / static_cast<double>(done) * static_cast<double>(total - done);
  return left < 60 ? fmt::format(", about {:.0f} s left", left)
                   : fmt::format(", about {:.0f} min left", left / 60);
}

Progress::Progress(ProgressMode mode)
    : terminal_(::isatty(STDERR_FILENO) == 1),
      enabled_(terminal_ || mode == ProgressMode::kAlways) {
  if (!enabled_) return;
  try {
    watcher_ = std::thread([this] { watch(); });
  } catch (const std::exception&) {
    // The system refuses a thread: the steps are done without being shown.
  }
}

Progress::~Progress() {
  {
    const std::scoped_lock lock(mutex_);
    wipe();
    what_.reset();
    stopping_ = true;
  }
  changed_.notify_one();
  if (watcher_.joinable()) watcher_.join();
}

void Progress::step(std::string what) {
  {
    const std::scoped_lock lock(mutex_);
    wipe();
    what_ = std::move(what);
    began_ = Clock::now();
    counting_ = false;
  }
  changed_.notify_one();
}

void Progress::rename(std::string what) {
  const std::scoped_lock lock(mutex_);
  if (what_) what_ = std::move(what);
}

void Progress::count(std::size_t done, std::size_t total, std::string_view what) {
  {
    const std::scoped_lock lock(mutex_);
    if (!counting_ || !what_) {
      wipe();
      began_ = Clock::now();
      counting_ = true;
    }
    what_ = fmt::format("{} of {} {}{}", done, total, what,
                        time_left_text(Clock::now() - began_, done, total));
  }
  changed_.notify_one();
}

void Progress::done() {
  {
    const std::scoped_lock lock(mutex_);
    wipe();
    what_.reset();
    counting_ = false;
  }
  changed_.notify_one();
}

// Wakes one second after a step began, then every second on a terminal, and else every ten.
void Progress::watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (!what_) {
      changed_.wait(lock);
      continue;
    }
    const Clock::time_point step = began_;
    const auto pause = shown_ && !terminal_ ? seconds(10) : seconds(1);
    // A count that changes goes on waiting; what ends a step wakes.
    const auto ended = [&] { return stopping_ || !what_ || began_ != step; };
    if (!changed_.wait_for(lock, pause, ended)) show(Clock::now() - step);
  }
}

void Progress::show(Clock::duration elapsed) {
  const auto count = std::chrono::duration_cast<seconds>(elapsed).count();
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): called while there is something to show
  const std::string line = printable_line(fmt::format("  {} ... {} s", *what_, count));
  write_stderr_raw(terminal_ ? "\r\033[K" + line : line + "\n");
  shown_ = true;
}

void Progress::wipe() {
  if (shown_ && terminal_) {
    write_stderr_raw("\r\033[K");
  }
  shown_ = false;
}

}  // namespace octile::tools
