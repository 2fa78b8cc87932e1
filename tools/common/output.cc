#include "tools/common/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <system_error>

#include "tools/common/terminal.h"

namespace octile::tools {
namespace {

int stdout_error = 0;  // errno of the first failure

void write(std::FILE* file, std::string_view bytes) noexcept {
  errno = 0;
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  if (!written && file == stdout && stdout_error == 0) stdout_error = errno != 0 ? errno : EIO;
}

void write_printable(std::FILE* file, std::string_view text) noexcept {
  try {
    write(file, printable(text));
  } catch (...) {
    if (file == stdout && stdout_error == 0) stdout_error = ENOMEM;
  }
}

}  // namespace

void write_stdout(std::string_view text) noexcept { write_printable(stdout, text); }
void write_stderr(std::string_view text) noexcept { write_printable(stderr, text); }
void write_stderr_raw(std::string_view bytes) noexcept {
  write(stderr, bytes);
  (void)std::fflush(stderr);
}

void print_heading(std::string_view text) noexcept {
  const bool bold = stdout_has_colours();
  const std::size_t end = text.find_last_not_of('\n') + 1;
  if (bold) write(stdout, "\033[1m");
  write_printable(stdout, text.substr(0, end));
  if (bold) write(stdout, "\033[0m");
  write_printable(stdout, text.substr(end));
}

void print_error(std::string_view sentence) noexcept {
  write(stderr, stderr_has_colours() ? "\033[31moctile:\033[0m " : "octile: ");
  write_printable(stderr, sentence);
  write(stderr, "\n");
}

void open_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is this one. The wrong direction makes every use fail.
    (void)::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void take_size_limits_as_errors() { (void)std::signal(SIGXFSZ, SIG_IGN); }

Status check_stdout() {
  errno = 0;
  if (std::fflush(stdout) != 0 && stdout_error == 0) stdout_error = errno != 0 ? errno : EIO;
  if (stdout_error == 0) return {};
  return fail(ErrorCode::kInternal, fmt::format("stdout cannot be written: {}",
                                                std::generic_category().message(stdout_error)));
}

}  // namespace octile::tools
