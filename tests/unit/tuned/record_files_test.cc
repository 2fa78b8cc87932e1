// Files and folders of records: which are read, and how a merged set is written.
#include "runtime/tuned/record_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/api_handles.h"
#include "tests/support/tuning_testing.h"

namespace octile {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RecordFilesTest : public ::testing::Test {
 protected:
  static std::string line(std::int64_t bucket) {
    return to_json_line(cache::testing::make_decision(cache::testing::kTunedProblem, bucket)) +
           "\n";
  }
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = folder.path() + "/" + name;
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path) << text;
    return path;
  }
  static std::string read(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  test::TempFolder folder;
};

TEST_F(RecordFilesTest, AFolderStandsForItsSetAndThoseOfItsRanks) {
  write("a/tuning.jsonl", line(8));
  write("a/tuning.d/1.jsonl", line(16));
  write("a/tuning.d/0.jsonl", line(32));
  write("a/tuning.d/notes.txt", "no record");
  const std::string a = folder.path() + "/a";
  std::vector<std::string> found;
  const auto files = record_files_of(a + "/");
  ASSERT_TRUE(files);
  for (const RecordFile& file : *files) {
    EXPECT_FALSE(file.named);
    found.push_back(file.path);
  }
  EXPECT_THAT(found,
              ElementsAre(a + "/tuning.jsonl", a + "/tuning.d/0.jsonl", a + "/tuning.d/1.jsonl"));
  const auto merged = merge_records({a, write("b.jsonl", line(64) + line(8))});
  ASSERT_TRUE(merged) << merged.error().message;
  EXPECT_EQ(merged->files, 4);
  EXPECT_EQ(merged->set.text(), line(8) + line(16) + line(32) + line(64));
}

TEST_F(RecordFilesTest, MergingAResultChangesNothing) {
  const std::string out = folder.path() + "/all.jsonl";
  ASSERT_TRUE(merge_records_into(out, {write("b", line(64) + line(8)), write("a", line(8))}));
  const std::string text = read(out);
  EXPECT_EQ(text, line(8) + line(64));
  ASSERT_TRUE(merge_records_into(out, {out, out}));
  EXPECT_EQ(read(out), text);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 3) << "nothing else is left";
}

TEST_F(RecordFilesTest, WhatCannotBeReadOrWrittenIsNamed) {
  const auto refused = [](const auto& result, ErrorCode code, const std::string& sentence) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, code);
    EXPECT_THAT(result.error().message, HasSubstr(sentence));
  };
  fs::create_directories(folder.path() + "/empty");
  refused(merge_records({folder.path() + "/empty"}), ErrorCode::kInvalidArgument,
          "/empty has no records; allowed: a folder with tuning.jsonl or tuning.d/*.jsonl");
  refused(merge_records({folder.path() + "/none"}), ErrorCode::kInvalidArgument,
          "/none cannot be read: No such file or directory");
  const std::string a = write("a", line(8)), none = folder.path() + "/none";
  refused(merge_records_into(folder.path() + "/empty", {a}), ErrorCode::kInvalidArgument,
          "/empty is a folder; allowed: a regular file, which is replaced, or a name that is free");
  refused(merge_records_into(folder.path() + "/", {a}), ErrorCode::kInvalidArgument,
          "names no file");
  refused(merge_records_into(none, {a, none}), ErrorCode::kInvalidArgument,
          "/none cannot be read: No such file or directory");
  EXPECT_FALSE(fs::exists(none));
  refused(merge_records_into(none + "/x", {a}), ErrorCode::kFile,
          "/none/x cannot be written: cannot open the folder of");
}

}  // namespace
}  // namespace octile
