// A file of the user's is whole or untouched, with anything under its name and for any end of the
// command.
#include "tools/common/output_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>

#include "tests/support/cache_testing.h"

namespace octile::tools {
namespace {

namespace fs = std::filesystem;
using cache::testing::Child;
using cache::testing::files_ending;
using cache::testing::read_bytes;
using cache::testing::TempDir;
using cache::testing::write_bytes;
using ::testing::HasSubstr;

using Bytes = std::vector<std::uint8_t>;

Status write_file(const std::string& path, const Bytes& bytes) {
  auto file = OutputFile::create(path);
  if (!file) return tl::unexpected<Error>(file.error());
  if (Status ok = file->write(bytes); !ok) return ok;
  return file->commit();
}

TEST(OutputFile, AppearsWhenItIsCommitted) {
  const TempDir folder;
  const std::string path = folder / "out";
  write_bytes(path, {1});
  {
    auto file = OutputFile::create(path);
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->write(Bytes{'x', 'y'}));
    EXPECT_EQ(read_bytes(path), Bytes{1});
  }
  EXPECT_EQ(read_bytes(path), Bytes{1});
  EXPECT_EQ(files_ending(folder / "", ""), std::vector{folder / "out"}) << "nothing is left";
  ASSERT_TRUE(write_file(path, {2, 3}));
  EXPECT_EQ(read_bytes(path), (Bytes{2, 3}));
  EXPECT_EQ(files_ending(folder / "", "").size(), 1U);
}

// Renaming over a link would replace it, and over a device, as root, would replace the device.
TEST(OutputFile, ReplacesNothingButARegularFile) {
  const TempDir folder;
  write_bytes(folder / "target", {1});
  fs::create_symlink(folder / "target", folder / "link");
  fs::create_symlink(folder / "nowhere", folder / "dangling");
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  fs::create_directory(folder / "folder");
  const std::vector<std::pair<std::string, std::string>> cases{{"link", "a symbolic link"},
                                                               {"dangling", "a symbolic link"},
                                                               {"fifo", "a FIFO"},
                                                               {"folder", "a folder"}};
  for (const auto& [name, what] : cases) {
    const Status refused = write_file(folder / name, {2});
    ASSERT_FALSE(refused) << name;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message, HasSubstr("is " + what + "; allowed: a regular file"));
  }
  EXPECT_THAT(write_file("/dev/null", {2}).error().message, HasSubstr("is a device"));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_EQ(read_bytes(folder / "target"), Bytes{1});
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_FALSE(fs::exists(folder / "nowhere"));
}

TEST(OutputFile, LooksAgainBeforeItRenames) {
  const TempDir folder;
  auto file = OutputFile::create(folder / "out");
  ASSERT_TRUE(file);
  ASSERT_EQ(::mkfifo((folder / "out").c_str(), 0600), 0);
  EXPECT_FALSE(file->commit());
  EXPECT_TRUE(fs::is_fifo(folder / "out"));
}

TEST(OutputFile, SaysWhatIsNoPathOfAFile) {
  const TempDir folder;
  for (const std::string& path : {std::string(), folder / "", folder / ".", folder / ".."})
    EXPECT_THAT(write_file(path, {}).error().message, HasSubstr("names no file")) << path;
  EXPECT_THAT(write_file("/nonexistent/out", {}).error().message,
              HasSubstr("/nonexistent/out cannot be written: open its folder: No such file"));
}

// A fixed temporary name would lead a write through a link that somebody left under it.
TEST(OutputFile, DoesNotWriteThroughWhatLiesBesideIt) {
  const TempDir folder;
  write_bytes(folder / "victim", {1});
  fs::create_symlink(folder / "victim", folder / "out.part");
  ASSERT_TRUE(write_file(folder / "out", {2}));
  EXPECT_EQ(read_bytes(folder / "victim"), Bytes{1});
}

TEST(OutputFile, ASignalRemovesWhatIsNotWhole) {
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) {
    const TempDir folder;
    Child writer([&]() -> std::string {
      auto file = OutputFile::create(folder / "out");
      if (!file) return file.error().message;
      write_bytes(folder / "ready", {});
      for (;;) ::pause();
    });
    while (!fs::exists(folder / "ready")) ::usleep(1000);
    ASSERT_EQ(files_ending(folder / "", "").size(), 2U);
    ASSERT_EQ(::kill(writer.pid(), signal), 0);
    EXPECT_EQ(writer.wait(), "signal " + std::to_string(signal)) << "the parent sees the signal";
    EXPECT_EQ(files_ending(folder / "", ""), std::vector{folder / "ready"});
  }
}

TEST(OutputFile, ASignalThatWasIgnoredStaysIgnored) {
  const TempDir folder;
  const std::string report = Child([&]() -> std::string {
                               (void)std::signal(SIGINT, SIG_IGN);
                               auto file = OutputFile::create(folder / "out");
                               if (!file) return file.error().message;
                               (void)::raise(SIGINT);
                               return file->commit() ? "" : "not committed";
                             }).wait();
  EXPECT_EQ(report, "");
  EXPECT_TRUE(fs::exists(folder / "out"));
}

TEST(OutputFile, WritersOfOneNameEachCommitAWholeFile) {
  const TempDir folder;
  const std::string path = folder / "out";
  std::vector<Child> writers;
  for (std::uint8_t i = 0; i < 8; ++i) {
    writers.emplace_back([&, i]() -> std::string {
      const Status ok = write_file(path, Bytes(100'000, i));
      return ok ? "" : ok.error().message;
    });
  }
  for (Child& writer : writers) EXPECT_EQ(writer.wait(), "");
  const Bytes bytes = read_bytes(path);
  ASSERT_EQ(bytes.size(), 100'000U);
  EXPECT_EQ(bytes, Bytes(bytes.size(), bytes[0]));
  EXPECT_EQ(files_ending(folder / "", "").size(), 1U);
}

}  // namespace
}  // namespace octile::tools
