// Processes that `octile tune --devices` forks: what they tell, how they end, and a tuning run that
// they share through a folder on a disk.
#include "tools/tune/processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <fstream>
#include <map>
#include <stdexcept>

#include "tests/support/api_handles.h"
#include "tests/support/recorded_run.h"

namespace octile::tools {
namespace {

using ::testing::ElementsAre;

struct Heard {
  std::vector<std::string> lines, ended;
  bool interrupt = false;
  Processes::Listener listener() {
    return {.heard = [this](const Process& process,
                            const Json& line) { lines.push_back(process.name + line.dump()); },
            .ended =
                [this](const Process& process) {
                  ended.push_back(process.ended_well() ? process.name + " is well"
                                                       : process.name + " " + end_text(process));
                },
            .is_interrupted = [this] { return interrupt; }};
  }
};

TEST(Processes, TellLinesOfAnyLength) {
  Heard heard;
  Processes processes;
  ASSERT_TRUE(processes.start("a", [](const Processes::Tell& tell) -> Status {
    tell({{"text", std::string(300'000, 'x')}});
    tell({{"last", true}});
    return {};
  }));
  processes.wait(heard.listener());
  ASSERT_EQ(heard.lines.size(), 2U);
  EXPECT_GT(heard.lines[0].size(), 300'000U);
  EXPECT_EQ(heard.lines[1], R"(a{"last":true})");
  EXPECT_THAT(heard.ended, ElementsAre("a is well"));
}

TEST(Processes, SayHowTheyEnded) {
  Heard heard;
  Processes processes;
  ASSERT_TRUE(processes.start("killed", [](const Processes::Tell&) -> Status {
    (void)::raise(SIGKILL);
    return {};
  }));
  processes.wait(heard.listener());
  ASSERT_TRUE(processes.start("gone", [](const Processes::Tell&) -> Status { ::_exit(3); }));
  processes.wait(heard.listener());
  ASSERT_TRUE(processes.start("failed", [](const Processes::Tell&) -> Status {
    return fail(ErrorCode::kDeviceError, "the device is lost");
  }));
  processes.wait(heard.listener());
  ASSERT_TRUE(processes.start(
      "thrown", [](const Processes::Tell&) -> Status { throw std::runtime_error("no memory"); }));
  processes.wait(heard.listener());
  EXPECT_THAT(heard.ended,
              ElementsAre("killed was ended by signal 9 (Killed)", "gone ended with status 3",
                          "failed the device is lost", "thrown no memory"));
  EXPECT_EQ(processes.all().at(2).result.error().code, ErrorCode::kDeviceError);
}

std::atomic<bool> g_told = false;

TEST(Processes, AreToldOfAnInterruptOnce) {
  Heard heard;
  Processes processes;
  for (const char* name : {"a", "b"}) {
    ASSERT_TRUE(processes.start(name, [](const Processes::Tell& tell) -> Status {
      (void)std::signal(SIGINT, [](int) { g_told = true; });
      tell({{"ready", ::getpgrp() == ::getpid()}});
      while (!g_told) ::usleep(1000);
      return {};
    }));
  }
  auto listener = heard.listener();
  listener.is_interrupted = [&] { return heard.lines.size() == 2; };
  processes.wait(listener);
  EXPECT_THAT(heard.ended, ::testing::UnorderedElementsAre("a is well", "b is well"));
  EXPECT_THAT(heard.lines, ::testing::Contains(R"(a{"ready":true})"));
}

// Returns true once the process has ended, whether or not somebody has waited for it.
bool has_ended_soon(pid_t process) {
  for (int i = 0; i < 2000; ++i) {
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    std::string number, name, state;
    if (!(file >> number >> name >> state) || state == "Z") return true;
    ::usleep(1000);
  }
  return false;
}

TEST(Processes, NoneOutlivesItsParent) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    Processes processes;
    (void)processes.start("child", [](const Processes::Tell& tell) -> Status {
      tell({{"number", ::getpid()}});
      for (;;) ::pause();
    });
    processes.wait({.heard =
                        [&](const Process&, const Json& line) {
                          const pid_t child = static_cast<pid_t>(*line.at("number").integer());
                          (void)!::write(ends[1], &child, sizeof child);
                          (void)::raise(SIGKILL);
                        },
                    .ended = [](const Process&) {},
                    .is_interrupted = [] { return false; }});
    ::_exit(0);
  }
  pid_t child = 0;
  ASSERT_EQ(::read(ends[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  ASSERT_EQ(::waitpid(parent, nullptr, 0), parent);
  EXPECT_TRUE(has_ended_soon(child));
  (void)::close(ends[0]);
  (void)::close(ends[1]);
}

TEST(Processes, AreKilledIfNobodyWaitsForThem) {
  pid_t child = 0;
  {
    Processes processes;
    ASSERT_TRUE(processes.start("a", [](const Processes::Tell&) -> Status {
      for (;;) ::pause();
    }));
    child = processes.all().front().number;
  }
  EXPECT_NE(::kill(child, 0), 0);
}

// Four processes, of which one kills itself within a question whose turn it has.
TEST(Processes, ShareATuningRunOfWhichOneIsKilled) {
  const test::TempFolder folder;
  const std::string root = folder.path() + "/root";
  Processes processes;
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(processes.start(std::to_string(rank), [&](const Processes::Tell& tell) -> Status {
      double now = 0;
      test::ReplayDecider decider;
      decider.pass = [&](double seconds) {
        now += seconds;
        ::usleep(500);
        if (rank == 2 && now > 15) (void)::raise(SIGKILL);
      };
      cache::SharedTuning shared(root, {.rank = "rank" + std::to_string(rank)});
      tuner::RunOptions options;
      options.shared = &shared;
      options.budget_seconds = 1e6;
      options.clock = [&] { return now; };
      options.pause = [](double) { ::usleep(1000); };
      options.ended = [&](const tuner::Decision& decision) {
        tell({{"ended", test::place_in_run(decision.task)}});
      };
      const auto result =
          run_tasks(test::recorded_tasks(), test::recorded_device(), decider, options);
      if (!result) return tl::unexpected<Error>(result.error());
      EXPECT_EQ(result->undecided, 0);
      if (result->undecided > 0 || !shared.merge()) ::_exit(7);
      return {};
    }));
  }
  std::map<std::size_t, int> times;
  std::vector<std::string> failed;
  processes.wait({.heard =
                      [&](const Process&, const Json& line) {
                        ++times[static_cast<std::size_t>(*line.at("ended").integer())];
                      },
                  .ended =
                      [&](const Process& process) {
                        if (!process.ended_well()) failed.push_back(process.name);
                      },
                  .is_interrupted = [] { return false; }});
  EXPECT_THAT(failed, ElementsAre("2"));
  EXPECT_EQ(times.size(), test::recorded_run().size());
  for (const auto& [question, count] : times) EXPECT_EQ(count, 1) << question;
  EXPECT_EQ(cache::TuningFile(root, true).read()->records.size(), times.size());
}

}  // namespace
}  // namespace octile::tools
