#include "cache/shared_tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "cache/key.h"

namespace octile::cache {

SharedTuning::SharedTuning(const std::string& root, SharedTuningOptions options,
                           std::shared_ptr<FileOps> ops)
    : folder_(root, true, ops),
      options_(std::move(options)),
      own_(folder_.of_rank(options_.rank)),
      claims_(root, options_.rank, options_.self, options_.claims, std::move(ops)) {}

std::string SharedTuning::name_of(const TuningRecord& question) const {
  return digest_hex(fmt::format("{}\n{}\n{}\n{}\n{}\n", question.problem, question.tokens,
                                question.device, question.sm_count, options_.run));
}

// Returns the records of all files. A named run also has those that a later one replaced:
// the clock of another host may say that it is later than this run.
IoResult<std::vector<TuningRecord>> SharedTuning::every_record() const {
  const auto texts = all_texts(folder_);
  if (!texts) return tl::unexpected(texts.error());
  if (options_.run.empty()) return merge_tuning(*texts).records;
  std::vector<TuningRecord> all;
  for (const auto& [name, text] : *texts)
    std::ranges::move(parse_tuning_lines(text).records, std::back_inserter(all));
  return all;
}

IoResult<void> SharedTuning::refresh() {
  auto stamps = folder_.stamps();
  if (stamps_ == stamps) return {};
  auto records = every_record();
  if (!records) return tl::unexpected(records.error());
  records_ = DecidedRecords(std::move(*records));
  stamps_ = std::move(stamps);
  return {};
}

const TuningRecord* SharedTuning::decided(const TuningRecord& question) const {
  return records_.find(question, options_.run.empty() ? std::string() : name_of(question) + ".");
}

IoResult<SharedTuning::Taken> SharedTuning::take(const TuningRecord& question) {
  if (decided(question) != nullptr) return Taken::kDecided;
  const std::string name = name_of(question);
  int& g = generations_.try_emplace(name, 1).first->second;
  for (;; ++g) {
    const auto state = claims_.claim(name, g);
    if (!state) return tl::unexpected(state.error());
    if (*state == ClaimState::kTaken) return Taken::kTakenByAnother;
    if (*state == ClaimState::kFailed) return Taken::kFailed;
    // Whoever had it before may have decided it.
    if (const auto read = refresh(); !read) return tl::unexpected(read.error());
    if (decided(question) != nullptr) {
      claims_.close(name);
      return Taken::kDecided;
    }
    if (*state == ClaimState::kMine) return Taken::kMine;
  }
}

IoResult<void> SharedTuning::keep(TuningRecord record) {
  const std::string name = name_of(record);
  record.claim = fmt::format("{}.{}", name, generations_.at(name));
  if (const auto appended = own_.append(record); !appended) return appended;
  claims_.close(name);
  return {};
}

void SharedTuning::close_failed(const TuningRecord& question) {
  claims_.close(name_of(question), Claims::kFailed);
}

IoResult<void> SharedTuning::merge() {
  auto missing = missing_lines(folder_);
  if (!missing) return tl::unexpected(missing.error());
  if (missing->empty()) return {};
  std::string text = "merge\n";
  for (const std::string& line : *missing) text.append(line).append(1, '\n');
  const std::string name = digest_hex(text);
  for (int g = 1;; ++g) {
    const auto state = claims_.claim(name, g);
    if (!state) return tl::unexpected(state.error());
    if (*state == ClaimState::kGone) continue;
    if (*state != ClaimState::kMine) return {};
    missing = missing_lines(folder_);  // whoever had the claim before may have appended them
    auto appended = !missing           ? IoResult<void>(tl::unexpected(missing.error()))
                    : missing->empty() ? IoResult<void>()
                                       : folder_.whole().append_lines(*missing);
    claims_.close(name, appended ? std::string_view() : Claims::kReleased);
    return appended;
  }
}

}  // namespace octile::cache
