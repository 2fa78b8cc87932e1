#include "cache/root.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

namespace octile::cache {
namespace {

// Any change of the layout below a root must change this name, so that versions can share a root.
constexpr const char* kVersionFolder = "v1";
constexpr mode_t kFolderMode = 0700;
// A publish takes milliseconds and a compile seconds, so an hour allows for any clock difference.
constexpr std::time_t kAbandonedSeconds = 3600;
constexpr std::time_t kDamagedSeconds = std::time_t{7} * 24 * 3600;
// Maximum for each folder: enough to inspect, even if many entries are corrupted.
constexpr int kMostDamaged = 4;
constexpr int kOpenFolderFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

}  // namespace

Root::Root(const std::string& path, bool writable, std::shared_ptr<FileOps> ops)
    : path_(absolute_path(path)), writable_(writable), ops_(std::move(ops)) {}

std::string Root::folder_path(const std::string& folder) const {
  return path_ + "/" + kVersionFolder + "/" + folder;
}

std::string Root::path_of(const FileStem& stem) const {
  return folder_path(stem.folder()) + "/" + stem.entry_name();
}

// --- folders ---

// Creates the root and the folders above it, as `mkdir -p` does.
IoResult<void> Root::create_root() const {
  for (std::size_t end = path_.find('/', 1);; end = path_.find('/', end + 1)) {
    const std::string prefix = path_.substr(0, end);
    const int made =
        retry_interrupted([&] { return ops_->mkdir_at(AT_FDCWD, prefix, kFolderMode); });
    if (made >= 0) {
      if (auto flushed = flush_above(prefix); !flushed) return flushed;
    }
    // Existing folders above the root may answer EROFS or EACCES; only the last one decides.
    if (end == std::string::npos) {
      if (made < 0 && made != -EEXIST) return io_failure("create", path_, made);
      return {};
    }
  }
}

// Flushes the name of a folder that was made. A folder above it that may be changed but not read
// cannot be flushed.
IoResult<void> Root::flush_above(const std::string& made) const {
  const std::size_t slash = made.rfind('/');
  const std::string parent = slash == 0 ? "/" : made.substr(0, slash);
  const OpenFile folder(*ops_, retry_interrupted([&] {
    return ops_->open_at(AT_FDCWD, parent, kOpenFolderFlags, 0);
  }));
  return folder.fd() < 0 ? IoResult<void>() : flush_folder(*ops_, folder, parent);
}

IoResult<OpenFile> Root::open(Missing missing) const {
  // The root itself may be a link, because its path is the operator's choice.
  const auto try_open = [&] { return ops_->open_at(AT_FDCWD, path_, kOpenFolderFlags, 0); };
  int fd = retry_interrupted(try_open);
  if (fd == -ENOENT && missing == Missing::kCreate) {
    if (const auto created = create_root(); !created) return tl::unexpected(created.error());
    fd = retry_interrupted(try_open);
  }
  if (fd < 0) return io_failure("open", path_, fd);
  OpenFile root(*ops_, fd);
  if (auto trusted = check_trusted(root, path_); !trusted) {
    if (writable_)
      trusted.error().sentence += fmt::format(
          "; a folder of this user's own below it will do, and cache_dir or OCTILE_CACHE_DIR {}/{} "
          "makes one for each user",
          path_, kUserInPath);
    return tl::unexpected(std::move(trusted.error()));
  }
  return root;
}

// A kernel is code: whoever may change a folder above it decides what runs.
IoResult<void> Root::check_trusted(const OpenFile& file, const std::string& path) const {
  struct stat status = {};
  const int result = retry_interrupted([&] { return ops_->stat_fd(file.fd(), status); });
  if (result < 0) return io_failure("stat", path, result);
  auto trusted = check_unwritable_by_others(status, path);
  if (!trusted) trusted.error().code = EPERM;
  return trusted;
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
    // Otherwise a loss of power may take the folder with everything that was flushed in it.
    if (made >= 0) {
      if (auto flushed = flush_folder(*ops_, parent, path); !flushed)
        return tl::unexpected(std::move(flushed.error()));
    }
    fd = retry_interrupted(open);
  }
  if (fd < 0) return io_failure("open", path, fd);
  OpenFile folder(*ops_, fd);
  if (const auto trusted = check_trusted(folder, path); !trusted)
    return tl::unexpected(trusted.error());
  return folder;
}

IoResult<OpenFile> Root::open_in_root(const std::string& name, Missing missing) const {
  const auto root = open(missing);
  if (!root) return tl::unexpected(root.error());
  return open_below(*root, name, path_ + "/" + name, missing);
}

