#include "tools/common/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <system_error>

#include "tools/common/terminal.h"

namespace octile::tools {
namespace {

int stdout_error = 0;  // errno of the first failure

// Returns the length of the UTF-8 sequence at the beginning, or 0 if there is none: no byte, an
// overlong form, a surrogate, a value above U+10FFFF.
std::size_t sequence_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return 0;
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool beyond = (first == 0xed && second > 0x9f) || (first == 0xf4 && second > 0x8f);
  return overlong || beyond ? 0 : bytes;
}

bool is_control(std::string_view sequence) {
  const auto first = static_cast<unsigned char>(sequence[0]);
  if (sequence.size() == 1) return first < 0x20 || first == 0x7f;
  // U+0080 to U+009F
  return sequence.size() == 2 && first == 0xc2 && static_cast<unsigned char>(sequence[1]) < 0xa0;
}

std::string escaped(std::string_view text, std::string_view kept) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const std::size_t bytes = sequence_bytes(text);
    const std::string_view sequence = text.substr(0, bytes == 0 ? 1 : bytes);
    text.remove_prefix(sequence.size());
    const bool harmless = bytes != 0 && !is_control(sequence);
    if (harmless || (bytes == 1 && kept.find(sequence[0]) != std::string_view::npos)) {
      result += sequence;
      continue;
    }
    for (const char c : sequence) result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return result;
}

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

std::string printable(std::string_view text) { return escaped(text, "\n\t"); }
std::string printable_line(std::string_view text) { return escaped(text, ""); }

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
