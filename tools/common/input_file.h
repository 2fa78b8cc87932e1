// A file that the user names for reading, or standard input. It is read once, from its beginning to
// its end, so that a pipe serves as a file does.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/file_ops.h"
#include "generator/core/error.h"

namespace octile::tools {

class InputFile {
 public:
  // "-" and "/dev/stdin" are standard input as it is. Links are followed, because the user names
  // the file. Waits for the writer of a FIFO. Errors: kInvalidArgument, a sentence that begins with
  // name().
  static Result<InputFile> open(const std::string& path);
  // Opens a file that the user did not name, such as one of a folder: a regular file alone, and
  // nothing is waited for. Errors: as open().
  static Result<InputFile> open_regular(const std::string& path);

  const std::string& name() const { return name_; }  // "standard input" for these two
  // Returns true if its bytes can be read more than once.
  bool is_regular() const { return owned_.fd() >= 0 && S_ISREG(mode_); }
  // Returns the size of a regular file when it was opened.
  std::uint64_t bytes() const { return bytes_; }
  // Returns its size now, which another process may have changed.
  std::uint64_t bytes_now() const;

  // Reads the bytes from `offset` on. Returns how many, 0 only at the end. For regular files.
  Result<std::size_t> read_at(std::span<std::uint8_t> into, std::int64_t offset) const;
  // Reads the next bytes. Returns how many, 0 only at the end.
  Result<std::size_t> read_next(std::span<std::uint8_t> into) const;
  // Returns what follows. Errors: kInvalidArgument if that is more than `most_bytes`.
  Result<std::vector<std::uint8_t>> read_all(std::size_t most_bytes) const;

 private:
  InputFile(std::string name, int fd, bool owned);
  static Result<InputFile> open_named(const std::string& path);
  Result<InputFile> examined() &&;
  void wait_for_writer() const;

  tl::unexpected<Error> failure(int error) const;

  std::string name_;
  std::shared_ptr<cache::FileOps> ops_;
  cache::OpenFile owned_;  // nothing for standard input
  int fd_ = -1;
  mode_t mode_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace octile::tools
