// octile cache import refuses harmful archives and writes nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zstd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/cli/command.h"
#include "tests/cli/fifo.h"
#include "tests/support/cache_testing.h"
#include "tests/support/ustar.h"
#include "tools/common/sha256.h"

namespace octile::tests {
namespace {

using cache::Entry;
using ::testing::HasSubstr;

std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

class CacheImport : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_compiler(shell_)) GTEST_SKIP() << "no NVRTC";
    ASSERT_EQ(shell_.run({"compile", "--quantize", "16x7168"}).exit_code, 0);
    const auto files =
        cache::testing::files_ending((shell_.folder() / "cache").string(), ".octile");
    ASSERT_EQ(files.size(), 1U);
    good_ = text_of(cache::testing::read_bytes(files[0]));
    name_ = fs::relative(files[0], shell_.folder() / "cache").string();
    shell_.set("OCTILE_CACHE_DIR", (shell_.folder() / "target/cache").string());
  }

  static std::string line(const std::string& name, const std::string& content) {
    return tools::sha256_hex(content) + " " + std::to_string(content.size()) + " " + name + "\n";
  }
  std::string manifest(const std::string& lines) const {
    return ustar_member("octile-cache.manifest", "octile cache archive 2\n" + lines);
  }
  // Returns a complete archive: the member, and a manifest that agrees with it.
  std::string archive_of(const std::string& name, const std::string& content) const {
    return ustar_member(name, content) + manifest(line(name, content));
  }
  // Expects a refusal with these words, and that the folder around the cache is unchanged.
  void expect_refused(const std::string& archive, const std::string& words) {
    const std::string path = (shell_.folder() / "hostile.tar").string();
    std::ofstream(path, std::ios::binary) << archive << ustar_end();
    const Outcome outcome = shell_.run({"cache", "import", path});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr(words));
    const fs::path target = shell_.folder() / "target";
    const auto written = cache::testing::files_ending(target.string(), "");
    EXPECT_TRUE(written.empty()) << written[0];
    EXPECT_FALSE(fs::exists(shell_.folder() / "evil"));
  }

  Shell shell_;
  std::string name_, good_;
};

TEST_F(CacheImport, TakesWhatTheseTestsSpoil) {
  const std::string path = (shell_.folder() / "good.tar").string();
  std::ofstream(path, std::ios::binary) << archive_of(name_, good_) << ustar_end();
  const Outcome outcome = shell_.run({"cache", "import", path});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(fs::exists(shell_.folder() / "target/cache" / name_));
}

// An archive has two digests: that of its file, as sha256sum prints it, and that of its manifest.
TEST_F(CacheImport, TakesTheExpectedArchiveOnly) {
  const std::string path = (shell_.folder() / "good.tar").string();
  const std::string archive = archive_of(name_, good_) + ustar_end();
  std::ofstream(path, std::ios::binary) << archive;
  const std::string of_file = tools::sha256_hex(archive);
  const std::string of_manifest =
      tools::sha256_hex("octile cache archive 2\n" + line(name_, good_));
  std::string other = of_file;
  other[0] = other[0] == '0' ? '1' : '0';
  const Outcome refused = shell_.run({"cache", "import", path, "--expect", other});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err,
              HasSubstr("--expect is " + other + "; allowed: the sha256 of " + path + " itself, " +
                        of_file + ", or of the manifest in it, " + of_manifest));
  EXPECT_FALSE(fs::exists(shell_.folder() / "target/cache/v1"));
  for (const std::string& odd : {std::string("abc"), of_file + "0", std::string(64, 'G')}) {
    const Outcome outcome = shell_.run({"cache", "import", path, "--expect", odd});
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("--expect is '" + odd + "'; allowed: 64"));
  }
  for (const std::string& expected : {of_manifest, of_file}) {
    const Outcome taken = shell_.run({"cache", "import", path, "--expect", expected, "--json"});
    EXPECT_EQ(taken.exit_code, 0) << taken.err;
    EXPECT_EQ(taken.json().at("manifest_sha256"), of_manifest);
    EXPECT_EQ(taken.json().at("file_sha256"), of_file);
  }
  const std::string again = (shell_.folder() / "again.tar").string();
  const json exported = shell_.run({"cache", "export", again, "--json"}).json();
  EXPECT_EQ(exported.at("manifest_sha256"), of_manifest);
  EXPECT_EQ(exported.at("file_sha256"), tools::sha256_hex(read_file(again)));
  const Outcome words = shell_.run({"cache", "import", again, "--dry-run"});
  EXPECT_THAT(words.out, HasSubstr("sha256 of its manifest  " + of_manifest));
  EXPECT_THAT(words.out, HasSubstr("sha256 of the file      " +
                                   exported.at("file_sha256").get<std::string>()));
}

