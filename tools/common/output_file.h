// A file that the command writes for the user: whole under its name, or not there at all.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "cache/file_ops.h"
#include "generator/core/error.h"

namespace octile::tools {

// Writes to a temporary file of a name of its own beside the target. commit() flushes it to the
// device and renames it; the destructor, and SIGHUP, SIGINT and SIGTERM meanwhile, remove it.
// Any number of processes may write one target: each commits a whole file. A process has at most
// one OutputFile at a time, and creates and destroys it in the main thread.
class OutputFile {
 public:
  // "-" is stdout, which commit() leaves as it is. Removes temporary files that dead processes left
  // in the target's folder more than an hour ago. Errors: kInvalidArgument if the target exists and
  // is not a regular file (a link is none), kInternal if the temporary file cannot be created.
  // file_ops null: the system's.
  static Result<OutputFile> create(const std::string& path,
                                   std::shared_ptr<cache::FileOps> file_ops = nullptr);
  OutputFile(OutputFile&&) noexcept;
  OutputFile& operator=(OutputFile&&) noexcept;
  ~OutputFile();

  // Errors: kInternal, naming the file and the system's reason.
  Status write(std::span<const std::uint8_t> bytes);
  // Errors: those of create(), because the target may have changed since; kInternal, naming the
  // call that failed.
  Status commit();

 private:
  struct Impl;
  int fd() const;
  explicit OutputFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Returns the error that create() has for the target, and leaves nothing: for commands that write
// it at the end of long work.
Status check_output_file(const std::string& path);

// Writes a whole file. Errors: those of OutputFile; kInternal if the bytes cannot be written.
Status write_output_file(const std::string& path, std::string_view bytes);

}  // namespace octile::tools
