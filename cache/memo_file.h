// A small file of a writable root in which a process leaves what is slow to find out again. See
// FORMAT.md section 9.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "cache/file_ops.h"
#include "cache/root.h"

namespace octile::cache {

inline constexpr std::size_t kMaxMemoBytes = std::size_t{64} << 10;

// May be used by several threads and processes at once, because it keeps no file open.
class MemoFile {
 public:
  // `name` is that of a file in `folder`, which is directly in the root; empty: in the root itself.
  // file_ops null: the system's.
  MemoFile(const std::string& root, std::string name, std::shared_ptr<FileOps> file_ops = nullptr,
           std::string folder = {});

  // Returns the whole text. Errors: ENOENT if there is none; code 0 or EPERM if the root or the
  // file is refused: the file is a link, is not regular, has more than kMaxMemoBytes, or may be
  // written by another user than this one and root.
  IoResult<std::string> read() const;

  // Replaces the file by one with this text, through a temporary file and a rename, so that a
  // reader sees all of one text. Flushes the file before and its folder after the rename; if the
  // latter fails, the new text is there and a loss of power may take it. Creates missing folders. A
  // link, FIFO or device of that name is itself replaced; it is neither followed nor opened.
  // Removes temporary files of this name that dead processes left more than an hour ago.
  IoResult<void> replace(std::string_view text) const;

  const std::string& path() const { return path_; }

 private:
  IoResult<OpenFile> open_folder(Root::Missing missing) const;

  std::shared_ptr<FileOps> ops_;
  Root root_;
  std::string name_;
  std::string folder_;
  std::string path_;
};

}  // namespace octile::cache