// A pipe is read once and serves as a file does.
TEST_F(CacheImport, ReadsStandardInputAndPipes) {
  const std::string archive = archive_of(name_, good_) + ustar_end();
  const std::string digest = tools::sha256_hex(archive);
  for (const std::string path : {"-", "/dev/stdin", "fifo"}) {
    Shell shell;
    const Fifo fifo(shell.folder() / "fifo", archive);
    const bool named = path == "fifo";
    if (!named) shell.redirect(0, fifo.path());
    const Outcome outcome =
        shell.run({"cache", "import", named ? fifo.path() : path, "--expect", digest, "--json"});
    ASSERT_EQ(outcome.exit_code, 0) << path << outcome.err;
    EXPECT_EQ(outcome.json().at("added"), 1);
    EXPECT_EQ(outcome.json().at("archive"), named ? fifo.path() : "standard input");
    EXPECT_TRUE(fs::exists(shell.folder() / "cache" / name_));
  }
  const Outcome folder = shell_.run({"cache", "import", "/"});
  EXPECT_EQ(folder.exit_code, 2);
  EXPECT_THAT(folder.err, HasSubstr("/ is a folder; allowed: a file, a pipe, or - for standard"));
}

TEST_F(CacheImport, RefusesPathsOutOfTheCache) {
  const std::string absolute = (shell_.folder() / "evil").string();
  for (const std::string& name : std::vector<std::string>{
           "../evil", "../../evil", "v1/../../../evil", absolute, "v1/../v1/00/evil"}) {
    expect_refused(archive_of(name, good_), "allowed are v1/<2 hex>/<entry name>");
  }
}

TEST_F(CacheImport, RefusesLinks) {
  const std::string folder = shell_.folder().string();
  for (const char type : {kHardLink, kSymbolicLink}) {
    expect_refused(ustar_member("v1", "", type, folder) + archive_of(name_, good_),
                   "not a plain regular file");
    expect_refused(ustar_member(name_, "", type, folder + "/evil") + manifest(""),
                   "not a plain regular file");
  }
}

TEST_F(CacheImport, RefusesWhatFollowsAGoodEntry) {
  const std::string first = ustar_member(name_, good_);
  expect_refused(first + first + manifest(line(name_, good_) + line(name_, good_)),
                 "it is there twice");
  expect_refused(first + ustar_member("v1/ff/x.octile", "x") + manifest(line(name_, good_)),
                 "allowed are");
  expect_refused(first, "without a manifest");
  expect_refused(archive_of(name_, good_) + first, "something follows its manifest");
}

TEST_F(CacheImport, RefusesWrongChecksums) {
  std::string flipped = good_;
  flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 1);
  expect_refused(archive_of(name_, flipped), "checksum of the entry");
  std::string other = line(name_, good_);
  other[0] = other[0] == '0' ? '1' : '0';
  expect_refused(ustar_member(name_, good_) + manifest(other), "does not agree with the entries");
}

// 2 KB that decompress to 64 MB, with correct checksums.
TEST_F(CacheImport, RefusesDecompressionBombs) {
  const std::string zeros(std::size_t{64} << 20, '\0');
  std::string frame(ZSTD_compressBound(zeros.size()), '\0');
  frame.resize(ZSTD_compress(frame.data(), frame.size(), zeros.data(), zeros.size(), 1));
  const auto number = [](std::uint64_t value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);  // little-endian hosts
  };
  const auto checksum = [&](const std::string& bytes) {
    const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
    return number(hash.low64) + number(hash.high64);
  };
  for (const std::uint64_t declared : {std::uint64_t{1000}, std::uint64_t{64} << 20}) {
    std::string bomb = good_.substr(0, 16) + number(2) + number(frame.size()) + number(declared) +
                       number(0) + "{}";
    bomb += checksum(bomb);
    bomb += frame;
    bomb += checksum(bomb);
    // A compressed archive is refused.
    expect_refused(archive_of(name_, bomb), "hostile.tar is not a usable archive");
  }
  expect_refused(frame, "hostile.tar is not a usable archive");
}

}  // namespace
}  // namespace octile::tests
