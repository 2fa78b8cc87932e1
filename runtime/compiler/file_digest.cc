#include "runtime/compiler/file_digest.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/base/fork.h"

namespace octile {
namespace {

using cache::FileOps;
using cache::IoError;
using cache::IoResult;
using cache::OpenFile;

tl::unexpected<Error> unreadable(const std::string& path, const IoError& error) {
  return fail(ErrorCode::kNoCompiler,
              fmt::format("\"{}\" cannot be read: {}", path, error.sentence));
}

struct Opened {
  OpenFile file;
  std::string path;
  struct stat status = {};
};

IoResult<Opened> open(FileOps& ops, const std::string& path) {
  auto resolved = cache::resolve_links(path);
  if (!resolved) return tl::unexpected(resolved.error());
  Opened opened{{}, std::move(*resolved), {}};
  auto file = cache::open_regular(
      ops, AT_FDCWD, opened.path, O_RDONLY, 0, opened.path,
      [&](const struct stat& status) -> IoResult<void> {
        if (static_cast<std::uint64_t>(status.st_size) <= kMaxDigestedBytes) return {};
        return tl::unexpected(
            IoError{0, fmt::format("{}: {} bytes, at most {} are read", opened.path, status.st_size,
                                   kMaxDigestedBytes)});
      },
      &opened.status);
  if (!file) return tl::unexpected(file.error());
  opened.file = std::move(*file);
  return opened;
}

std::string line_of(const std::string& path, const struct stat& s) {
  return fmt::format("file {} size {} mtime {}.{:09} ctime {}.{:09} inode {}\n", path, s.st_size,
                     s.st_mtim.tv_sec, s.st_mtim.tv_nsec, s.st_ctim.tv_sec, s.st_ctim.tv_nsec,
                     s.st_ino);
}

// Reads at most as many bytes as the file had when it was opened, so that a file that grows ends.
Result<std::string> read_and_hash(FileOps& ops, const Opened& opened) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              &XXH3_freeState);
  if (state == nullptr) return fail(ErrorCode::kOutOfMemory, "no memory for a digest");
  XXH3_128bits_reset(state.get());
  std::vector<std::uint8_t> buffer(std::size_t{1} << 20);
  for (auto left = static_cast<std::uint64_t>(opened.status.st_size); left > 0;) {
    const std::size_t wanted = std::min<std::uint64_t>(left, buffer.size());
    const auto count =
        cache::read_next(ops, opened.file, std::span(buffer).first(wanted), opened.path);
    if (!count) return unreadable(opened.path, count.error());
    XXH3_128bits_update(state.get(), buffer.data(), *count);
    if (*count < wanted) break;
    left -= *count;
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

// By status. Never destroyed: threads may still run when the process exits. Guarded by
// ProcessWide::kDigests, which nobody holds while a file is read: no fork waits for that.
std::map<std::string, std::string>& digests() {
  static auto& all = *new std::map<std::string, std::string>;
  return all;
}

std::optional<std::string> remembered(const std::string& status) {
  const std::scoped_lock lock(process_mutex(ProcessWide::kDigests));
  const auto found = digests().find(status);
  return found == digests().end() ? std::nullopt : std::optional(found->second);
}

void remember(const std::string& status, const std::string& digest) {
  const std::scoped_lock lock(process_mutex(ProcessWide::kDigests));
  digests()[status] = digest;
}

}  // namespace

Result<std::string> file_digest(const std::string& path) {
  FileOps ops;
  const auto opened = open(ops, path);
  if (!opened) return unreadable(path, opened.error());
  const std::string key = line_of(opened->path, opened->status);
  if (auto known = remembered(key)) return std::move(*known);
  auto digest = read_and_hash(ops, *opened);
  if (!digest) return digest;
  struct stat after = {};
  const int asked = ops.stat_fd(opened->file.fd(), after);
  if (asked >= 0 && line_of(opened->path, after) == key) remember(key, *digest);
  return digest;
}

Result<std::string> status_text(FileOps& ops, const std::string& path) {
  const auto opened = open(ops, path);
  if (!opened) return unreadable(path, opened.error());
  return line_of(opened->path, opened->status);
}

}  // namespace octile
