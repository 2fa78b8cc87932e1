// The key text is complete and unambiguous, and can be parsed again.
#include "cache/key.h"

#include <gtest/gtest.h>

#include <set>

#include "cache/file_name.h"

namespace octile::cache {
namespace {

const Identity kSample = {"kernel", "sm_90a", {"-std=c++17", "-DX=1"}, "source\ntext\n"};

TEST(CacheKey, TextIsTaggedLines) {
  EXPECT_EQ(
      key_text(kSample),
      "entry kernel\narch sm_90a\noption -std=c++17\noption -DX=1\nsource 12\nsource\ntext\n");
}

// The digest is part of every file name, so another value would make all caches miss.
TEST(CacheKey, DigestIsXxh3_128) {
  EXPECT_EQ(digest_hex(""),
            "99aa06d3014798d86001c324468d497f");  // XXH3-128 test vector, empty input
  EXPECT_EQ(digest_hex(key_text(kSample)), digest_hex(key_text(kSample)));
}

TEST(CacheKey, EveryFieldCounts) {
  std::set<std::string> texts = {key_text(kSample)};
  const auto add = [&](auto change) {
    Identity id = kSample;
    change(id);
    EXPECT_TRUE(texts.insert(key_text(id)).second) << key_text(id);
  };
  add([](Identity& id) { id.entry_name += "2"; });
  add([](Identity& id) { id.architecture = "sm_90"; });
  add([](Identity& id) { id.options.pop_back(); });
  add([](Identity& id) { std::swap(id.options[0], id.options[1]); });
  add([](Identity& id) { id.options.emplace_back(); });
  add([](Identity& id) { id.options = {"-std=c++17\noption -DX=1"}; });
  add([](Identity& id) { id.options = {"-std=c++17\\noption -DX=1"}; });
  add([](Identity& id) { id.source += " "; });
  add([](Identity& id) { id.source += '\0'; });
}

TEST(CacheKey, ParsesWhatItPrints) {
  for (const Identity& id :
       {kSample, Identity{}, Identity{"a\nb", "\\", {"\n", "\\n", ""}, "source 1\nx"},
        Identity{"k", "sm_90a", {}, "option not-an-option\n"}}) {
    const auto parsed = parse_key_text(key_text(id));
    ASSERT_TRUE(parsed) << parsed.error();
    EXPECT_EQ(*parsed, id);
  }
}

TEST(CacheKey, RefusesWhatItDoesNotPrint) {
  const auto error_of = [](std::string_view text) {
    const auto parsed = parse_key_text(text);
    return parsed ? "accepted" : parsed.error();
  };
  EXPECT_EQ(error_of(""), "no 'entry' line");
  EXPECT_EQ(error_of("entry"), "no 'entry' line");
  EXPECT_EQ(error_of("entry\n"), "no 'entry' line");
  EXPECT_EQ(error_of("entry k\n"), "no 'arch' line");
  EXPECT_EQ(error_of("entry k\narch a\nflag x\n"), "neither an 'option' nor a 'source' line");
  EXPECT_EQ(error_of("entry k\narch a\nsource 2\nx"), "the 'source' line says '2' bytes, 1 follow");
  EXPECT_EQ(error_of("entry k\narch a\nsource 1x\nx"),
            "the 'source' line says '1x' bytes, 1 follow");
  EXPECT_EQ(error_of("entry k\narch a\nsource 99999999999999999999\nx"),
            "the 'source' line says '99999999999999999999' bytes, 1 follow");
  EXPECT_EQ(error_of("entry k\narch a\nsource 01\nx"), "not in canonical form");
  EXPECT_EQ(error_of("entry a\\b\narch a\nsource 1\nx"), "not in canonical form");
  EXPECT_EQ(error_of("entry a\\\narch a\nsource 1\nx"), "not in canonical form");
}

TEST(CacheFileName, ParsesItsOwnNamesOnly) {
  const FileStem stem{std::string(32, 'a'), std::string(32, '0')};
  EXPECT_EQ(stem.folder(), "aa");
  const auto kind_of = [](const std::string& name) -> int {
    const auto parsed = parse_file_name(name);
    return parsed ? static_cast<int>(parsed->kind) : -1;
  };
  EXPECT_EQ(kind_of(stem.entry_name()), static_cast<int>(FileKind::kEntry));
  EXPECT_EQ(kind_of(stem.lock_name()), static_cast<int>(FileKind::kLock));
  EXPECT_EQ(kind_of(stem.temporary_name()), static_cast<int>(FileKind::kTemporary));
  EXPECT_NE(stem.temporary_name(), stem.temporary_name());
  EXPECT_EQ(parse_file_name(stem.temporary_name())->stem.entry_name(), stem.entry_name());
  for (const std::string& name :
       {std::string(), std::string("."), std::string("README"), stem.entry_name() + "x",
        "A" + stem.entry_name().substr(1), "/" + stem.entry_name().substr(1),
        stem.entry_name() + ".tmp", stem.entry_name() + ".0123456789abcdeg.tmp",
        stem.identity + stem.toolchain + ".octile"}) {
    EXPECT_EQ(kind_of(name), -1) << name;
  }
}

}  // namespace
}  // namespace octile::cache
