#include "cache/shared_tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

#include "cache/key.h"

namespace octile::cache {

SharedTuning::SharedTuning(const std::string& root, SharedTuningOptions options,
                           std::shared_ptr<FileOps> ops)
    : root_(root),
      ops_(or_system(std::move(ops))),
      folder_(root, true, ops_),
      options_(std::move(options)),
      own_(folder_.of_rank(options_.rank)) {}

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
  return options_.force ? nullptr : records_.find(question, options_.run);
}

IoResult<SharedTuning::Taken> SharedTuning::take(const TuningRecord& question) {
  if (decided(question) != nullptr) return Taken::kDecided;
  const std::string name = name_of(question);
  if (turns_.contains(name)) return Taken::kMine;
  Turn turn(root_, name, ops_);
  const auto state = turn.try_take();
  if (!state) return tl::unexpected(state.error());
  if (*state == TurnState::kTaken) return Taken::kTakenByAnother;
  if (*state == TurnState::kFailed) return Taken::kFailed;
  // Whoever had it before may have decided it.
  if (const auto read = refresh(); !read) return tl::unexpected(read.error());
  if (decided(question) != nullptr) return Taken::kDecided;
  turns_.emplace(name, std::move(turn));
  return Taken::kMine;
}

IoResult<void> SharedTuning::append(const TuningRecord& record) { return own_.append(record); }

bool SharedTuning::is_decided_twice(const TuningRecord& question) {
  return refresh() && decided(question) != nullptr;
}

void SharedTuning::fail(const TuningRecord& question) {
  auto turn = turns_.extract(name_of(question));
  if (turn.empty()) return;
  turn.mapped().fail();
  failed_.insert(std::move(turn));
}

void SharedTuning::let_go() { turns_.clear(); }

IoResult<void> SharedTuning::merge() {
  constexpr std::chrono::milliseconds kPause{10};
  constexpr int kLooks = 1000;
  Turn turn(root_, "merge", ops_);
  for (int look = 0; look < kLooks; ++look) {
    const auto state = turn.try_take();
    if (!state) return tl::unexpected(state.error());
    if (*state == TurnState::kMine) break;
    std::this_thread::sleep_for(kPause);
  }
  const auto missing = missing_lines(folder_);
  if (!missing) return tl::unexpected(missing.error());
  return missing->empty() ? IoResult<void>() : folder_.whole().append_lines(*missing);
}

}  // namespace octile::cache
