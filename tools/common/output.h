// The one place where the command writes to stdout and stderr. Texts may come from files of others
// (the metadata of an imported entry, a path), so what a terminal obeys is escaped (printable()).
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "generator/core/error.h"
#include "runtime/base/printable.h"

namespace octile::tools {

// Print printable(text). stdout remembers a failure, which check_stdout() reports. A failure of
// stderr is ignored, because nothing is left to tell it to. Neither throws.
void write_stdout(std::string_view text) noexcept;
void write_stderr(std::string_view text) noexcept;
// Prints bytes as they are, such as a terminal's codes.
void write_stderr_raw(std::string_view bytes) noexcept;

// Prints a heading to stdout, bold on a terminal with colours.
void print_heading(std::string_view text) noexcept;
// Prints "octile: " and the sentence to stderr, the name red on a terminal with colours.
void print_error(std::string_view sentence) noexcept;

template <typename... Values>
void print_stdout(fmt::format_string<Values...> format, Values&&... values) {
  write_stdout(fmt::format(format, std::forward<Values>(values)...));
}

// Prints nothing if there is no memory for the text.
template <typename... Values>
void print_stderr(fmt::format_string<Values...> format, Values&&... values) noexcept {
  try {
    write_stderr(fmt::format(format, std::forward<Values>(values)...));
  } catch (...) {  // NOLINT(bugprone-empty-catch): there is no place to report it
  }
}

// Opens those of the descriptors 0, 1 and 2 that are closed, so that no file of the cache gets
// their numbers and with them the command's output. Writing to such a descriptor fails.
void open_standard_streams();

// Makes a write beyond the limit of a file's size (`ulimit -f`) an error of that write. Otherwise
// SIGXFSZ would end the command, and leave its temporary file.
void take_size_limits_as_errors();

// Flushes stdout. Errors: kInternal if any output since the start could not be written.
Status check_stdout();

}  // namespace octile::tools
