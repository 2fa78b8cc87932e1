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
  }
  changed_.notify_one();
}

void Progress::done() {
  {
    const std::scoped_lock lock(mutex_);
    wipe();
    what_.reset();
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
    if (changed_.wait_for(lock, pause) == std::cv_status::timeout && what_ && began_ == step) {
      show(Clock::now() - step);
    }
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
