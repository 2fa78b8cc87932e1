// Several ranks that share a tuning run through a folder on a simulated file server: which
// questions each decides, and what is left of those that die.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "runtime/tuned/tuning_records.h"
#include "runtime/tuner/run.h"
#include "tests/support/api_handles.h"
#include "tests/support/shared_folder.h"

namespace octile::tuner {
namespace {

using cache::testing::HostOfServer;
using cache::testing::SimulatedServer;

struct Killed {};

// Decisions that a GPU has made, for a decider to replay.
const std::vector<cache::TuningRecord>& recorded() {
  static const auto records = [] {
    std::vector<cache::TuningRecord> some;
    for (const cache::TuningRecord& record : embedded_tuning())
      if (record.device == "h200" && some.size() < 24) some.push_back(record);
    return some;
  }();
  return records;
}

std::vector<TuningTask> recorded_tasks() {
  std::vector<TuningTask> tasks;
  for (const cache::TuningRecord& record : recorded())
    tasks.push_back({*parse_problem(record.problem), record.tokens});
  return tasks;
}

// Runs one thread at a time: the one whose sleep ends first.
class Turns {
 public:
  explicit Turns(int ranks) : wakes_(static_cast<std::size_t>(ranks), 0.0) {}
  const std::shared_ptr<double>& now() const { return now_; }
  void begin(std::size_t rank) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return current_ == rank; });
  }
  void sleep(std::size_t rank, double seconds) {
    std::unique_lock lock(mutex_);
    wakes_[rank] = *now_ + seconds;
    pass_on();
    changed_.wait(lock, [&] { return current_ == rank; });
  }
  void leave(std::size_t rank) {
    const std::scoped_lock lock(mutex_);
    wakes_[rank] = kNever;
    pass_on();
  }

 private:
  static constexpr double kNever = 1e18;
  void pass_on() {
    const auto first = std::ranges::min_element(wakes_);
    current_ = static_cast<std::size_t>(first - wakes_.begin());
    if (*first < kNever) *now_ = std::max(*now_, *first);
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<double> now_ = std::make_shared<double>(1000.0);
  std::vector<double> wakes_;
  std::size_t current_ = 0;
};

class ReplayingDecider final : public Decider {
 public:
  std::function<void(double)> pass;  // the seconds of a step
  std::vector<std::size_t> decided;

  void expect(const TuningTask&) override {}
  Result<Decision> decide(const TuningTask& task, const Budget& budget) override {
    for (int step = 0; step < 10; ++step) {
      pass(1);
      if (budget.left() <= 0) {
        Decision none;
        none.task = task;
        return none;
      }
    }
    const auto tasks = recorded_tasks();
    const auto at = static_cast<std::size_t>(std::ranges::find(tasks, task) - tasks.begin());
    decided.push_back(at);
    return decision_of(task, recorded()[at]);
  }
};

cache::SharedTuningOptions options_of(const std::string& rank, const std::shared_ptr<double>& now) {
  cache::SharedTuningOptions options;
  options.rank = rank;
  options.self = {"", "host-" + rank, 1, 0};
  options.claims.clock = [now] { return *now; };
  return options;
}

