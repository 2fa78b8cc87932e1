#include "cache/memo_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <span>
#include <utility>
#include <vector>

#include "cache/file_name.h"

namespace octile::cache {

MemoFile::MemoFile(const std::string& root, std::string name, std::shared_ptr<FileOps> file_ops)
    : ops_(or_system(std::move(file_ops))),
      root_(root, true, ops_),
      name_(std::move(name)),
      path_(root_.path() + "/" + name_) {}

IoResult<std::string> MemoFile::read() const {
  const auto folder = root_.open(Root::Missing::kFail);
  if (!folder) return tl::unexpected(folder.error());
  const auto bytes =
      read_file(*ops_, folder->fd(), name_, kMaxMemoBytes, path_, unwritable_by_others(path_));
  if (!bytes) return tl::unexpected(bytes.error());
  return std::string(bytes->begin(), bytes->end());
}

IoResult<void> MemoFile::replace(std::string_view text) const {
  if (text.size() > kMaxMemoBytes) {
    return tl::unexpected(IoError{
        0, fmt::format("{}: {} bytes; allowed: at most {}", path_, text.size(), kMaxMemoBytes)});
  }
  const auto folder = root_.open(Root::Missing::kCreate);
  if (!folder) return tl::unexpected(folder.error());
  remove_abandoned(*folder);
  const std::string temporary = temporary_name_of(name_);
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  auto written =
      write_new_file(*ops_, folder->fd(), temporary, bytes, root_.path() + "/" + temporary);
  if (!written) return written;
  const int renamed =
      retry_interrupted([&] { return ops_->rename_at(folder->fd(), temporary, name_); });
  if (renamed < 0) {
    ops_->unlink_at(folder->fd(), temporary);
    return io_failure("rename a temporary file to", path_, renamed);
  }
  return flush_folder(*ops_, *folder, root_.path());
}

void MemoFile::remove_abandoned(const OpenFile& folder) const {
  constexpr std::time_t kAbandonedSeconds = 3600;  // writing one takes milliseconds
  std::vector<std::string> names;
  if (ops_->list(folder.fd(), names) < 0) return;
  const std::time_t now = std::time(nullptr);
  for (const std::string& name : names) {
    struct stat status = {};
    if (!is_temporary_name_of(name_, name)) continue;
    if (ops_->stat_at(folder.fd(), name, status) < 0) continue;
    if (now - status.st_mtime >= kAbandonedSeconds) ops_->unlink_at(folder.fd(), name);
  }
}

}  // namespace octile::cache
