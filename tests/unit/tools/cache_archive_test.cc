// Archives of cache entries: the round trip, and everything that a hostile archive may try.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "tests/support/cache_testing.h"
#include "tests/support/ustar.h"
#include "tools/cache/archive_format.h"
#include "tools/cache/archive_input.h"
#include "tools/cache/libarchive.h"
#include "tools/common/sha256.h"

namespace octile::tools {
namespace {

using cache::Entry;
using cache::FileStem;
using cache::testing::make_entry;
using cache::testing::stem_of;
using cache::testing::TempDir;
using ::testing::HasSubstr;

using Bytes = std::vector<std::uint8_t>;

Bytes as_bytes(const std::string& text) { return {text.begin(), text.end()}; }

std::string name_of(const Entry& entry) {
  return "v1/" + stem_of(entry).folder() + "/" + stem_of(entry).entry_name();
}

// Returns two entries in the order of their names.
std::vector<Entry> two_entries() {
  std::vector<Entry> entries{make_entry(1), make_entry(2)};
  if (name_of(entries[1]) < name_of(entries[0])) std::swap(entries[0], entries[1]);
  return entries;
}

// Makes a tar with any members in any order, as a stranger may send it.
class Forge {
 public:
  Forge& file(const std::string& name, const Bytes& bytes) {
    return member(name, tests::kRegularFile, bytes, "");
  }
  Forge& entry(const Entry& e) {
    const Bytes bytes = cache::serialize(e);
    manifest_ += manifest_line(name_of(e), bytes);
    return file(name_of(e), bytes);
  }
  Forge& manifest() { return file(std::string(kManifestName), as_bytes(manifest_)); }
  Forge& member(const std::string& name, char type, const Bytes& bytes, const std::string& target) {
    tar_ += tests::ustar_member(name, {bytes.begin(), bytes.end()}, type, target);
    return *this;
  }
  Bytes bytes() const { return as_bytes(tar_ + tests::ustar_end()); }