// Of eight ranks one is killed, one is paused for longer than the lease, and one comes late.
TEST(SharedRun, EightRanksDecideEveryQuestionAndTheLivingNoneTwice) {
  constexpr std::size_t kRanks = 8;
  const test::TempFolder folder;
  Turns turns(kRanks);
  const auto server = std::make_shared<SimulatedServer>(turns.now());
  const auto tasks = recorded_tasks();
  std::vector<std::vector<std::size_t>> decided(kRanks);
  std::vector<int> undecided(kRanks, -1);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      turns.begin(rank);
      if (rank == 7) turns.sleep(rank, 15);
      ReplayingDecider decider;
      double left = rank == 1 ? 14 : rank == 2 ? 5 : 1e9;
      decider.pass = [&](double seconds) {
        left -= seconds;
        if (left < 0 && rank == 1) throw Killed();
        turns.sleep(rank, std::exchange(left, left < 0 ? 1e9 : left) < 0 ? 500 : seconds);
      };
      const auto host = std::make_shared<HostOfServer>(server, 60);
      cache::SharedTuning shared(folder.path() + "/root",
                                 options_of("rank" + std::to_string(rank), turns.now()), host);
      RunOptions options;
      options.budget_seconds = 1e5;
      options.clock = [now = turns.now()] { return *now; };
      options.shared = &shared;
      options.pause = [&](double seconds) { turns.sleep(rank, seconds); };
      try {
        const auto result = run_tasks(tasks, *find_device("h200"), decider, nullptr, options);
        EXPECT_TRUE(result) << result.error().message;
        if (result) undecided[rank] = result->undecided;
        EXPECT_TRUE(shared.merge());
      } catch (const Killed&) {
      }
      decided[rank] = decider.decided;
      turns.leave(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::map<std::size_t, int> times;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(undecided[rank], rank == 1 ? -1 : 0) << rank;
    if (rank == 2) continue;  // it was paused, and others took its questions
    EXPECT_FALSE(decided[rank].empty()) << rank;
    for (const std::size_t question : decided[rank]) EXPECT_EQ(++times[question], 1) << question;
  }
  const cache::TuningFile whole(folder.path() + "/root", true);
  const auto merged = whole.read_text();
  ASSERT_TRUE(merged);
  EXPECT_EQ(std::ranges::count(*merged, '\n'), std::ssize(tasks));
  cache::SharedTuning again(folder.path() + "/root", options_of("again", turns.now()));
  EXPECT_TRUE(again.merge());
  EXPECT_EQ(*whole.read_text(), *merged) << "merging a second time changes nothing";
}

// Dies at a call, within a write after half of its bytes.
class DyingHost final : public cache::FileOps {
 public:
  explicit DyingHost(int calls) : left_(calls) {}
  int open_at(int dir_fd, const std::string& name, int flags, mode_t mode) override {
    live();
    return FileOps::open_at(dir_fd, name, flags, mode);
  }
  ssize_t write(int fd, std::span<const std::uint8_t> bytes) override {
    if (left_ == 0) (void)FileOps::write(fd, bytes.first(bytes.size() / 2));
    live();
    return FileOps::write(fd, bytes);
  }
  int fsync(int) override { return 0; }

 private:
  void live() {
    if (left_-- <= 0) throw Killed();
  }
  int left_;
};

TEST(SharedRun, AKilledRunLosesItsOpenQuestionsOnly) {
  std::mt19937 random(7);
  const auto tasks = recorded_tasks();
  const test::TempFolder folder;
  const auto now = std::make_shared<double>(0.0);
  std::size_t kept = 0;
  const auto run = [&](int number, int calls) {
    ReplayingDecider decider;
    decider.pass = [&](double seconds) { *now += seconds; };
    *now += 1000;  // the dead one's lease is over
    RunOptions options;
    options.budget_seconds = 1e5;
    options.clock = [&] { return *now; };
    try {
      auto rank = options_of("rank" + std::to_string(number), now);
      rank.claims.lease_seconds = -1;  // of real files, whose times are now
      cache::SharedTuning shared(folder.path() + "/root", std::move(rank),
                                 std::make_shared<DyingHost>(calls));
      options.shared = &shared;
      const auto result = run_tasks(tasks, *find_device("h200"), decider, nullptr, options);
      EXPECT_TRUE(result) << result.error().message;
      EXPECT_TRUE(shared.merge());
    } catch (const Killed&) {
    }
    const auto records = cache::TuningFolder(folder.path() + "/root", true).read();
    ASSERT_TRUE(records) << records.error().sentence;
    // The last of them may have died before its line was whole.
    EXPECT_GE(records->records.size() + 1, kept + decider.decided.size());
    EXPECT_GE(records->records.size(), kept);
    kept = records->records.size();
  };
  for (int killed = 0; killed < 10; ++killed)
    run(killed, std::uniform_int_distribution(5, 120)(random));
  run(10, 1 << 30);
  EXPECT_EQ(kept, tasks.size());
}

}  // namespace
}  // namespace octile::tuner
