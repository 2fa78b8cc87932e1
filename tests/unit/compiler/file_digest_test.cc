#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "cache/key.h"
#include "runtime/compiler/file_digest.h"

namespace octile {
namespace {

namespace fs = std::filesystem;

class FileDigest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("octile_digest_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }
  fs::path folder_;
};

TEST_F(FileDigest, IsTheDigestOfTheWholeContents) {
  const std::string text(3 * (std::size_t{1} << 20) + 17, 'x');  // longer than the reader's buffer
  EXPECT_EQ(file_digest(write("file", text)).value(), cache::digest_hex(text));
  EXPECT_EQ(file_digest(write("empty", "")).value(), cache::digest_hex(""));
}

TEST_F(FileDigest, SeesAChangedFile) {
  const std::string path = write("file", "one");
  const std::string before = file_digest(path).value();
  write("file", "two!");
  EXPECT_NE(file_digest(path).value(), before);
}

// Size, modification time and inode have not changed. Only the ctime tells.
TEST_F(FileDigest, SeesAChangeThatHidesItself) {
  const std::string path = write("file", "one");
  struct stat first = {};
  ASSERT_EQ(::stat(path.c_str(), &first), 0);
  EXPECT_EQ(file_digest(path).value(), cache::digest_hex("one"));
  struct stat second = first;
  // The clock of a filesystem moves every few milliseconds.
  while (second.st_ctim.tv_sec == first.st_ctim.tv_sec &&
         second.st_ctim.tv_nsec == first.st_ctim.tv_nsec) {
    write("file", "two");
    const timespec times[] = {first.st_atim, first.st_mtim};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    ASSERT_EQ(::stat(path.c_str(), &second), 0);
  }
  ASSERT_EQ(second.st_size, first.st_size);
  ASSERT_EQ(second.st_ino, first.st_ino);
  ASSERT_EQ(second.st_mtim.tv_nsec, first.st_mtim.tv_nsec);
  EXPECT_EQ(file_digest(path).value(), cache::digest_hex("two"));
}

TEST_F(FileDigest, FollowsALinkToItsFile) {
  const std::string path = write("file", "contents");
  fs::create_symlink(path, folder_ / "link");
  EXPECT_EQ(file_digest((folder_ / "link").string()).value(), cache::digest_hex("contents"));
  cache::FileOps ops;
  EXPECT_EQ(status_text(ops, (folder_ / "link").string()).value(), status_text(ops, path).value());
}

// Reading a FIFO would wait for a writer for ever, and /dev/zero has no end.
TEST_F(FileDigest, ReadsRegularFilesOnly) {
  const std::string fifo = (folder_ / "fifo").string();
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const std::string sparse = write("sparse", "");
  fs::resize_file(sparse, kMaxDigestedBytes + 1);
  for (const std::string& path : {fifo, std::string("/dev/zero"), folder_.string(), sparse}) {
    const auto digest = file_digest(path);
    ASSERT_FALSE(digest) << path;
    EXPECT_EQ(digest.error().code, ErrorCode::kNoCompiler);
  }
}

TEST_F(FileDigest, NamesAFileItCannotRead) {
  const auto digest = file_digest((folder_ / "absent").string());
  ASSERT_FALSE(digest);
  EXPECT_EQ(digest.error().code, ErrorCode::kNoCompiler);
  EXPECT_NE(digest.error().message.find("absent"), std::string::npos);
}

}  // namespace
}  // namespace octile
