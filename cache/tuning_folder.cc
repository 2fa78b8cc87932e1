#include "cache/tuning_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

namespace octile::cache {
namespace {

// More files than any run has ranks; the first by name are read.
constexpr std::size_t kMostFiles = 4096;

std::string without_torn_line(std::string text) {
  const std::size_t last = text.rfind('\n');
  const std::size_t begin = last == std::string::npos ? 0 : last + 1;
  if (!parse_tuning_record(std::string_view(text).substr(begin))) text.resize(begin);
  return text;
}

void add_lines(std::string_view text, std::set<std::string_view>& lines) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.insert(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

auto group_of(const TuningRecord& record) {
  return std::tie(record.device, record.sm_count, record.problem, record.bucket);
}

}  // namespace

TuningFolder::TuningFolder(std::string root, bool writable, std::shared_ptr<FileOps> file_ops)
    : ops_(or_system(std::move(file_ops))),
      root_(std::move(root)),
      writable_(writable),
      whole_(root_, writable, ops_) {}

TuningFile TuningFolder::of_rank(const std::string& rank) const {
  return TuningFile::of_rank(root_, writable_, rank, ops_);
}

IoResult<std::vector<TuningFile>> TuningFolder::files() const {
  const Root root(root_, writable_, ops_);
  const auto folder = root.open(Root::Missing::kFail);
  if (!folder) {
    if (folder.error().code == ENOENT) return std::vector<TuningFile>();
    return tl::unexpected(folder.error());
  }
  auto names = tuning_file_names(*ops_, folder->fd(), root.path());
  if (!names) return tl::unexpected(names.error());
  if (names->size() > kMostFiles) names->resize(kMostFiles);
  std::vector<TuningFile> files;
  for (const std::string& name : *names) {
    const std::size_t slash = name.find('/');
    files.push_back(slash == std::string::npos
                        ? whole_
                        : of_rank(name.substr(slash + 1, name.rfind('.') - slash - 1)));
  }
  return files;
}

std::vector<TuningStamp> TuningFolder::stamps() const {
  std::vector<TuningStamp> stamps;
  const auto existing = files();
  if (!existing) return stamps;
  for (const TuningFile& file : *existing) stamps.push_back(file.stamp());
  return stamps;
}

IoResult<TuningFolder::Texts> TuningFolder::texts() const {
  const auto existing = files();
  if (!existing) return tl::unexpected(existing.error());
  Texts texts;
  std::size_t bytes = 0;
  for (const TuningFile& file : *existing) {
    auto text = file.read_text();
    if (!text && text.error().code != 0) return tl::unexpected(text.error());
    std::string why = text ? std::string() : text.error().sentence;
    if (text && bytes + text->size() > kMaxTuningBytes)
      why = fmt::format(
          "{}: with it the files of its folder have {} bytes together; allowed: up "
          "to {}",
          file.path(), bytes + text->size(), kMaxTuningBytes);
    if (!why.empty() && texts.left_out.empty()) texts.left_out = why;
    if (!why.empty() && text) break;
    if (!why.empty()) continue;
    bytes += text->size();
    texts.files.push_back({file.path(), without_torn_line(std::move(*text))});
  }
  return texts;
}

IoResult<TuningLines> TuningFolder::read() const {
  const auto existing = files();
  if (!existing) return tl::unexpected(existing.error());
  if (existing->empty()) return TuningLines{};
  if (existing->size() == 1) return existing->front().read();
  const auto all = texts();
  if (!all) return tl::unexpected(all.error());
  MergedTuning merged = merge_tuning(all->files);
  TuningLines lines;
  lines.records = std::move(merged.records);
  lines.skipped = merged.bad_lines.size();
  if (lines.skipped > 0) lines.first_skipped = std::move(merged.bad_lines.front());
  lines.full = lines.records.size() > kMaxTuningRecords;
  if (lines.full) lines.records.resize(kMaxTuningRecords);
  lines.left_out = all->left_out;
  return lines;
}

IoResult<std::vector<TuningText>> all_texts(const TuningFolder& folder) {
  auto texts = folder.texts();
  if (!texts) return tl::unexpected(std::move(texts.error()));
  if (!texts->left_out.empty()) return tl::unexpected(IoError{0, std::move(texts->left_out)});
  return std::move(texts->files);
}

IoResult<std::vector<std::string>> missing_lines(const TuningFolder& folder) {
  const auto texts = all_texts(folder);
  if (!texts) return tl::unexpected(texts.error());
  std::set<std::string_view> present;
  for (const TuningText& text : *texts) {
    if (text.name == folder.whole().path()) add_lines(text.text, present);
  }
  const MergedTuning merged = merge_tuning(*texts);
  std::vector<std::string> missing;
  for (std::size_t begin = 0, end = 0; begin < merged.lines.size(); begin = end) {
    bool complete = true;
    for (; end < merged.lines.size() &&
           group_of(merged.records[end]) == group_of(merged.records[begin]);
         ++end)
      complete = complete && present.contains(merged.lines[end]);
    if (complete) continue;
    missing.insert(missing.end(), merged.lines.begin() + static_cast<std::ptrdiff_t>(begin),
                   merged.lines.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return missing;
}

}  // namespace octile::cache
