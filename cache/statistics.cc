#include "cache/statistics.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <ctime>
#include <optional>
#include <utility>

namespace octile::cache {
namespace {

constexpr const char* kFolder = "statistics";
constexpr std::string_view kHitWord = "hit ";
constexpr std::string_view kMissWord = "miss ";

std::string day_of(std::chrono::system_clock::time_point time) {
  return fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::chrono::system_clock::to_time_t(time)));
}

// Returns true for the form "2026-01-31".
bool is_day(std::string_view name) {
  constexpr std::string_view kShape = "dddd-dd-dd";
  return name.size() == kShape.size() &&
         std::equal(name.begin(), name.end(), kShape.begin(), [](char c, char shape) {
           return shape == 'd' ? c >= '0' && c <= '9' : c == shape;
         });
}

// Returns the milliseconds that follow the event's word, or empty if the text is not a valid time.
std::optional<double> parse_ms(std::string_view text) {
  double ms = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ms);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (!std::isfinite(ms) || ms < 0) return std::nullopt;
  return ms;
}

void add_line(DayStatistics& day, std::string_view line) {
  constexpr double kMsPerSecond = 1000;
  const bool hit = line.starts_with(kHitWord);
  if (!hit && !line.starts_with(kMissWord)) return;
  const auto ms = parse_ms(line.substr(hit ? kHitWord.size() : kMissWord.size()));
  if (!ms) return;
  (hit ? day.hits : day.misses) += 1;
  (hit ? day.saved_seconds : day.compiled_seconds) += *ms / kMsPerSecond;
}

}  // namespace

DayStatistics sum_statistics(std::string_view day, std::string_view lines) {
  DayStatistics sum;
  sum.day = day;
  // A line without a newline was cut off by a crash.
  for (std::size_t end = lines.find('\n'); end != std::string_view::npos; end = lines.find('\n')) {
    add_line(sum, lines.substr(0, end));
    lines.remove_prefix(end + 1);
  }
  return sum;
}

StatisticsLog::StatisticsLog(const std::string& root, std::shared_ptr<FileOps> file_ops)
    : ops_(or_system(std::move(file_ops))), root_(root, true, ops_) {}

IoResult<OpenFile> StatisticsLog::open_day(const OpenFile& folder, const std::string& day,
                                           struct stat& status) const {
  constexpr int kNew = O_CREAT | O_EXCL;
  const std::string path = root_.path() + "/" + kFolder + "/" + day;
  const auto open = [&](int creation) {
    return open_regular(*ops_, folder.fd(), day, O_WRONLY | O_APPEND | creation, 0600, path,
                        unwritable_by_others(path), &status);
  };
  auto file = open(0);
  if (file || file.error().code != ENOENT) return file;
  file = open(kNew);
  if (file) remove_old(folder, day);
  if (!file && file.error().code == EEXIST) return open(0);  // another process created it first
  return file;
}

void StatisticsLog::remove_old(const OpenFile& folder, const std::string& today) const {
  using std::chrono::hours;
  std::vector<std::string> names;
  if (ops_->list(folder.fd(), names) < 0) return;
  const std::string oldest =
      day_of(std::chrono::system_clock::now() - hours(24) * (kStatisticsDays - 1));
  for (const std::string& name : names) {
    if (is_day(name) && name < oldest && name != today) ops_->unlink_at(folder.fd(), name);
  }
}

IoResult<void> StatisticsLog::count(CacheEvent event, double compile_ms) const {
  const auto folder = root_.open_in_root(kFolder, Root::Missing::kCreate);
  if (!folder) return tl::unexpected(folder.error());
  const std::string day = day_of(std::chrono::system_clock::now());
  const std::string path = root_.path() + "/" + kFolder + "/" + day;
  struct stat status = {};
  const auto file = open_day(*folder, day, status);
  if (!file) return tl::unexpected(file.error());
  if (static_cast<std::uint64_t>(status.st_size) >= kMaxStatisticsBytes) return {};
  const bool known = std::isfinite(compile_ms) && compile_ms > 0;
  const std::string line = fmt::format(
      "{}{:.1f}\n", event == CacheEvent::kHit ? kHitWord : kMissWord, known ? compile_ms : 0.0);
  // The line is written with one call, so that lines of several writers do not mix. A reader
  // ignores a line that was cut short.
  const ssize_t written = retry_interrupted([&] {
    return ops_->write(file->fd(),
                       {reinterpret_cast<const std::uint8_t*>(line.data()), line.size()});
  });
  if (written < 0) return io_failure("write", path, written);
  return {};
}

IoResult<std::vector<DayStatistics>> StatisticsLog::read() const {
  std::vector<DayStatistics> days;
  const auto folder = root_.open_in_root(kFolder, Root::Missing::kFail);
  if (!folder) {
    if (folder.error().code == ENOENT) return days;
    return tl::unexpected(folder.error());
  }
  std::vector<std::string> names;
  const std::string path = root_.path() + "/" + kFolder;
  const int listed = retry_interrupted([&] {
    names.clear();
    return ops_->list(folder->fd(), names);
  });
  if (listed < 0) return io_failure("list", path, listed);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    if (!is_day(name)) continue;
    // Writers at the limit may each add one more line.
    const auto bytes = read_file(*ops_, folder->fd(), name, 2 * kMaxStatisticsBytes,
                                 path + "/" + name, unwritable_by_others(path + "/" + name));
    if (!bytes && bytes.error().code == ENOENT) continue;  // removed since the folder was listed
    if (!bytes) return tl::unexpected(bytes.error());
    days.push_back(
        sum_statistics(name, {reinterpret_cast<const char*>(bytes->data()), bytes->size()}));
  }
  return days;
}

}  // namespace octile::cache
