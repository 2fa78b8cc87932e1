// octile tune merge and octile tune digest: records of several files, and what would be loaded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/cli/command.h"
#include "tests/cli/fifo.h"
#include "tests/support/tuning_testing.h"

namespace octile::tests {
namespace {

using cache::testing::kTunedProblem;
using cache::testing::make_decision;
using ::testing::HasSubstr;

std::string line(std::int64_t bucket, const std::string& config = "x") {
  return to_json_line(make_decision(kTunedProblem, bucket, config)) + "\n";
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
  fs::permissions(path, fs::perms(0644));
}

TEST(TuneMerge, FoldsFilesAndFoldersAndNamesWhatIsOdd) {
  const Shell shell;
  const fs::path folder = shell.folder() / "run";
  write(folder / "tuning.jsonl", line(64));
  write(folder / "tuning.d/a-1.jsonl", line(32) + "nonsense\n");
  write(folder / "tuning.d/note.txt", "no record");
  write(shell.folder() / "b.jsonl", line(64, "y"));
  const Outcome outcome =
      shell.run({"tune", "merge", folder.string(), (shell.folder() / "b.jsonl").string()});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.out, line(32) + line(64, "y"));
  EXPECT_THAT(outcome.err, HasSubstr("tuning.d/a-1.jsonl:2: "));
  EXPECT_THAT(outcome.err, HasSubstr("run/tuning.jsonl:1: other winner than"));
  EXPECT_THAT(outcome.err, HasSubstr("2 records of 3 files, 1 conflicts, 1 lines left out"));

  const std::string out = (shell.folder() / "out.jsonl").string();
  write(out, outcome.out);
  const Outcome again = shell.run({"tune", "merge", out, "--out", out});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(read_file(out), outcome.out);
}

TEST(TuneMerge, RefusesWhatHasNoRecords) {
  const Shell shell;
  const Outcome folder = shell.run({"tune", "merge", shell.folder().string()});
  EXPECT_EQ(folder.exit_code, 2);
  EXPECT_THAT(folder.err, HasSubstr("allowed: a folder with tuning.jsonl or tuning.d/*.jsonl"));
  const Outcome missing = shell.run({"tune", "merge", "/nowhere.jsonl"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("/nowhere.jsonl"));
  EXPECT_EQ(shell.run({"tune", "merge"}).exit_code, 2);
}

// A file that the user names may be a pipe. A file in a folder may be another user's FIFO.
TEST(TuneMerge, ReadsPipesThatAreNamedAndNoOthers) {
  const Shell shell;
  const fs::path folder = shell.folder() / "run";
  write(folder / "tuning.jsonl", line(64));
  const Fifo named(shell.folder() / "named", line(32));
  const std::string out = (shell.folder() / "out.jsonl").string();
  const Outcome merged = shell.run({"tune", "merge", named.path(), folder.string(), "--out", out});
  EXPECT_EQ(merged.exit_code, 0) << merged.err;
  EXPECT_EQ(read_file(out), line(32) + line(64));
  fs::create_directories(folder / "tuning.d");
  ASSERT_EQ(::mkfifo((folder / "tuning.d/x.jsonl").c_str(), 0600), 0);
  for (const std::string verb : {"merge", "report"}) {
    const std::vector<std::string> words =
        verb == "merge" ? std::vector<std::string>{"tune", "merge", folder.string()}
                        : std::vector<std::string>{"report", folder.string(), "--out", out};
    const Outcome refused = shell.run(words);
    EXPECT_EQ(refused.exit_code, 2) << verb;
    EXPECT_THAT(refused.err, HasSubstr("x.jsonl is a FIFO; allowed: a regular file")) << verb;
  }
  EXPECT_EQ(read_file(out), line(32) + line(64)) << "nothing is lost";
}

TEST(TuneDigest, FollowsTheRecordsThatWouldBeLoaded) {
  Shell shell;
  const std::string cache = (shell.folder() / "records").string();
  fs::create_directories(cache);
  fs::permissions(cache, fs::perms(0700));
  shell.set("OCTILE_CACHE_DIR", cache);
  const Outcome own = shell.run({"tune", "digest"});
  ASSERT_EQ(own.exit_code, 0) << own.err;
  EXPECT_THAT(own.out, ::testing::MatchesRegex("[0-9a-f]{32}\n"));
  write(cache + "/tuning.jsonl", line(64));
  const Outcome more = shell.run({"tune", "digest"});
  EXPECT_NE(more.out, own.out);
  const json document = shell.run({"tune", "digest", "--json"}).json();
  EXPECT_EQ(document.at("digest").get<std::string>() + "\n", more.out);
  EXPECT_EQ(document.at("sources").at(0).at("records"), 1);
  shell.set("OCTILE_CACHE_DIR", (shell.folder() / "elsewhere").string());
  shell.set("OCTILE_CACHE_ROOTS", cache);
  EXPECT_EQ(shell.run({"tune", "digest"}).out, more.out) << "wherever the file is";
}

}  // namespace
}  // namespace octile::tests