IoResult<OpenFile> Root::open_version(Missing missing) const {
  return open_in_root(kVersionFolder, missing);
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

IoResult<std::vector<std::uint8_t>> Root::read(const FileStem& stem, std::size_t max_bytes,
                                               struct stat* status) const {
  const auto folder = open_folder(stem.folder(), Missing::kFail);
  if (!folder) return tl::unexpected(folder.error());
  const std::string path = path_of(stem);
  return read_file(*ops_, folder->fd(), stem.entry_name(), max_bytes, path,
                   [&](const struct stat& now) {
                     if (status != nullptr) *status = now;
                     return check_unwritable_by_others(now, path);
                   });
}

IoResult<std::vector<Root::Beginning>> Root::beginnings(const std::string& folder,
                                                        std::size_t most_bytes) const {
  std::vector<Beginning> found;
  auto walked = for_each_entry(folder, [&](const OpenFile& opened, FileStem stem) {
    const std::string path = path_of(stem);
    std::int64_t file_bytes = 0;
    auto bytes = read_beginning(*ops_, opened.fd(), stem.entry_name(), most_bytes, path,
                                [&](const struct stat& now) {
                                  file_bytes = now.st_size;
                                  return check_unwritable_by_others(now, path);
                                });
    if (!bytes && bytes.error().code == ENOENT) return;  // removed since the folder was listed
    found.push_back({std::move(stem), file_bytes, std::move(bytes)});
  });
  if (!walked) return tl::unexpected(std::move(walked.error()));
  return found;
}

void Root::touch(const FileStem& stem) const {
  const auto folder = open_folder(stem.folder(), Missing::kFail);
  if (folder) ops_->touch_at(folder->fd(), stem.entry_name());
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

IoResult<void> Root::for_each_entry(
    const std::string& folder,
    const std::function<void(const OpenFile& opened, FileStem stem)>& visit) const {
  const auto opened = open_folder(folder, Missing::kFail);
  if (!opened) {
    if (opened.error().code == ENOENT) return {};
    return tl::unexpected(opened.error());
  }
  const auto names = list(*opened, folder_path(folder));
  if (!names) return tl::unexpected(names.error());
  for (const std::string& name : *names) {
    auto parsed = parse_file_name(name);
    if (parsed && parsed->kind == FileKind::kEntry) visit(*opened, std::move(parsed->stem));
  }
  return {};
}

IoResult<std::vector<FileStem>> Root::entries(const std::string& folder) const {
  std::vector<FileStem> stems;
  auto walked = for_each_entry(
      folder, [&](const OpenFile&, FileStem stem) { stems.push_back(std::move(stem)); });
  if (!walked) return tl::unexpected(std::move(walked.error()));
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

IoResult<std::vector<Root::Item>> Root::items(const std::string& folder) const {
  std::vector<Item> found;
  auto walked = for_each_entry(folder, [&](const OpenFile& opened, FileStem stem) {
    Item item{std::move(stem), {}};
    // Entries whose status cannot be read are skipped: they are gone, or their reader reports the
    // error.
    if (ops_->stat_at(opened.fd(), item.stem.entry_name(), item.status) < 0) return;
    if (S_ISREG(item.status.st_mode)) found.push_back(std::move(item));
  });
  if (!walked) return tl::unexpected(std::move(walked.error()));
  return found;
}

// --- removing ---

IoResult<bool> Root::remove(const FileStem& stem, const struct stat& seen) const {
  const auto folder = open_folder(stem.folder(), Missing::kFail);
  if (!folder) {
    if (folder.error().code == ENOENT) return true;
    return tl::unexpected(folder.error());
  }
  struct stat now = {};
  const int result = ops_->stat_at(folder->fd(), stem.entry_name(), now);
  if (result == -ENOENT) return true;
  if (result < 0) return io_failure("stat", path_of(stem), result);
  if (!same_state(now, seen)) return false;
  const int removed =
      retry_interrupted([&] { return ops_->unlink_at(folder->fd(), stem.entry_name()); });
  if (removed < 0 && removed != -ENOENT) return io_failure("remove", path_of(stem), removed);
  return true;
}

void Root::set_aside(const FileStem& stem, const struct stat& status) const {
  const auto folder = open_folder(stem.folder(), Missing::kFail);
  if (!folder) return;
  const std::string name = stem.entry_name();
  const std::string damaged_name = stem.damaged_name();
  struct stat now = {};
  if (ops_->stat_at(folder->fd(), name, now) < 0 || !same_state(now, status)) return;
  std::vector<std::string> names;
  if (ops_->list(folder->fd(), names) < 0) return;
  const auto damaged = std::count_if(names.begin(), names.end(), [](const std::string& other) {
    const auto parsed = parse_file_name(other);
    return parsed && parsed->kind == FileKind::kDamaged;
  });
  if (damaged >= kMostDamaged || ops_->rename_at(folder->fd(), name, damaged_name) < 0) {
    ops_->unlink_at(folder->fd(), name);
    return;
  }
  // An entry that was published since the look gets its name back.
  if (ops_->stat_at(folder->fd(), damaged_name, now) >= 0 && !same_state(now, status))
    ops_->rename_at(folder->fd(), damaged_name, name);
}

void Root::tidy(const std::string& folder) const {
  const auto opened = open_folder(folder, Missing::kFail);
  if (opened) remove_abandoned(*opened);
}

// --- publishing ---

IoResult<void> Root::publish(const FileStem& stem, std::span<const std::uint8_t> bytes) const {
  IoResult<void> published;
  // Publishing is tried twice, because the folder may vanish between the calls: another process
  // removes it (`rm -r` of the cache), or a file server replaces it (ESTALE).
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
  return flush_folder(*ops_, folder, folder_path(stem.folder()));
}

void Root::remove_abandoned(const OpenFile& folder) const {
  std::vector<std::string> names;
  if (ops_->list(folder.fd(), names) < 0) return;
  const std::time_t now = std::time(nullptr);
  for (const std::string& name : names) {
    const auto parsed = parse_file_name(name);
    if (!parsed || parsed->kind == FileKind::kEntry) continue;
    struct stat status = {};
    const bool damaged = parsed->kind == FileKind::kDamaged;
    if (ops_->stat_at(folder.fd(), name, status) < 0) continue;
    if (now - status.st_mtime < (damaged ? kDamagedSeconds : kAbandonedSeconds)) continue;
    if (damaged || parsed->kind == FileKind::kTemporary) {
      ops_->unlink_at(folder.fd(), name);
      continue;
    }
    // Only the holder of a lock may remove it.
    const auto file = open_lock(folder, name);
    if (file && ops_->try_lock(file->fd()) >= 0 &&
        is_still(*ops_, folder, name, *file, name).value_or(false)) {
      ops_->unlink_at(folder.fd(), name);
    }
  }
}

}  // namespace octile::cache
