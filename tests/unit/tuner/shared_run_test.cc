// Several ranks that share a tuning run through a folder on a simulated file server, on devices
// that replay a recorded run: which questions each decides, and what is left of those that die.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "runtime/tuner/run.h"
#include "tests/support/api_handles.h"
#include "tests/support/recorded_run.h"
#include "tests/support/shared_folder.h"

namespace octile::tuner {
namespace {

using cache::testing::HostOfServer;
using cache::testing::SimulatedServer;
using test::decisions_in;
using test::recorded_device;
using test::recorded_tasks;
using test::ReplayDecider;

struct Killed {};

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

// A host that dies at a call, within a write after half of its bytes.
template <typename Host>
class Dying final : public Host {
 public:
  template <typename... Arguments>
  explicit Dying(int calls, Arguments&&... arguments)
      : Host(std::forward<Arguments>(arguments)...), left_(calls) {}
  int open_at(int dir_fd, const std::string& name, int flags, mode_t mode) override {
    live();
    return Host::open_at(dir_fd, name, flags, mode);
  }
  ssize_t write(int fd, std::span<const std::uint8_t> bytes) override {
    if (left_ == 0) (void)Host::write(fd, bytes.first(bytes.size() / 2));
    live();
    return Host::write(fd, bytes);
  }
  int fsync(int) override { return 0; }

