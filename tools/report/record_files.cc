#include "tools/report/record_files.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "cache/json.h"
#include "cache/tuning_file.h"
#include "generator/core/device_spec.h"
#include "runtime/tuned/record_files.h"
#include "tools/common/input_file.h"

namespace octile::tools {
namespace {

constexpr std::size_t kMostDepth = 8;  // of records, FORMAT.md

tl::unexpected<Error> refuse_line(const std::string& name, std::size_t line,
                                  const std::string& why) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("{}:{}: {}", name, line, why));
}

Status add_line(std::string_view line, const std::string& name, std::size_t number,
                RecordFiles& files) {
  const auto parsed = parse_json(line, kMostDepth);
  const Json object = parsed ? *parsed : Json();
  if (!object.is_object()) return refuse_line(name, number, "the line is not a JSON object");
  if (!object.contains("record")) {
    auto record = cache::parse_tuning_record(line);
    if (!record) return refuse_line(name, number, record.error());
    files.tuned.push_back(std::move(*record));
    return {};
  }
  constexpr std::string_view kPrefix = " line 1: ";  // of a text without a name
  auto records = parse_records(line, "");
  if (!records) return refuse_line(name, number, records.error().message.substr(kPrefix.size()));
  std::ranges::move(*records, std::back_inserter(files.measured));
  return {};
}

Result<std::string> decompressed(const std::string& bytes, const std::string& name) {
  constexpr std::string_view kMagic = "\x28\xb5\x2f\xfd";
  if (!bytes.starts_with(kMagic)) return bytes;
  const auto size = ZSTD_getFrameContentSize(bytes.data(), bytes.size());
  if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN ||
      size > cache::kMaxTuningFileBytes) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is compressed by zstd and does not state a size of at most {} "
                            "bytes; allowed: what a page of `octile report` holds",
                            name, cache::kMaxTuningFileBytes));
  }
  std::string text(size, '\0');
  const std::size_t got = ZSTD_decompress(text.data(), text.size(), bytes.data(), bytes.size());
  if (ZSTD_isError(got) == 0 && got == text.size()) return text;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} is damaged: zstd says {}", name,
                          ZSTD_isError(got) != 0 ? ZSTD_getErrorName(got) : "another size"));
}

Status add_file(const RecordFile& of, RecordFiles& files) {
  const auto file = of.named ? InputFile::open(of.path) : InputFile::open_regular(of.path);
  if (!file) return tl::unexpected<Error>(file.error());
  const auto bytes = file->read_all(cache::kMaxTuningFileBytes);
  if (!bytes) return tl::unexpected<Error>(bytes.error());
  const auto text = decompressed({bytes->begin(), bytes->end()}, file->name());
  if (!text) return tl::unexpected<Error>(text.error());
  return add_records(*text, file->name(), files);
}

// Leaves the last decision of each question.
void drop_replaced(std::vector<cache::TuningRecord>& records) {
  std::set<std::tuple<std::string, std::int64_t, std::string, int>> seen;
  std::vector<cache::TuningRecord> last;
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    if (seen.emplace(record->problem, record->bucket, record->device, record->sm_count).second)
      last.push_back(std::move(*record));
  }
  std::ranges::reverse(last);
  records = std::move(last);
}

}  // namespace

Status add_records(std::string_view text, const std::string& name, RecordFiles& files) {
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (Status ok = add_line(line, name, number, files); !ok) return ok;
  }
  drop_replaced(files.tuned);
  return {};
}

namespace {

// Returns a folder's files of records that are not in a cache's places, by their names; none of
// other paths.
std::vector<RecordFile> files_in(const std::string& folder) {
  std::vector<RecordFile> files;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with('.') && entry.is_regular_file(ignored) &&
        (name.ends_with(".jsonl") || name.ends_with(".jsonl.zst")))
      files.push_back({entry.path().string(), false});
  }
  std::ranges::sort(files, {}, &RecordFile::path);
  return files;
}

}  // namespace

Result<RecordFiles> read_record_files(const std::vector<std::string>& paths) {
  RecordFiles files;
  for (const std::string& path : paths) {
    auto some = record_files_of(path);
    if (!some) {
      if (std::vector<RecordFile> found = files_in(path); !found.empty()) some = std::move(found);
    }
    if (!some) return tl::unexpected<Error>(some.error());
    for (const RecordFile& file : *some)
      if (Status ok = add_file(file, files); !ok) return tl::unexpected<Error>(ok.error());
  }
  return files;
}

std::string card_of(const std::string& name) {
  std::string words = name;
  std::ranges::replace(words, ' ', '-');
  const DeviceSpec* known = find_device(words);
  if (known == nullptr) known = find_named(words);
  return known == nullptr ? name : known->name;
}

std::vector<std::string> cards_of(const RecordFiles& files) {
  std::set<std::string> cards;
  for (const cache::TuningRecord& record : files.tuned) cards.insert(card_of(record.device));
  for (const Record& record : files.measured) cards.insert(card_of(record.card.name));
  return {cards.begin(), cards.end()};
}

void keep_card(const std::string& card, RecordFiles& files) {
  std::erase_if(files.tuned, [&](const auto& record) { return card_of(record.device) != card; });
  std::erase_if(files.measured,
                [&](const Record& record) { return card_of(record.card.name) != card; });
}

}  // namespace octile::tools