 private:
  std::string tar_;
  std::string manifest_ = "octile cache archive 2\n";
};

std::vector<Entry> read_all(const Bytes& bytes) {
  std::vector<Entry> entries;
  const Status ok =
      ArchiveInput::of(bytes, "test").read([&](const FileStem& stem, Entry entry) -> Status {
        EXPECT_EQ(stem.entry_name(), stem_of(entry).entry_name());
        entries.push_back(std::move(entry));
        return {};
      });
  EXPECT_TRUE(ok) << ok.error().message;
  return entries;
}

std::string refusal(const Bytes& bytes) {
  const Status status =
      ArchiveInput::of(bytes, "test").read([](const FileStem&, const Entry&) { return Status(); });
  if (status) return "accepted";
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  return status.error().message;
}

Bytes written(const std::vector<Entry>& entries) {
  const TempDir folder;
  const std::string path = folder / "archive.tar";
  auto writer = ArchiveWriter::create(path);
  EXPECT_TRUE(writer);
  for (const Entry& entry : entries) {
    EXPECT_TRUE(writer->add(stem_of(entry), cache::serialize(entry)));
  }
  EXPECT_TRUE(writer->finish());
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return as_bytes(text.str());
}

TEST(CacheArchive, GivesBackWhatWasWritten) {
  EXPECT_EQ(read_all(written(two_entries())), two_entries());
  EXPECT_TRUE(read_all(written({})).empty());
}

TEST(CacheArchive, IsWhatFormatMdSays) {
  EXPECT_EQ(read_all(Forge().entry(two_entries()[0]).entry(two_entries()[1]).manifest().bytes()),
            two_entries());
}

TEST(CacheArchive, LeavesNothingUnlessFinished) {
  const TempDir folder;
  const std::string path = folder / "archive.tar";
  {
    auto writer = ArchiveWriter::create(path);
    ASSERT_TRUE(writer);
    ASSERT_TRUE(writer->add(stem_of(make_entry()), cache::serialize(make_entry())));
    // The same entry is refused the second time.
    EXPECT_FALSE(writer->add(stem_of(make_entry()), cache::serialize(make_entry())));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
  const auto nowhere = ArchiveWriter::create("/nonexistent/archive.tar");
  ASSERT_FALSE(nowhere);
  EXPECT_THAT(nowhere.error().message, HasSubstr("/nonexistent/archive.tar cannot be written"));
}

TEST(CacheArchive, CutAnywhereIsRefused) {
  const Bytes whole = written(two_entries());
  const std::size_t needed = whole.size() - 1024;  // two blocks of zeros end a tar
  for (std::size_t size = 0; size < needed; size += 61) {
    EXPECT_NE(refusal(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size))),
              "accepted")
        << size;
  }
}

TEST(CacheArchive, AFlippedBitInAnEntryIsRefused) {
  const Bytes whole = written({make_entry()});
  constexpr std::size_t kHeaderBytes = 512;
  const std::size_t size = cache::serialize(make_entry()).size();
  for (std::size_t i = 0; i < size; i += 7) {
    Bytes flipped = whole;
    flipped[kHeaderBytes + i] ^= 0x10;
    EXPECT_NE(refusal(flipped), "accepted") << i;
  }
}

TEST(CacheArchive, NamesThatAreNoEntrysAreRefused) {
  const Entry entry = make_entry();
  const Bytes bytes = cache::serialize(entry);
  const std::string file = stem_of(entry).entry_name();
  const std::string folder = stem_of(entry).folder();
  for (const std::string& name :
       {"../" + name_of(entry), "/" + name_of(entry), "v1/../v1/" + folder + "/" + file,
        "v1/" + folder + "/../" + folder + "/" + file, "v1/zz/" + file, "v2/" + folder + "/" + file,
        file, "v1/" + folder + "//" + file, std::string("v1/evil.sh"),
        std::string("toolchain.memo"), name_of(entry) + ".0123456789abcdef.tmp"}) {
    EXPECT_THAT(refusal(Forge().file(name, bytes).manifest().bytes()),
                HasSubstr("allowed are v1/<2 hex>/<entry name>"))
        << name;
  }
}

TEST(CacheArchive, WhatIsNoPlainFileIsRefused) {
  const std::string name = name_of(make_entry());
  for (const char type : {tests::kSymbolicLink, tests::kHardLink, tests::kFolder, tests::kFifo,
                          tests::kCharacterDevice}) {
    EXPECT_THAT(refusal(Forge().member(name, type, {}, "/etc/passwd").manifest().bytes()),
                HasSubstr("not a plain regular file"))
        << type;
  }
}

TEST(CacheArchive, DuplicatesAndDisorderAreRefused) {
  const std::vector<Entry> two = two_entries();
  EXPECT_THAT(refusal(Forge().entry(two[0]).entry(two[0]).manifest().bytes()),
              HasSubstr("it is there twice"));
  EXPECT_THAT(refusal(Forge().entry(two[1]).entry(two[0]).manifest().bytes()),
              HasSubstr("names ascend"));
}

TEST(CacheArchive, AnEntryUnderAnothersNameIsRefused) {
  const std::vector<Entry> two = two_entries();
  EXPECT_THAT(refusal(Forge().file(name_of(two[0]), cache::serialize(two[1])).manifest().bytes()),
              HasSubstr("it holds another kernel than its name says"));
  EXPECT_THAT(refusal(Forge().file(name_of(two[0]), Bytes(500, 'x')).manifest().bytes()),
              HasSubstr("no magic"));
}

TEST(CacheArchive, TheManifestHasToAgree) {
  const Entry entry = make_entry();
  const std::string name(kManifestName);
  const std::string head = "octile cache archive 2\n";
  const std::string line = manifest_line(name_of(entry), cache::serialize(entry));
  EXPECT_THAT(refusal(Forge().entry(entry).bytes()), HasSubstr("without a manifest"));
  for (const std::string& text : {head, head + line + line, head + "0" + line.substr(1)}) {
    EXPECT_THAT(refusal(Forge().entry(entry).file(name, as_bytes(text)).bytes()),
                HasSubstr(" does not agree with the entries"))
        << text;
  }
  EXPECT_THAT(
      refusal(Forge().entry(entry).file(name, as_bytes("octile cache archive 1\n")).bytes()),
      HasSubstr("does not begin with 'octile cache archive 2'"));
  EXPECT_THAT(refusal(Forge().manifest().entry(entry).bytes()),
              HasSubstr("something follows its manifest"));
}

// The file may change between the reading that checks it and the one that writes its entries.
TEST(CacheArchive, ASecondReadingGivesTheEntriesOfTheFirst) {
  const TempDir folder;
  const std::string path = folder / "archive.tar";
  const std::vector<Entry> two = two_entries();
  const Bytes first = Forge().entry(two[0]).entry(two[1]).manifest().bytes();
  cache::testing::write_bytes(path, first);
  auto archive = ArchiveInput::open(path);
  ASSERT_TRUE(archive);
  int visited = 0;
  const auto read = [&] {
    visited = 0;
    return archive->read([&](const FileStem&, const Entry&) {
      ++visited;
      return Status();
    });
  };
  ASSERT_TRUE(read());
  EXPECT_EQ(archive->digests().file, sha256_hex(first));
  EXPECT_TRUE(read());
  EXPECT_EQ(visited, 2);
  Entry other = two[0];
  other.cubin[10] ^= 1;
  const std::vector<std::pair<Bytes, int>> changed{
      {Forge().entry(other).entry(two[1]).manifest().bytes(), 0},
      {Forge().entry(two[1]).manifest().bytes(), 0},
      {Forge().entry(two[0]).manifest().bytes(), 1},
      {Forge().manifest().bytes(), 0}};
  for (const auto& [bytes, seen] : changed) {
    cache::testing::write_bytes(path, bytes);
    const Status refused = read();
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, HasSubstr("not what it was when the archive was checked"));
    EXPECT_EQ(visited, seen);
    EXPECT_EQ(archive->digests().file, sha256_hex(first)) << "those of the first reading";
  }
}

