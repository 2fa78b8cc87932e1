#include "cache/tuning_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "cache/appended_lines.h"

namespace octile::cache {
namespace {

constexpr const char* kTuningName = "tuning.jsonl";
constexpr const char* kRanksName = "tuning.d";
constexpr std::string_view kExtension = ".jsonl";

}  // namespace

TuningLines parse_tuning_lines(std::string_view text) {
  TuningLines lines;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    const bool whole = end != std::string_view::npos;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(whole ? end + 1 : text.size());
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (lines.records.size() == kMaxTuningRecords) {
      lines.full = true;
      break;
    }
    auto record = parse_tuning_record(line);
    if (record) {
      lines.records.push_back(std::move(*record));
    } else if (!whole && line.size() <= kMaxTuningLineBytes) {
      lines.torn = true;
    } else if (lines.skipped++ == 0) {
      lines.first_skipped = fmt::format("line {}: {}", number, record.error());
    } else if (lines.skipped > kMaxSkippedLines) {
      lines.cut = true;
      break;
    }
  }
  return lines;
}

IoResult<std::vector<std::string>> tuning_file_names(FileOps& ops, int dir_fd,
                                                     const std::string& path) {
  std::vector<std::string> found;
  const int fd = retry_interrupted(
      [&] { return ops.open_at(dir_fd, kRanksName, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0); });
  if (fd >= 0) {
    const OpenFile ranks(ops, fd);
    std::vector<std::string> names;
    if (const int listed = ops.list(fd, names); listed < 0)
      return io_failure("list", path + "/" + kRanksName, listed);
    for (const std::string& name : names)
      if (name.ends_with(kExtension)) found.push_back(std::string(kRanksName) + "/" + name);
  } else if (fd != -ENOENT) {
    return io_failure("open", path + "/" + kRanksName, fd);
  }
  std::ranges::sort(found);
  struct stat status = {};
  if (retry_interrupted([&] { return ops.stat_at(dir_fd, kTuningName, status); }) >= 0)
    found.insert(found.begin(), kTuningName);
  return found;
}

TuningFile::TuningFile(const std::string& root, bool writable, std::shared_ptr<FileOps> file_ops,
                       std::chrono::milliseconds lock_timeout)
    : ops_(or_system(std::move(file_ops))),
      root_(root, writable, ops_),
      name_(kTuningName),
      path_(root_.path() + "/" + kTuningName),
      lock_timeout_(lock_timeout) {}

TuningFile TuningFile::of_rank(const std::string& root, bool writable, const std::string& rank,
                               std::shared_ptr<FileOps> file_ops) {
  TuningFile file(root, writable, std::move(file_ops));
  file.of_rank_ = true;
  file.name_ = fmt::format("{}{}", rank, kExtension);
  file.path_ = fmt::format("{}/{}/{}", file.root_.path(), kRanksName, file.name_);
  return file;
}

IoResult<OpenFile> TuningFile::open_folder(Root::Missing missing) const {
  return of_rank_ ? root_.open_in_root(kRanksName, missing) : root_.open(missing);
}

// A record decides which kernel runs, so nobody else may write one. The owner of a read-only root's
// files is the choice of whoever named that root.
IoResult<void> TuningFile::check(const struct stat& status) const {
  const auto refuse = [&](const std::string& why) {
    return tl::unexpected(IoError{0, fmt::format("{}: {}", path_, why)});
  };
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return refuse(fmt::format("its mode is {:04o}; allowed: not writable by group or others",
                              status.st_mode & 07777U));
  }
  if (writable() && status.st_uid != 0 && status.st_uid != ::geteuid()) {
    return refuse(fmt::format("it belongs to user {}; allowed: this user ({}) or root",
                              status.st_uid, ::geteuid()));
  }
  return {};
}

// Opens the file, for which a client of NFS asks the server.
TuningStamp TuningFile::stamp() const {
  const auto folder = open_folder(Root::Missing::kFail);
  struct stat status = {};
  if (!folder || !open_regular(*ops_, folder->fd(), name_, O_RDONLY, 0, path_, nullptr, &status))
    return {};
  return {status.st_size,
          status.st_mtim.tv_sec * std::int64_t{1'000'000'000} + status.st_mtim.tv_nsec,
          status.st_dev, status.st_ino};
}

IoResult<TuningLines> TuningFile::read() const {
  const auto text = read_text();
  if (!text) return tl::unexpected(text.error());
  return parse_tuning_lines(*text);
}

IoResult<std::string> TuningFile::read_text() const {
  const auto folder = open_folder(Root::Missing::kFail);
  if (!folder) {
    if (folder.error().code == ENOENT) return std::string();
    return tl::unexpected(folder.error());
  }
  const auto bytes = read_file(*ops_, folder->fd(), name_, kMaxTuningFileBytes, path_,
                               [this](const struct stat& status) { return check(status); });
  if (!bytes) {
    if (bytes.error().code == ENOENT) return std::string();
    return tl::unexpected(bytes.error());
  }
  return std::string(bytes->begin(), bytes->end());
}

// --- appending ---

IoResult<void> TuningFile::append(const TuningRecord& record) const {
  std::string line = to_json_line(record);
  if (const auto read_back = parse_tuning_record(line); !read_back) {
    return tl::unexpected(IoError{0, fmt::format("{}: {}", path_, read_back.error())});
  }
  return append_lines({std::move(line)});
}

IoResult<void> TuningFile::append_lines(const std::vector<std::string>& lines) const {
  if (!writable()) {
    return tl::unexpected(IoError{EROFS, fmt::format("{}: its root is read-only", path_)});
  }
  const auto folder = open_folder(Root::Missing::kCreate);
  if (!folder) return tl::unexpected(folder.error());
  return cache::append_lines(
      {*ops_, *folder, name_, path_, [this](const struct stat& status) { return check(status); }},
      lines, of_rank_ ? std::chrono::milliseconds(0) : lock_timeout_);
}

}  // namespace octile::cache
