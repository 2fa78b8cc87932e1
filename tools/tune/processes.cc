#include "tools/tune/processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string_view>
#include <system_error>
#include <utility>

namespace octile::tools {
namespace {

constexpr const char* kError = "error";  // the member of a line that says how the work failed

// The parent reads as long as it lives, and this process does not live longer.
void write_line(int fd, const Json& line) {
  const std::string text = line.dump_ascii() + "\n";
  for (std::size_t written = 0; written < text.size();) {
    const ssize_t count = ::write(fd, text.data() + written, text.size() - written);
    if (count < 0 && errno != EINTR) return;
    if (count > 0) written += static_cast<std::size_t>(count);
  }
}

Status guarded(const Processes::Work& work, const Processes::Tell& tell) {
  try {
    return work(tell);
  } catch (const std::exception& error) {
    return fail(ErrorCode::kInternal, error.what());
  }
}

// Does the work in the child and ends it, without the parent's handlers of exit.
[[noreturn]] void live(pid_t parent, int fd, const Processes::Work& work) {
  constexpr int kFailed = 1;
  (void)::setpgid(0, 0);
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kFailed);  // it ended before the system was told
  const Status done = guarded(work, [fd](const Json& line) { write_line(fd, line); });
  if (!done)
    write_line(fd, {{kError, done.error().message}, {"code", static_cast<int>(done.error().code)}});
  (void)std::fflush(nullptr);
  ::_exit(done ? 0 : kFailed);
}

tl::unexpected<Error> no_process(const std::string& name) {
  return fail(ErrorCode::kInternal, fmt::format("a process for {} cannot be started: {}", name,
                                                std::generic_category().message(errno)));
}

}  // namespace

std::string end_text(const Process& process) {
  if (!process.result) return process.result.error().message;
  if (WIFSIGNALED(process.wait_status)) {
    const int number = WTERMSIG(process.wait_status);
    const char* description = ::sigdescr_np(number);
    return fmt::format("was ended by signal {} ({})", number,
                       description != nullptr ? description : "unknown");
  }
  return fmt::format("ended with status {}", WEXITSTATUS(process.wait_status));
}

Processes::~Processes() {
  for (const Process& process : all_) {
    if (process.ended()) continue;
    (void)::kill(process.number, SIGKILL);
    (void)::waitpid(process.number, nullptr, 0);
    (void)::close(process.reports_fd);
  }
}

Status Processes::start(std::string name, const Work& work) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return no_process(name);
  (void)std::fflush(nullptr);  // what is buffered would be written twice
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    for (const Process& other : all_) (void)::close(other.reports_fd);
    (void)::close(ends[0]);
    live(parent, ends[1], work);
  }
  (void)::close(ends[1]);
  if (child < 0) {
    (void)::close(ends[0]);
    return no_process(name);
  }
  all_.push_back({.name = std::move(name), .number = child, .reports_fd = ends[0]});
  return {};
}

// Reads what a process has reported. At the end of its pipe the process has ended, or is about to.
void Processes::hear(Process& process, const Listener& listener) {
  std::array<char, 16384> bytes{};
  const ssize_t count = ::read(process.reports_fd, bytes.data(), bytes.size());
  if (count < 0 && errno == EINTR) return;
  if (count > 0) {
    process.unread.append(bytes.data(), static_cast<std::size_t>(count));
    std::size_t begin = 0;
    for (std::size_t end = 0; (end = process.unread.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      const auto line =
          parse_object(std::string_view(process.unread).substr(begin, end - begin), "");
      if (!line) continue;
      if (const Json* error = line->find(kError)) {
        process.result =
            fail(static_cast<ErrorCode>(line->at("code").integer().value_or(0)), *error->string());
      } else {
        listener.heard(process, *line);
      }
    }
    process.unread.erase(0, begin);
    return;
  }
  (void)::close(std::exchange(process.reports_fd, -1));
  while (::waitpid(process.number, &process.wait_status, 0) < 0 && errno == EINTR) {
  }
  listener.ended(process);
}

void Processes::wait(const Listener& listener) {
  constexpr int kPauseMs = 100;  // an interrupt may come just before the call of poll
  bool passed_on = false;
  for (;;) {
    if (!passed_on && listener.is_interrupted()) {
      passed_on = true;
      for (const Process& process : all_) {
        if (!process.ended()) (void)::kill(process.number, SIGINT);
      }
    }
    std::vector<pollfd> waits;
    for (const Process& process : all_) waits.push_back({process.reports_fd, POLLIN, 0});
    if (std::ranges::all_of(all_, &Process::ended)) return;
    if (::poll(waits.data(), waits.size(), kPauseMs) <= 0) continue;
    for (std::size_t i = 0; i < waits.size(); ++i) {
      if (waits[i].revents != 0) hear(all_[i], listener);
    }
  }
}

}  // namespace octile::tools