// The digest is of the bytes that were read, with those behind the tar's end.
TEST(CacheArchive, BothDigestsAreThoseOfTheBytesOnDisk) {
  const TempDir folder;
  const std::string path = folder / "archive.tar";
  auto writer = ArchiveWriter::create(path);
  ASSERT_TRUE(writer);
  std::string manifest(kManifestHead);
  for (const Entry& entry : two_entries()) {
    ASSERT_TRUE(writer->add(stem_of(entry), cache::serialize(entry)));
    manifest += manifest_line(name_of(entry), cache::serialize(entry));
  }
  const auto digests = writer->finish();
  ASSERT_TRUE(digests);
  Bytes bytes = cache::testing::read_bytes(path);
  EXPECT_EQ(digests->file, sha256_hex(bytes));
  EXPECT_EQ(digests->manifest, sha256_hex(manifest));
  for (const int more : {0, 1, 200'000}) {
    bytes.resize(bytes.size() + static_cast<std::size_t>(more), 'x');
    cache::testing::write_bytes(path, bytes);
    auto archive = ArchiveInput::open(path);
    ASSERT_TRUE(archive);
    EXPECT_TRUE(archive->digests().file.empty());
    ASSERT_TRUE(archive->read([](const FileStem&, const Entry&) { return Status(); }));
    EXPECT_EQ(archive->digests().file, sha256_hex(bytes));
    EXPECT_EQ(archive->digests().manifest, digests->manifest);
  }
}

// FIPS 180-4 and the examples of NIST's Cryptographic Standards and Guidelines, "SHA256".
TEST(Sha256, IsThatOfTheStandard) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Every length around the block's end, against the system's own program.
TEST(Sha256, AgreesWithTheSystemsProgram) {
  const TempDir folder;
  std::string files;
  std::vector<std::string> digests;
  for (std::size_t size = 0; size <= 130; ++size) {
    const std::string text(size, static_cast<char>('a' + size % 26));
    const std::string path = folder / std::to_string(size);
    cache::testing::write_bytes(path, as_bytes(text));
    files += " " + path;
    digests.push_back(sha256_hex(text));
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(
      ::popen(("sha256sum" + files + " 2>/dev/null").c_str(), "r"), ::pclose);
  std::array<char, 4096> line{};
  for (const std::string& digest : digests) {
    if (pipe == nullptr || std::fgets(line.data(), line.size(), pipe.get()) == nullptr) {
      GTEST_SKIP() << "no sha256sum";
    }
    EXPECT_EQ(std::string(line.data(), kSha256Digits), digest);
  }
}

TEST(CacheArchive, ASizeBeyondTheLimitIsRefusedUnread) {
  Bytes bytes = Forge().entry(make_entry()).manifest().bytes();
  // Changes the size field of the first header, in octal, and the header's checksum over it.
  const std::string size = "77777777777";
  std::copy(size.begin(), size.end(), bytes.begin() + 124);
  std::fill_n(bytes.begin() + 148, 8, ' ');
  unsigned sum = 0;
  for (std::size_t i = 0; i < 512; ++i) sum += bytes[i];
  std::array<char, 8> field{};
  std::snprintf(field.data(), field.size(), "%06o", sum);
  std::copy(field.begin(), field.end(), bytes.begin() + 148);
  EXPECT_THAT(refusal(bytes), HasSubstr("at most 67108864 are read"));
}

TEST(CacheArchive, WhatIsNoTarIsRefused) {
  EXPECT_THAT(refusal(as_bytes("PK\x03\x04 a zip")), HasSubstr("test is not a usable archive"));
  EXPECT_THAT(refusal({}), HasSubstr("test is not a usable archive"));
  const auto missing = ArchiveInput::open("/nonexistent.tar");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().message, "/nonexistent.tar cannot be read: No such file or directory");
  const auto a_folder = ArchiveInput::open("/");
  ASSERT_FALSE(a_folder);
  EXPECT_THAT(a_folder.error().message, HasSubstr("/ is a folder; allowed: a file, a pipe"));
}

TEST(LibArchive, SaysWhatToInstallWhereItIsMissing) {
  EXPECT_TRUE(LibArchive::open());
  const auto missing = LibArchive::open("/nonexistent/libarchive.so.13");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(missing.error().message,
              HasSubstr("libarchive \"/nonexistent/libarchive.so.13\" cannot be opened: "));
  EXPECT_THAT(missing.error().message, HasSubstr("install the package libarchive13"));
  const auto other = LibArchive::open("libm.so.6");
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message, HasSubstr("does not export archive_"));
}

}  // namespace
}  // namespace octile::tools
