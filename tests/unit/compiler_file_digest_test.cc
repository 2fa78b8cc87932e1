#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
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
  static std::string read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }
  fs::path folder_;
};

TEST_F(FileDigest, IsTheDigestOfTheWholeContents) {
  const std::string text(3 * (std::size_t{1} << 20) + 17, 'x');  // longer than the reader's buffer
  EXPECT_EQ(file_digest(write("file", text), {}).value(), cache::digest_hex(text));
}

TEST_F(FileDigest, SeesAChangedFile) {
  const std::string path = write("file", "one");
  const std::string before = file_digest(path, {}).value();
  write("file", "two!");
  EXPECT_NE(file_digest(path, {}).value(), before);
}

TEST_F(FileDigest, TrustsAMemoLineWithARightChecksum) {
  const std::string memo = (folder_ / "memo").string();
  const std::string first = write("first", "contents");
  const std::string digest = file_digest(first, memo).value();
  const std::string line = read(memo);
  ASSERT_NE(line.find(digest), std::string::npos);

  // The memo claims another digest for a second file. It is used only if its checksum is right. The
  // stat key follows checksum and digest in a line; here it is made from the first file's line.
  const std::string second = write("second", "contents");
  fs::last_write_time(second, fs::last_write_time(first));
  const std::string real = file_digest(second, (folder_ / "scratch").string()).value();
  std::string rest = read((folder_ / "scratch").string()).substr(33);
  rest.pop_back();
  ASSERT_EQ(rest.substr(0, 32), real);
  const std::string forged = std::string(32, 'a') + rest.substr(32);
  fs::last_write_time(second, fs::last_write_time(second) + std::chrono::seconds(1));
  std::ofstream(memo, std::ios::app) << std::string(32, '0') << ' ' << forged << '\n';
  EXPECT_EQ(file_digest(second, memo).value(), real);
}

TEST_F(FileDigest, AnUnusableMemoCostsTimeOnly) {
  const std::string path = write("file", "contents");
  const std::string expected = cache::digest_hex("contents");
  EXPECT_EQ(file_digest(path, (folder_ / "missing" / "memo").string()).value(), expected);
  const std::string other = write("other", "contents");
  EXPECT_EQ(file_digest(other, write("torn", "not a memo\n\n\x01\xff")).value(), expected);
}

TEST_F(FileDigest, NamesAFileItCannotRead) {
  const auto digest = file_digest((folder_ / "absent").string(), {});
  ASSERT_FALSE(digest);
  EXPECT_EQ(digest.error().code, ErrorCode::kNoCompiler);
  EXPECT_NE(digest.error().message.find("absent"), std::string::npos);
}

}  // namespace
}  // namespace octile
