#include "runtime/tuned/record_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <iterator>
#include <system_error>
#include <utility>

#include "cache/file_name.h"
#include "cache/file_ops.h"
#include "cache/tuning_file.h"

namespace octile {
namespace {

tl::unexpected<Error> unusable(std::string sentence) {
  return fail(ErrorCode::kInvalidArgument, std::move(sentence));
}

std::string meaning_of(ssize_t result) {
  return std::generic_category().message(static_cast<int>(-result));
}

std::string within(const std::string& folder, std::string_view name) {
  return fmt::format("{}{}{}", folder, folder.ends_with('/') ? "" : "/", name);
}

Status write_new(cache::FileOps& ops, const cache::OpenFile& folder, const std::string& name,
                 std::string_view text, const std::string& path) {
  // Whatever the umask allows, as for a file that a user's program writes.
  const int fd =
      ops.open_at(folder.fd(), name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd < 0)
    return fail(ErrorCode::kInternal,
                fmt::format("{} cannot be written: {}", path, meaning_of(fd)));
  cache::OpenFile file(ops, fd);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  if (const auto ok = cache::write_and_close(ops, file, {bytes, text.size()}, path); !ok)
    return fail(ErrorCode::kInternal, ok.error().sentence);
  return {};
}

Status check_replaceable(cache::FileOps& ops, const cache::OpenFile& folder,
                         const std::string& name, const std::string& path) {
  struct stat status = {};
  const int result = ops.stat_at(folder.fd(), name, status);
  if (result == -ENOENT || (result == 0 && S_ISREG(status.st_mode))) return {};
  return unusable(fmt::format(
      "{} is no regular file; allowed: one, which is replaced, or a name that is free", path));
}

}  // namespace

Result<std::vector<std::string>> record_files_of(const std::string& path) {
  const auto ops = cache::or_system(nullptr);
  const int fd = cache::retry_interrupted([&] {
    return ops->open_at(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC, 0);
  });
  if (fd == -ENOTDIR || fd == -ENOENT) return std::vector<std::string>{path};
  if (fd < 0) return unusable(fmt::format("{}: {}", path, meaning_of(fd)));
  const cache::OpenFile folder(*ops, fd);
  auto files = cache::tuning_file_names(*ops, fd, path);
  if (!files) return unusable(files.error().sentence);
  if (files->empty())
    return unusable(fmt::format(
        "{} has no records; allowed: a folder with tuning.jsonl or tuning.d/*.jsonl", path));
  for (std::string& name : *files) name = within(path, name);
  return std::move(*files);
}

Result<cache::TuningText> read_record_file(const std::string& path) {
  const auto ops = cache::or_system(nullptr);
  const int fd = cache::retry_interrupted(
      [&] { return ops->open_at(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0); });
  if (fd < 0) return unusable(fmt::format("{} cannot be read: {}", path, meaning_of(fd)));
  const cache::OpenFile file(*ops, fd);
  constexpr std::size_t kStepBytes = std::size_t{1} << 16;
  cache::TuningText all{path, {}};
  std::vector<std::uint8_t> step(kStepBytes);
  for (;;) {
    const auto n = cache::read_next(*ops, file, step, path);
    if (!n) return unusable(n.error().sentence);
    all.text.append(reinterpret_cast<const char*>(step.data()), *n);
    if (all.text.size() > cache::kMaxTuningFileBytes)
      return unusable(fmt::format("{} has more than {} bytes; allowed: at most {}", path,
                                  cache::kMaxTuningFileBytes, cache::kMaxTuningFileBytes));
    if (*n < step.size()) return all;
  }
}

Result<MergedRecords> merge_records(const std::vector<std::string>& paths,
                                    const ReadRecordFile& read) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    auto some = record_files_of(path);
    if (!some) return tl::unexpected<Error>(some.error());
    std::ranges::move(*some, std::back_inserter(files));
  }
  std::vector<cache::TuningText> texts;
  for (const std::string& file : files) {
    auto text = read(file);
    if (!text) return tl::unexpected<Error>(text.error());
    texts.push_back(std::move(*text));
  }
  MergedRecords merged{cache::merge_tuning(texts), texts.size()};
  if (merged.set.lines.size() > cache::kMaxTuningRecords)
    return unusable(fmt::format("the files have {} records together; allowed: up to {}",
                                merged.set.lines.size(), cache::kMaxTuningRecords));
  return merged;
}

Status write_record_file(const std::string& path, std::string_view text) {
  const auto ops = cache::or_system(nullptr);
  const std::size_t slash = path.rfind('/');
  const std::string above =
      slash == std::string::npos ? "." : path.substr(0, std::max<std::size_t>(slash, 1));
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  if (name.empty() || name == "." || name == "..")
    return unusable(fmt::format("'{}' names no file; allowed: the path of a file", path));
  const int opened = ops->open_at(AT_FDCWD, above, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (opened < 0)
    return fail(ErrorCode::kInternal,
                fmt::format("{} cannot be written: open its folder: {}", path, meaning_of(opened)));
  const cache::OpenFile folder(*ops, opened);
  if (Status ok = check_replaceable(*ops, folder, name, path); !ok) return ok;
  const std::string temporary = cache::temporary_name_of(".octile-records");
  Status ok = write_new(*ops, folder, temporary, text, path);
  if (ok) {
    const int renamed = ops->rename_at(folder.fd(), temporary, name);
    if (renamed >= 0) {
      (void)cache::flush_folder(*ops, folder, above);
      return {};
    }
    ok = fail(ErrorCode::kInternal,
              fmt::format("{} cannot be written: {}", path, meaning_of(renamed)));
  }
  ops->unlink_at(folder.fd(), temporary);
  return ok;
}

}  // namespace octile
