#include "cache/root.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <thread>

namespace octile::cache {
namespace {

// The layout below a root may change only together with this name, so that versions share a root.
constexpr const char* kVersionFolder = "v1";
constexpr mode_t kFolderMode = 0700;
// A publish takes milliseconds and a compile seconds; an hour forgives any clock difference.
constexpr std::time_t kAbandonedSeconds = 3600;
constexpr int kOpenFolderFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

// Absolute, so that a later chdir() does not move the cache; without a slash at the end.
std::string normal_path(const std::string& path) {
  std::error_code error;
  std::string text = std::filesystem::absolute(path, error).lexically_normal().string();
  if (error) return path;
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

}  // namespace

Root::Root(const std::string& path, bool writable, std::shared_ptr<FileOps> ops)
    : path_(normal_path(path)), writable_(writable), ops_(std::move(ops)) {}

std::string Root::folder_path(const std::string& folder) const {
  return path_ + "/" + kVersionFolder + "/" + folder;
}

std::string Root::path_of(const FileStem& stem) const {
  return folder_path(stem.folder()) + "/" + stem.entry_name();
}

// --- folders ---

// The root and what leads to it, as `mkdir -p` would.
IoResult<void> Root::create_root() const {
  for (std::size_t end = path_.find('/', 1);; end = path_.find('/', end + 1)) {
    const std::string prefix = path_.substr(0, end);
    const int made =
        retry_interrupted([&] { return ops_->mkdir_at(AT_FDCWD, prefix, kFolderMode); });
    // Folders on the way may be there and yet answer EROFS or EACCES; only the last one decides.
    if (end == std::string::npos) {
      if (made < 0 && made != -EEXIST) return io_failure("create", path_, made);
      return {};
    }
  }
}

IoResult<OpenFile> Root::open(Missing missing) const {
  // The root itself may be reached through a link: its path is the operator's choice.
  const auto try_open = [&] { return ops_->open_at(AT_FDCWD, path_, kOpenFolderFlags, 0); };
  int fd = retry_interrupted(try_open);
  if (fd == -ENOENT && missing == Missing::kCreate) {
    if (const auto created = create_root(); !created) return tl::unexpected(created.error());
    fd = retry_interrupted(try_open);
  }
  if (fd < 0) return io_failure("open", path_, fd);
  return OpenFile(*ops_, fd);
}

IoResult<OpenFile> Root::open_below(const OpenFile& parent, const std::string& name,
                                    const std::string& path, Missing missing) const {
  const auto open = [&] {
    return ops_->open_at(parent.fd(), name, kOpenFolderFlags | O_NOFOLLOW, 0);
  };
  int fd = retry_interrupted(open);
  if (fd == -ENOENT && missing == Missing::kCreate) {
    const int made =
        retry_interrupted([&] { return ops_->mkdir_at(parent.fd(), name, kFolderMode); });
    if (made < 0 && made != -EEXIST) return io_failure("create", path, made);
    fd = retry_interrupted(open);
  }
  if (fd < 0) return io_failure("open", path, fd);
  return OpenFile(*ops_, fd);
}

IoResult<OpenFile> Root::open_version(Missing missing) const {
  const auto root = open(missing);
  if (!root) return tl::unexpected(root.error());
  return open_below(*root, kVersionFolder, path_ + "/" + kVersionFolder, missing);
}

IoResult<OpenFile> Root::open_folder(const std::string& folder, Missing missing) const {
  const auto version = open_version(missing);
  if (!version) return tl::unexpected(version.error());
  return open_below(*version, folder, folder_path(folder), missing);
}

IoResult<void> Root::check() const {
  const auto root = open(Missing::kFail);
  if (!root) return tl::unexpected(root.error());
  return {};
}

// --- reading ---

IoResult<std::vector<std::uint8_t>> Root::read(const FileStem& stem, std::size_t max_bytes) const {
  const auto folder = open_folder(stem.folder(), Missing::kFail);
  if (!folder) return tl::unexpected(folder.error());
  return read_file(*ops_, folder->fd(), stem.entry_name(), max_bytes, path_of(stem));
}

IoResult<std::vector<std::string>> Root::list(const OpenFile& folder,
                                              const std::string& path) const {
  std::vector<std::string> names;
  const int listed = retry_interrupted([&] {
    names.clear();
    return ops_->list(folder.fd(), names);
  });
  if (listed < 0) return io_failure("list", path, listed);
  std::sort(names.begin(), names.end());
  return names;
}

IoResult<std::vector<FileStem>> Root::entries(const std::string& folder) const {
  std::vector<FileStem> stems;
  const auto opened = open_folder(folder, Missing::kFail);
  if (!opened) {
    if (opened.error().code == ENOENT) return stems;
    return tl::unexpected(opened.error());
  }
  const auto names = list(*opened, folder_path(folder));
  if (!names) return tl::unexpected(names.error());
  for (const std::string& name : *names) {
    auto parsed = parse_file_name(name);
    if (parsed && parsed->kind == FileKind::kEntry) stems.push_back(std::move(parsed->stem));
  }
  return stems;
}

IoResult<std::vector<std::string>> Root::folders() const {
  std::vector<std::string> found;
  const auto version = open_version(Missing::kFail);
  if (!version) {
    if (version.error().code == ENOENT) return found;
    return tl::unexpected(version.error());
  }
  auto names = list(*version, path_ + "/" + kVersionFolder);
  if (!names) return tl::unexpected(names.error());
  for (std::string& name : *names) {
    if (is_folder_name(name)) found.push_back(std::move(name));
  }
  return found;
}

// --- publishing ---

IoResult<void> Root::publish(const FileStem& stem, std::span<const std::uint8_t> bytes) const {
  IoResult<void> published;
  // Twice, because another process may remove a folder between the calls (`rm -r` of the cache), or
  // a file server may have exchanged it (ESTALE).
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto folder = open_folder(stem.folder(), Missing::kCreate);
    published = folder ? publish_in(*folder, stem, bytes) : tl::unexpected(folder.error());
    if (published) {
      remove_abandoned(*folder);
      return published;
    }
    const int code = published.error().code;
    if (code != ENOENT && code != ESTALE) return published;
  }
  return published;
}

IoResult<void> Root::publish_in(const OpenFile& folder, const FileStem& stem,
                                std::span<const std::uint8_t> bytes) const {
  const std::string temporary = stem.temporary_name();
  const std::string temporary_path = folder_path(stem.folder()) + "/" + temporary;
  if (auto written = write_new_file(*ops_, folder.fd(), temporary, bytes, temporary_path);
      !written) {
    return written;
  }
  const int renamed =
      retry_interrupted([&] { return ops_->rename_at(folder.fd(), temporary, stem.entry_name()); });
  if (renamed < 0) {
    ops_->unlink_at(folder.fd(), temporary);
    return io_failure("rename a temporary file to", path_of(stem), renamed);
  }
  const int synced = retry_interrupted([&] { return ops_->fsync(folder.fd()); });
  // EINVAL: a filesystem that cannot flush folders. Nothing is wrong with the entry.
  if (synced < 0 && synced != -EINVAL)
    return io_failure("fsync", folder_path(stem.folder()), synced);
  return {};
}

void Root::remove_abandoned(const OpenFile& folder) const {
  std::vector<std::string> names;
  if (ops_->list(folder.fd(), names) < 0) return;
  const std::time_t newest = std::time(nullptr) - kAbandonedSeconds;
  for (const std::string& name : names) {
    const auto parsed = parse_file_name(name);
    if (!parsed || parsed->kind == FileKind::kEntry) continue;
    struct stat status = {};
    if (ops_->stat_at(folder.fd(), name, status) < 0 || status.st_mtime > newest) continue;
    if (parsed->kind == FileKind::kTemporary) {
      ops_->unlink_at(folder.fd(), name);
      continue;
    }
    // A lock is removed only by whoever holds it.
    const auto file = open_lock(folder, name);
    if (file && ops_->try_lock(file->fd()) >= 0 && is_still(folder, name, *file).value_or(false)) {
      ops_->unlink_at(folder.fd(), name);
    }
  }
}

// --- locking ---

IoResult<OpenFile> Root::open_lock(const OpenFile& folder, const std::string& name) const {
  // For writing: over NFS an exclusive flock() is a write lock and asks for it.
  constexpr int kFlags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
  const int fd = retry_interrupted([&] { return ops_->open_at(folder.fd(), name, kFlags, 0600); });
  if (fd < 0) return io_failure("open", folder_path(name.substr(0, 2)) + "/" + name, fd);
  return OpenFile(*ops_, fd);
}

// Whether the name still stands for the file that was opened.
IoResult<bool> Root::is_still(const OpenFile& folder, const std::string& name,
                              const OpenFile& file) const {
  struct stat opened = {};
  struct stat named = {};
  int result = retry_interrupted([&] { return ops_->stat_fd(file.fd(), opened); });
  if (result >= 0) {
    result = retry_interrupted([&] { return ops_->stat_at(folder.fd(), name, named); });
    if (result == -ENOENT) return false;
  }
  if (result < 0) return io_failure("stat", folder_path(name.substr(0, 2)) + "/" + name, result);
  return opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

IoResult<std::unique_ptr<HeldLock>> Root::lock(const FileStem& stem,
                                               std::chrono::milliseconds timeout) const {
  using Clock = std::chrono::steady_clock;
  using std::chrono::milliseconds;
  constexpr milliseconds kLongestPause{20};  // a cold compile is 100 ms and more
  const auto deadline = Clock::now() + timeout;
  auto folder = open_folder(stem.folder(), Missing::kCreate);
  if (!folder) return tl::unexpected(folder.error());
  const std::string name = stem.lock_name();

  for (milliseconds pause{1};; pause = std::min(2 * pause, kLongestPause)) {
    auto file = open_lock(*folder, name);
    if (!file) return tl::unexpected(file.error());
    const int locked = retry_interrupted([&] { return ops_->try_lock(file->fd()); });
    if (locked >= 0) {
      const auto still = is_still(*folder, name, *file);
      if (!still) return tl::unexpected(still.error());
      if (*still) {
        return std::make_unique<HeldLock>(ops_, std::move(*folder), name, std::move(*file));
      }
    } else if (locked != -EWOULDBLOCK) {
      return io_failure("lock", folder_path(stem.folder()) + "/" + name, locked);
    }
    const auto now = Clock::now();
    if (now >= deadline) return std::unique_ptr<HeldLock>();
    std::this_thread::sleep_for(std::min<Clock::duration>(pause, deadline - now));
  }
}

}  // namespace octile::cache
