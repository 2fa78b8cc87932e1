#include "cache/tuning_merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

namespace octile::cache {
namespace {

constexpr std::string_view kBlank = " \t\r";

std::string_view trimmed(std::string_view line) {
  const std::size_t first = line.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return line.substr(first, line.find_last_not_of(kBlank) - first + 1);
}

// A place that a sentence names.
struct Place {
  std::string_view file;
  std::size_t line = 0;
  friend auto operator<=>(const Place&, const Place&) = default;
};
std::string to_text(const Place& place) { return fmt::format("{}:{}", place.file, place.line); }

// A line, without its record: files of short lines have very many.
struct Decided {
  std::string date, config;
  std::string_view text;
  Place place;

  auto age() const { return std::tuple(std::string_view(date), text); }
};

// The first of equal lines is named.
bool is_older(const Decided& a, const Decided& b) {
  return std::tuple(a.age(), b.place) < std::tuple(b.age(), a.place);
}

// The fields of a decision, in the order of the result.
using Question = std::tuple<std::string, int, std::string, std::int64_t, std::int64_t>;
using Decisions = std::map<Question, Decided>;

Question question_of(const TuningRecord& r) {
  return {r.device, r.sm_count, r.problem, r.bucket, r.tokens};
}

std::string conflict(const Question& question, const Decided& other, const Decided& newest) {
  const auto& [device, sm_count, problem, bucket, tokens] = question;
  return fmt::format(
      "{}: other winner than {}, which {} and stays: '{}' at {} tokens on {} with {} SMs",
      to_text(other.place), to_text(newest.place),
      other.date == newest.date ? "is of the same date" : "is newer", problem, tokens, device,
      sm_count);
}

class Merge {
 public:
  void add(const TuningText& file) {
    Decisions own;
    std::size_t bad = 0;
    std::string_view rest = file.text;
    for (std::size_t number = 1; !rest.empty(); ++number) {
      const std::size_t end = rest.find('\n');
      const std::string_view line = trimmed(rest.substr(0, end));
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
      if (line.empty()) continue;
      const Place place{file.name, number};
      auto record = parse_tuning_record(line);
      if (!record) {
        bad_.emplace(place, record.error());
        if (++bad > kMaxBadLines) break;
        continue;
      }
      Question question = question_of(*record);
      own.insert_or_assign(
          std::move(question),
          Decided{std::move(record->date), std::move(record->winner.config), line, place});
    }
    for (auto& [question, decided] : own) all_[question].push_back(std::move(decided));
  }

  MergedTuning result() {
    std::vector<Kept> kept;
    std::map<Place, std::string> conflicts;
    for (const auto& [question, decided] : all_) {
      const Decided& newest = *std::ranges::max_element(decided, is_older);
      kept.push_back({&question, &newest});
      for (const Decided& other : decided)
        if (other.config != newest.config)
          conflicts.emplace(other.place, conflict(question, other, newest));
    }
    // The questions are in order. The newest of those with several token counts goes last.
    std::ranges::stable_sort(kept, {}, [](const Kept& one) {
      const auto& [device, sm_count, problem, bucket, tokens] = *one.question;
      return std::tuple(std::string_view(device), sm_count, std::string_view(problem), bucket,
                        one.newest->age());
    });
    MergedTuning merged;
    for (const Kept& one : kept) {
      merged.lines.emplace_back(one.newest->text);
      merged.records.push_back(*parse_tuning_record(one.newest->text));
    }
    for (auto& [place, sentence] : conflicts) merged.conflicts.push_back(std::move(sentence));
    for (const auto& [place, why] : bad_)
      merged.bad_lines.push_back(fmt::format("{}: {}", to_text(place), why));
    return merged;
  }

 private:
  struct Kept {
    const Question* question;
    const Decided* newest;
  };

  std::map<Question, std::vector<Decided>> all_;  // each file's last
  std::map<Place, std::string> bad_;
};

}  // namespace

std::string MergedTuning::text() const {
  std::string all;
  for (const std::string& line : lines) all.append(line).append(1, '\n');
  return all;
}

MergedTuning merge_tuning(const std::vector<TuningText>& files) {
  Merge merge;
  for (const TuningText& file : files) merge.add(file);
  return merge.result();
}

}  // namespace octile::cache
