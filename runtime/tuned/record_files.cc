#include "runtime/tuned/record_files.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <iterator>
#include <system_error>
#include <utility>

#include "cache/appended_lines.h"
#include "cache/file_ops.h"
#include "cache/tuning_file.h"

namespace octile {
namespace {

tl::unexpected<Error> unusable(std::string sentence) {
  return fail(ErrorCode::kInvalidArgument, std::move(sentence));
}

std::string meaning_of(int result) { return std::generic_category().message(-result); }

std::string within(const std::string& folder, std::string_view name) {
  return fmt::format("{}{}{}", folder, folder.ends_with('/') ? "" : "/", name);
}

tl::unexpected<Error> unwritten(const std::string& path, const cache::IoError& error) {
  return error.code == 0 ? unusable(error.sentence)
                         : fail(ErrorCode::kFile,
                                fmt::format("{} cannot be written: {}", path, error.sentence));
}

}  // namespace

Result<std::vector<RecordFile>> record_files_of(const std::string& path) {
  const auto ops = cache::or_system(nullptr);
  const int fd = cache::retry_interrupted([&] {
    return ops->open_at(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC, 0);
  });
  if (fd == -ENOTDIR || fd == -ENOENT) return std::vector<RecordFile>{{path, true}};
  if (fd < 0) return unusable(fmt::format("{}: {}", path, meaning_of(fd)));
  const cache::OpenFile folder(*ops, fd);
  const auto names = cache::tuning_file_names(*ops, fd, path);
  if (!names) return unusable(names.error().sentence);
  if (names->empty())
    return unusable(fmt::format(
        "{} has no records; allowed: a folder with tuning.jsonl or tuning.d/*.jsonl", path));
  std::vector<RecordFile> files;
  for (const std::string& name : *names) files.push_back({within(path, name), false});
  return files;
}

Result<cache::TuningText> read_record_file(const RecordFile& file) {
  const auto ops = cache::or_system(nullptr);
  const auto opened = cache::open_named(*ops, file.path);
  if (!opened && opened.error().code == 0)
    return unusable(fmt::format("{}; allowed: a file of records", opened.error().sentence));
  if (!opened)
    return unusable(
        fmt::format("{} cannot be read: {}", file.path, meaning_of(-opened.error().code)));
  constexpr std::size_t kStepBytes = std::size_t{1} << 16;
  cache::TuningText all{file.path, {}};
  std::vector<std::uint8_t> step(kStepBytes);
  for (;;) {
    const auto n = cache::read_next(*ops, *opened, step, file.path);
    if (!n) return unusable(n.error().sentence);
    all.text.append(reinterpret_cast<const char*>(step.data()), *n);
    if (all.text.size() > cache::kMaxTuningFileBytes)
      return unusable(fmt::format("{} has more than {} bytes; allowed: at most {}", file.path,
                                  cache::kMaxTuningFileBytes, cache::kMaxTuningFileBytes));
    if (*n < step.size()) return all;
  }
}

Result<MergedRecords> merge_records(const std::vector<std::string>& paths,
                                    const ReadRecordFile& read) {
  std::vector<RecordFile> files;
  for (const std::string& path : paths) {
    auto some = record_files_of(path);
    if (!some) return tl::unexpected<Error>(some.error());
    std::ranges::move(*some, std::back_inserter(files));
  }
  std::vector<cache::TuningText> texts;
  std::size_t bytes = 0;
  for (const RecordFile& file : files) {
    auto text = read(file);
    if (!text) return tl::unexpected<Error>(text.error());
    bytes += text->text.size();
    if (bytes > cache::kMaxTuningBytes)
      return unusable(fmt::format("the files up to {} have {} bytes together; allowed: up to {}",
                                  file.path, bytes, cache::kMaxTuningBytes));
    texts.push_back(std::move(*text));
  }
  MergedRecords merged{cache::merge_tuning(texts), texts.size()};
  if (merged.set.lines.size() > cache::kMaxTuningRecords)
    return unusable(fmt::format("the files have {} records together; allowed: up to {}",
                                merged.set.lines.size(), cache::kMaxTuningRecords));
  return merged;
}

Result<MergedRecords> merge_records_into(const std::string& out,
                                         const std::vector<std::string>& paths,
                                         const ReadRecordFile& read) {
  auto replacement = cache::LinesReplacement::begin(out);
  if (!replacement) return unwritten(out, replacement.error());
  if (replacement->made() && std::ranges::find(paths, out) != paths.end())
    return unusable(fmt::format("{} cannot be read: {}", out, meaning_of(-ENOENT)));
  auto merged = merge_records(paths, read);
  if (!merged) return merged;
  if (const auto done = replacement->commit(merged->set.text()); !done)
    return unwritten(out, done.error());
  return merged;
}

}  // namespace octile
