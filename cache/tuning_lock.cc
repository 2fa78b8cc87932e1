#include "cache/tuning_lock.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace octile::cache {

TuningLock::TuningLock(const std::string& root, std::string_view device, int sm_count,
                       std::shared_ptr<FileOps> file_ops)
    : ops_(or_system(std::move(file_ops))),
      root_(root, true, ops_),
      shared_(!root.empty()),
      name_(fmt::format("tuning.{}-{}.lock", device, sm_count)) {
  // A driver may name a device as it likes.
  std::ranges::replace(name_, '/', '-');
}

bool TuningLock::try_take() {
  if (!shared_) return true;
  const auto folder = root_.open(Root::Missing::kCreate);
  if (!folder) return true;
  const std::string path = root_.path() + "/" + name_;
  auto file = open_regular(*ops_, folder->fd(), name_, O_RDWR | O_CREAT, 0600, path,
                           unwritable_by_others(path));
  if (!file) return true;
  const int locked = retry_interrupted([&] { return ops_->try_lock(file->fd()); });
  if (locked == -EWOULDBLOCK) return false;
  file_ = std::move(*file);
  return true;
}

}  // namespace octile::cache
