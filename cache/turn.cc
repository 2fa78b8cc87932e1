#include "cache/turn.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

namespace octile::cache {
namespace {

constexpr const char* kTurnsName = "turns";
// The last line of a file is the word of its owner. An empty file has none.
constexpr std::string_view kFailed = "failed\n";
constexpr std::string_view kTaken = "taken\n";

std::span<const std::uint8_t> word(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

}  // namespace

Turn::Turn(const std::string& root, std::string name, std::shared_ptr<FileOps> ops)
    : ops_(or_system(std::move(ops))),
      root_(root, true, ops_),
      shared_(!root.empty()),
      name_(std::move(name)),
      path_(fmt::format("{}/{}/{}", root_.path(), kTurnsName, name_)) {}

IoResult<TurnState> Turn::try_take() {
  if (!shared_ || is_mine()) return TurnState::kMine;
  const auto folder = root_.open_in_root(kTurnsName, Root::Missing::kCreate);
  if (!folder) return tl::unexpected(folder.error());
  // Opened for writing, because over NFS an exclusive flock() is a write lock and requires it.
  auto file = open_regular(*ops_, folder->fd(), name_, O_RDWR | O_CREAT | O_APPEND, 0600, path_,
                           unwritable_by_others(path_));
  if (!file) return tl::unexpected(file.error());
  const int locked = retry_interrupted([&] { return ops_->try_lock(file->fd()); });
  if (locked == -EWOULDBLOCK) return state_of_other(*file);
  file_ = std::move(*file);
  struct stat status = {};
  if (ops_->stat_fd(file_.fd(), status) >= 0 && status.st_size > 0)
    (void)ops_->write(file_.fd(), word(kTaken));
  return TurnState::kMine;
}

IoResult<TurnState> Turn::state_of_other(const OpenFile& file) const {
  struct stat status = {};
  if (const int result = ops_->stat_fd(file.fd(), status); result < 0)
    return io_failure("stat", path_, result);
  std::array<std::uint8_t, kFailed.size()> last{};
  const auto begin = status.st_size - static_cast<off_t>(last.size());
  if (begin < 0) return TurnState::kTaken;
  const ssize_t read = retry_interrupted([&] { return ops_->read_at(file.fd(), last, begin); });
  if (read < 0) return io_failure("read", path_, read);
  const std::string_view said{reinterpret_cast<const char*>(last.data()), last.size()};
  return said == kFailed ? TurnState::kFailed : TurnState::kTaken;
}

void Turn::fail() {
  if (is_mine()) (void)ops_->write(file_.fd(), word(kFailed));
}

void Turn::give_back() { file_.close(); }

}  // namespace octile::cache