 private:
  void live() {
    if (left_-- <= 0) throw Killed();
  }
  int left_;
};

constexpr int kNever = 1 << 30;

// The locks of the file server: each host asks it, grants its own, or has none.
enum class Locks { kOfServer, kOfHost, kNone };

// The fate of a rank.
struct Fate {
  double comes_after = 0;          // seconds
  double is_killed_after = 1e9;    // seconds of its work
  int is_killed_at_call = kNever;  // of the file server
  double is_paused_after = 1e9;    // seconds of its work, for 500 s
};

// The decisions that a rank left.
struct Left {
  int decided_twice = 0;
  std::vector<std::size_t> decided;  // places in the recorded run
  std::size_t open = 0;              // the last one that was begun
  bool killed = false;
  int undecided = -1;
};

// Runs the recorded run on this number of hosts, each of which sees a file's attributes as they
// were up to a minute ago. The ranks merge at their ends.
std::vector<Left> share_run(const std::string& folder, const std::vector<Fate>& fates,
                            const std::string& run = "", Locks locks = Locks::kOfServer) {
  Turns turns(static_cast<int>(fates.size()));
  const auto server = std::make_shared<SimulatedServer>(turns.now());
  std::vector<Left> outcomes(fates.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < fates.size(); ++rank) {
    threads.emplace_back([&, rank] {
      turns.begin(rank);
      Fate fate = fates[rank];
      turns.sleep(rank, fate.comes_after);
      ReplayDecider decider;
      double worked = 0;
      decider.pass = [&](double seconds) {
        worked += seconds;
        if (worked > fate.is_killed_after) throw Killed();
        const bool pauses = worked > fate.is_paused_after;
        if (pauses) fate.is_paused_after = 1e9;
        turns.sleep(rank, pauses ? 500 : seconds);
      };
      const auto host = std::make_shared<Dying<HostOfServer>>(fate.is_killed_at_call, server, 60);
      if (locks != Locks::kOfServer) host->locks = locks == Locks::kOfHost ? 0 : -ENOLCK;
      cache::SharedTuning shared(folder, {.rank = "rank" + std::to_string(rank), .run = run}, host);
      RunOptions options;
      options.budget_seconds = 1e5;
      options.clock = [now = turns.now()] { return *now; };
      options.shared = &shared;
      options.pause = [&](double seconds) { turns.sleep(rank, 10 * seconds); };
      Left& left = outcomes[rank];
      try {
        const auto result = run_tasks(recorded_tasks(), recorded_device(), decider, options);
        EXPECT_TRUE(result) << result.error().message;
        if (result) left.undecided = result->undecided;
        if (result) left.decided_twice = result->decided_twice;
        EXPECT_TRUE(shared.merge());
      } catch (const Killed&) {
        left.killed = true;
      }
      left.decided = decider.decided;
      left.open = decider.open;
      turns.leave(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// Returns how often each question was decided.
std::map<std::size_t, int> times_of(const std::vector<Left>& outcomes) {
  std::map<std::size_t, int> times;
  for (const Left& left : outcomes) {
    for (const std::size_t question : left.decided) ++times[question];
  }
  return times;
}

// Returns what one undisturbed process decides.
const std::vector<std::string>& undisturbed() {
  static const auto lines = [] {
    const test::TempFolder folder;
    share_run(folder.path() + "/root", {Fate()});
    return decisions_in(cache::TuningFile(folder.path() + "/root", true).read()->records);
  }();
  return lines;
}

// A default that is 1 % behind the fastest stays, and a race tells half a percent apart.
TEST(SharedRun, AReplayFindsTheFastestOfTheRecordedRun) {
  ReplayDecider decider;
  decider.pass = [](double) {};
  int tuned = 0;
  for (const test::RecordedQuestion& question : test::recorded_run()) {
    const auto decision = decider.decide(question.task, Budget([] { return 0.0; }, 1e6));
    ASSERT_TRUE(decision && decision->decided()) << to_text(question.task);
    const KernelConfig winner =
        *parse_config(question.task.problem, decision->record.winner.config);
    const auto recorded = std::ranges::find_if(question.us, [&](const auto& candidate) {
      return *parse_config(question.task.problem, candidate.first) == winner;
    });
    ASSERT_NE(recorded, question.us.end());
    EXPECT_LE(recorded->second, 1.015 * question.us.front().second) << to_text(question.task);
    EXPECT_NEAR(decision->record.winner.median_us, recorded->second, 0.006 * recorded->second);
    tuned += decision->outcome == Outcome::kTuned ? 1 : 0;
  }
  EXPECT_GT(tuned, 5);
  EXPECT_LT(tuned, 24);
}

// One of eight ranks is killed, one is paused for long, and one comes late.
TEST(SharedRun, EightRanksDecideEveryQuestionOnce) {
  const test::TempFolder folder;
  const std::string root = folder.path() + "/root";
  std::vector<Fate> fates(8);
  fates[1].is_killed_after = 14;
  fates[2].is_paused_after = 5;
  fates[7].comes_after = 10;
  const auto outcomes = share_run(root, fates);
  for (std::size_t rank = 0; rank < fates.size(); ++rank) {
    EXPECT_EQ(outcomes[rank].killed, rank == 1) << rank;
    EXPECT_EQ(outcomes[rank].undecided, rank == 1 ? -1 : 0) << rank;
    EXPECT_FALSE(outcomes[rank].decided.empty()) << rank;
  }
  for (const auto& [question, times] : times_of(outcomes)) EXPECT_EQ(times, 1) << question;
  const cache::TuningFile whole(root, true);
  const auto merged = whole.read_text();
  ASSERT_TRUE(merged);
  EXPECT_EQ(decisions_in(whole.read()->records), undisturbed());
  cache::SharedTuning again(root, {.rank = "again"});
  EXPECT_TRUE(again.merge());
  EXPECT_EQ(*whole.read_text(), *merged) << "merging a second time changes nothing";
}

// One of the two is killed in the middle of its work, the other at a call of the file server, which
// may be that of its turn or of its record.
TEST(SharedRun, OfEightRanksTwoAreKilledAtRandomMomentsAndEveryQuestionIsDecidedOnce) {
  std::mt19937 random(53);
  int killed = 0;
  for (int repeated = 0; repeated < 4; ++repeated) {
    const test::TempFolder folder;
    const std::string root = folder.path() + "/root";
    std::vector<Fate> fates(8);
    fates[3].is_killed_after = std::uniform_real_distribution(0.0, 40.0)(random);
    fates[6].is_killed_at_call = std::uniform_int_distribution(1, 60)(random);
    const auto outcomes = share_run(root, fates);
    std::set<std::size_t> were_open;
    for (const Left& left : outcomes) {
      killed += left.killed ? 1 : 0;
      if (left.killed) were_open.insert(left.open);
      EXPECT_EQ(left.undecided, left.killed ? -1 : 0);
    }
    const auto times = times_of(outcomes);
    EXPECT_EQ(times.size(), test::recorded_run().size());
    for (const auto& [question, count] : times)
      EXPECT_LE(count, were_open.contains(question) ? 2 : 1) << question << " in " << repeated;
    EXPECT_EQ(decisions_in(cache::TuningFile(root, true).read()->records), undisturbed());
  }
  EXPECT_GE(killed, 6) << "the moments were late";
}

// Everything is recorded before, by a run of no name, and by the run of the other name.
TEST(SharedRun, ARunOfANameDecidesAgainEachQuestionOnce) {
  const test::TempFolder folder;
  const std::string root = folder.path() + "/root";
  share_run(root, {Fate()});
  for (const char* name : {"monday", "tuesday"}) {
    auto outcomes = share_run(root, {Fate(), Fate(), Fate{.is_killed_after = 25}}, name);
    const auto times = times_of(outcomes);
    EXPECT_EQ(times.size(), test::recorded_run().size()) << name;
    for (const auto& [question, count] : times) EXPECT_EQ(count, 1) << question << name;
    for (const Left& left : outcomes) EXPECT_EQ(left.decided_twice, 0);
  }
  const auto same_name = share_run(root, {Fate()}, "tuesday");
  EXPECT_TRUE(same_name.front().decided.empty());
  EXPECT_EQ(same_name.front().undecided, 0);
}

// Each of two hosts grants its own locks, or has none. All is decided, most of it twice, and who
// comes second with a record says so.
TEST(SharedRun, WithoutLocksEachHostDecidesAndSaysSo) {
  for (const Locks locks : {Locks::kOfHost, Locks::kNone}) {
    const test::TempFolder folder;
    const std::string root = folder.path() + "/root";
    const auto outcomes = share_run(root, {Fate(), Fate{.comes_after = 1}}, "", locks);
    int twice = 0;
    for (const auto& [question, count] : times_of(outcomes)) twice += count == 2 ? 1 : 0;
    EXPECT_GT(twice, 0);
    EXPECT_EQ(outcomes[0].decided_twice + outcomes[1].decided_twice, twice);
    for (const Left& left : outcomes) EXPECT_EQ(left.undecided, 0);
    EXPECT_EQ(decisions_in(cache::TuningFile(root, true).read()->records), undisturbed());
  }
}

// The first rank finds no memory for a question; the others see it as long as it is at work.
TEST(SharedRun, AQuestionThatCannotBeDecidedIsTriedByOneOfTheLiving) {
  const test::TempFolder folder;
  const std::string root = folder.path() + "/root";
  const cache::TuningRecord question = record_key(recorded_tasks().front(), recorded_device());
  using Taken = cache::SharedTuning::Taken;
  cache::SharedTuning second(root, {.rank = "second"});
  for (int run = 0; run < 2; ++run) {
    cache::SharedTuning first(root, {.rank = "first"});
    EXPECT_EQ(first.take(question), Taken::kMine);
    EXPECT_EQ(second.take(question), Taken::kTakenByAnother) << "its file has the word of before";
    first.fail(question);
    first.let_go();
    EXPECT_EQ(second.take(question), Taken::kFailed);
  }
  EXPECT_EQ(second.take(question), Taken::kMine) << "a later run tries it again";
}

TEST(SharedRun, ARunThatIsKilledTenTimesEndsAsAnUndisturbedOne) {
  std::mt19937 random(7);
  const auto tasks = recorded_tasks();
  const test::TempFolder folder;
  const auto now = std::make_shared<double>(0.0);
  std::size_t kept = 0, decided = 0;
  const auto run = [&](int number, int calls, double seconds) {
    ReplayDecider decider;
    double worked = 0;
    decider.pass = [&](double step) {
      *now += step;
      worked += step;
      if (worked > seconds) throw Killed();
    };
    RunOptions options;
    options.budget_seconds = 1e5;
    options.clock = [&] { return *now; };
    try {
      cache::SharedTuning shared(folder.path() + "/root", {.rank = "rank" + std::to_string(number)},
                                 std::make_shared<Dying<cache::FileOps>>(calls));
      options.shared = &shared;
      const auto result = run_tasks(tasks, recorded_device(), decider, options);
      EXPECT_TRUE(result) << result.error().message;
      EXPECT_TRUE(shared.merge());
    } catch (const Killed&) {
    }
    decided += decider.decided.size();
    const auto records = cache::TuningFolder(folder.path() + "/root", true).read();
    ASSERT_TRUE(records) << records.error().sentence;
    // The last of them may have died before its line was whole.
    EXPECT_GE(records->records.size() + 1, kept + decider.decided.size());
    EXPECT_GE(records->records.size(), kept);
    kept = records->records.size();
  };
  for (int killed = 0; killed < 10; ++killed) {
    const int calls = std::uniform_int_distribution(5, 120)(random);
    const double seconds = std::uniform_real_distribution(5.0, 60.0)(random);
    run(killed, killed % 2 == 0 ? calls : kNever, killed % 2 == 0 ? 1e9 : seconds);
  }
  EXPECT_LT(kept, tasks.size()) << "the last one has something to do";
  run(10, kNever, 1e9);
  EXPECT_LE(decided, tasks.size() + 10) << "what was open";
  const cache::TuningFile whole(folder.path() + "/root", true);
  EXPECT_EQ(decisions_in(whole.read()->records), undisturbed());
}

}  // namespace
}  // namespace octile::tuner
