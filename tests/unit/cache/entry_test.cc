// The entry format: an entry is read as it was written, and nothing else is accepted.
#include "cache/entry.h"

#include <gtest/gtest.h>
#include <zstd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "cache/metadata_json.h"

namespace octile::cache {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kHeaderBytes = 48;
constexpr std::size_t kChecksumBytes = 16;

Entry sample() {
  Entry entry;
  entry.identity = {"octile_quantize_1x128",
                    "sm_90a",
                    {"--gpu-architecture=sm_90a", "-std=c++17"},
                    "extern \"C\" __global__ void octile_quantize_1x128() {}\n"};
  entry.toolchain = {"nvrtc 13.0", "00112233445566778899aabbccddeeff"};
  entry.metadata.problem = "quantize rows=? cols=7168 x=bf16 q=e4m3:1x128 out=row";
  entry.metadata.config = "rows=1 cols=128 threads=256";
  entry.metadata.registers = 168;
  entry.metadata.dynamic_smem_bytes = 214016;
  entry.metadata.threads = 384;
  entry.metadata.cluster_size = 2;
  entry.metadata.parameter_bytes = {128, 128, 8, 4};
  entry.metadata.compile_ms = 123.456;
  entry.metadata.date = "2026-01-31T12:00:00Z";
  entry.cubin = {0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0xff, 0x00, 0x80};
  return entry;
}

void store_le(Bytes& bytes, std::size_t offset, std::uint64_t value, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    bytes[offset + i] = static_cast<std::uint8_t>(value >> (8 * i));
  }
}

std::uint64_t load_le(const Bytes& bytes, std::size_t offset) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) value |= std::uint64_t{bytes[offset + i]} << (8 * i);
  return value;
}

void store_checksum(Bytes& bytes, std::size_t end) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), end);
  store_le(bytes, end, hash.low64, 8);
  store_le(bytes, end + 8, hash.high64, 8);
}

// Makes an entry according to FORMAT.md without the writer, so that its content may be wrong
// although its checksums are right.
Bytes forge(const std::string& metadata, const Bytes& key_frame, std::uint64_t key_text_bytes,
            const Bytes& cubin) {
  Bytes out = {0x89, 'O', 'C', 'T', 'I', 'L', 'E', '\n'};
  out.resize(kHeaderBytes);
  store_le(out, 8, 1, 4);
  store_le(out, 16, metadata.size(), 8);
  store_le(out, 24, key_frame.size(), 8);
  store_le(out, 32, key_text_bytes, 8);
  store_le(out, 40, cubin.size(), 8);
  out.insert(out.end(), metadata.begin(), metadata.end());
  const std::size_t head_end = out.size();
  out.resize(head_end + kChecksumBytes);
  store_checksum(out, head_end);
  out.insert(out.end(), key_frame.begin(), key_frame.end());
  out.insert(out.end(), cubin.begin(), cubin.end());
  const std::size_t end = out.size();
  out.resize(end + kChecksumBytes);
  store_checksum(out, end);
  return out;
}

Bytes frame_of(const std::string& text) {
  Bytes frame(ZSTD_compressBound(text.size()));
  frame.resize(ZSTD_compress(frame.data(), frame.size(), text.data(), text.size(), 1));
  return frame;
}

std::string error_of(const Bytes& bytes) {
  const auto entry = deserialize(bytes);
  return entry ? "accepted" : entry.error();
}

TEST(CacheEntry, RoundTrip) {
  const Entry entry = sample();
  const auto read = deserialize(serialize(entry));
  ASSERT_TRUE(read) << read.error();
  EXPECT_EQ(*read, entry);
}

TEST(CacheEntry, RoundTripOfExtremes) {
  Entry entry;  // every field is empty
  auto read = deserialize(serialize(entry));
  ASSERT_TRUE(read) << read.error();
  EXPECT_EQ(*read, entry);

  entry = sample();
  entry.identity.entry_name = "a\\nb\n\\";
  entry.identity.options = {"", "\n", "option x\noption y", "\\"};
  entry.identity.source = std::string("\0source 3\nabc\xff", 14);
  entry.metadata.problem = "quote \" backslash \\ newline \n umlaut \xc3\xa4";
  entry.metadata.registers = std::numeric_limits<int>::min();
  entry.metadata.threads = std::numeric_limits<int>::max();
  entry.metadata.compile_ms = 1.0 / 3.0;
  entry.cubin.assign(200'000, 0x5a);
  read = deserialize(serialize(entry));
  ASSERT_TRUE(read) << read.error();
  EXPECT_EQ(*read, entry);
}

TEST(CacheEntry, SameContentSameBytes) { EXPECT_EQ(serialize(sample()), serialize(sample())); }

TEST(CacheEntry, LayoutIsThatOfTheFormatDocument) {
  const Entry entry = sample();
  const std::string key = key_text(entry.identity);
  const Bytes written = serialize(entry);
  const std::size_t metadata_bytes = load_le(written, 16);
  const std::size_t key_begin = kHeaderBytes + metadata_bytes + kChecksumBytes;
  const auto at = [&](std::size_t offset) {
    return written.begin() + static_cast<std::ptrdiff_t>(offset);
  };
  const Bytes frame(at(key_begin), at(key_begin + load_le(written, 24)));
  EXPECT_EQ(written, forge(metadata_to_json(entry), frame, key.size(), entry.cubin));
}

TEST(CacheEntry, MetadataIsOneLineInAFixedOrder) {
  EXPECT_EQ(metadata_to_json(sample()),
            R"({"kernel":"octile_quantize_1x128","architecture":"sm_90a","compiler":"nvrtc 13.0",)"
            R"("build":"00112233445566778899aabbccddeeff",)"
            R"("problem":"quantize rows=? cols=7168 x=bf16 q=e4m3:1x128 out=row",)"
            R"("config":"rows=1 cols=128 threads=256","registers":168,"static_smem_bytes":0,)"
            R"("dynamic_smem_bytes":214016,"spill_store_bytes":0,"spill_load_bytes":0,)"
            R"("stack_bytes":0,"threads":384,"cluster_size":2,"parameter_bytes":[128,128,8,4],)"
            R"("compile_ms":123.456,"date":"2026-01-31T12:00:00Z"})");
}

TEST(CacheEntry, WhatJsonCannotSayStillMakesAReadableEntry) {
  Entry entry = sample();
  entry.metadata.compile_ms = std::nan("");
  entry.metadata.problem = "not \xff UTF-8";
  const auto read = deserialize(serialize(entry));
  ASSERT_TRUE(read) << read.error();
  EXPECT_EQ(read->metadata.compile_ms, 0.0);
  EXPECT_EQ(read->metadata.problem, "not \xef\xbf\xbd UTF-8");
  EXPECT_EQ(read->identity, entry.identity);
}

TEST(CacheEntry, EveryTruncationIsDetected) {
  const Bytes whole = serialize(sample());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    // The copy has exactly that size, so that a sanitizer finds any read past it.
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(deserialize(cut)) << "cut to " << size << " bytes";
  }
}

TEST(CacheEntry, ATailIsDetected) {
  Bytes bytes = serialize(sample());
  bytes.push_back(0);
  EXPECT_NE(error_of(bytes).find("size: "), std::string::npos) << error_of(bytes);
}

TEST(CacheEntry, EverySingleBitFlipIsDetected) {
  Bytes bytes = serialize(sample());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[i] = static_cast<std::uint8_t>(bytes[i] ^ (1U << bit));
      EXPECT_FALSE(deserialize(bytes)) << "byte " << i << " bit " << bit;
      bytes[i] = static_cast<std::uint8_t>(bytes[i] ^ (1U << bit));
    }
  }
  EXPECT_TRUE(deserialize(bytes));
}

TEST(CacheEntry, RandomCorruptionIsDetected) {
  const Bytes whole = serialize(sample());
  std::mt19937_64 random(20260131);
  for (int round = 0; round < 10'000; ++round) {
    Bytes bytes = whole;
    const std::size_t edits = 2 + random() % 16;
    for (std::size_t i = 0; i < edits; ++i) {
      bytes[random() % bytes.size()] = static_cast<std::uint8_t>(random());
    }
    if (bytes == whole) continue;
    EXPECT_FALSE(deserialize(bytes)) << "round " << round;
  }
}

TEST(CacheEntry, ErrorsSayWhichCheckFailed) {
  const Bytes whole = serialize(sample());
  const auto with = [&](std::size_t offset, std::uint64_t value, std::size_t count) {
    Bytes bytes = whole;
    store_le(bytes, offset, value, count);
    return error_of(bytes);
  };
  EXPECT_EQ(error_of({}), "header: 0 bytes, a header has 48");
  EXPECT_EQ(with(0, 0x7f, 1), "header: no magic, this is not a kernel cache entry");
  EXPECT_EQ(with(8, 2, 4), "header: format version 2, this reader knows 1");
  EXPECT_EQ(with(12, 1, 4), "header: flags 0x1, version 1 has none");
  EXPECT_EQ(with(16, kMaxMetadataBytes + 1, 8),
            "header: metadata_bytes at byte 16 is 1048577, at most 1048576 is allowed");
  EXPECT_EQ(with(32, kMaxKeyTextBytes + 1, 8),
            "header: key_text_bytes at byte 32 is 16777217, at most 16777216 is allowed");
  const std::string end = std::to_string(whole.size() - kChecksumBytes);
  EXPECT_EQ(with(0, 0, 0), "accepted");
  EXPECT_EQ(with(whole.size() - 16, load_le(whole, whole.size() - 16) + 1, 8),
            "checksum of the entry (at byte " + end + ") differs");
}

// Sizes whose sum wraps around to the file's size must be refused.
TEST(CacheEntry, SizesThatOverflowAreRefused) {
  for (const std::size_t offset : {16U, 24U, 32U, 40U}) {
    Bytes bytes = serialize(sample());
    store_le(bytes, offset, std::numeric_limits<std::uint64_t>::max(), 8);
    EXPECT_NE(error_of(bytes).find("header: "), std::string::npos) << offset;
  }
  Bytes bytes = serialize(sample());
  store_le(bytes, 24, load_le(bytes, 24) + 1, 8);
  store_le(bytes, 40, load_le(bytes, 40) - 1, 8);
  EXPECT_FALSE(deserialize(bytes));
}

TEST(CacheEntry, ForgedHeadChecksumIsRefused) {
  Bytes bytes = serialize(sample());
  const std::size_t head_end = kHeaderBytes + load_le(bytes, 16);
  bytes[head_end] = static_cast<std::uint8_t>(bytes[head_end] ^ 1U);
  store_checksum(bytes, bytes.size() - kChecksumBytes);
  EXPECT_EQ(error_of(bytes),
            "checksum of the head (at byte " + std::to_string(head_end) + ") differs");
}

TEST(CacheEntry, TheHeadIsReadFromTheFirstBytesAlone) {
  const Entry entry = sample();
  const Bytes whole = serialize(entry);
  const auto end = head_end(whole, whole.size());
  ASSERT_TRUE(end);
  Bytes first(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(*end));
  const auto head = deserialize_head(first, whole.size());
  ASSERT_TRUE(head) << head.error();
  EXPECT_EQ(*head, (Head{entry.identity.entry_name, entry.identity.architecture, entry.toolchain,
                         entry.metadata, entry.cubin.size()}));
  EXPECT_FALSE(deserialize_head(first, whole.size() + 1)) << "another size than the header's";
  for (std::size_t i = 0; i < first.size(); ++i) {
    first[i] = static_cast<std::uint8_t>(first[i] ^ 1U);
    EXPECT_FALSE(deserialize_head(first, whole.size())) << "byte " << i;
    first[i] = static_cast<std::uint8_t>(first[i] ^ 1U);
  }
  for (std::size_t size = 0; size < first.size(); ++size) {
    EXPECT_FALSE(deserialize_head(std::span(first).first(size), whole.size())) << size;
  }
}

TEST(CacheEntry, KeySectionMustBeOneFrameOfTheDeclaredSize) {
  const Entry entry = sample();
  const std::string metadata = metadata_to_json(entry);
  const std::string key = key_text(entry.identity);
  const Bytes frame = frame_of(key);
  EXPECT_EQ(error_of(forge(metadata, frame, key.size(), entry.cubin)), "accepted");

  EXPECT_NE(error_of(forge(metadata, frame, key.size() + 1, {})).find("another size"),
            std::string::npos);
  EXPECT_NE(error_of(forge(metadata, frame, key.size() - 1, {})).find("another size"),
            std::string::npos);

  Bytes two_frames = frame;
  two_frames.insert(two_frames.end(), frame.begin(), frame.end());
  Bytes skippable_tail = frame;  // a zstd frame of user data, which decoders skip
  const Bytes skippable = {0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 'h', 'i'};
  skippable_tail.insert(skippable_tail.end(), skippable.begin(), skippable.end());
  for (const Bytes& section : {two_frames, skippable_tail, Bytes{}, Bytes{1, 2, 3}}) {
    EXPECT_EQ(error_of(forge(metadata, section, key.size(), {})),
              "key: the section is not one whole zstd frame");
  }
}

// A few KB that decompress to 64 MB are refused by the declared size, or by the frame's size if the
// declared one is wrong.
TEST(CacheEntry, DecompressionIsBounded) {
  const Bytes bomb = frame_of(std::string(std::size_t{64} << 20, 'x'));
  ASSERT_LT(bomb.size(), std::size_t{1} << 20);
  EXPECT_NE(error_of(forge("{}", bomb, std::size_t{64} << 20, {})).find("key_text_bytes"),
            std::string::npos);
  const std::string metadata = metadata_to_json(sample());
  EXPECT_NE(error_of(forge(metadata, bomb, 1000, {})).find("another size"), std::string::npos);
}

TEST(CacheEntry, KeyTextMustBeCanonicalAndAgreeWithTheMetadata) {
  const Entry entry = sample();
  const std::string metadata = metadata_to_json(entry);
  const auto forge_key = [&](const std::string& key) {
    return error_of(forge(metadata, frame_of(key), key.size(), {}));
  };
  EXPECT_EQ(forge_key("arch sm_90a\n"), "key: no 'entry' line");
  EXPECT_EQ(forge_key("entry k\narch sm_100a\nsource 1\nx"),
            "metadata: 'kernel' or 'architecture' differs from the key text");
}

TEST(CacheEntry, MetadataOfTheWrongTypeNamesTheField) {
  const Entry entry = sample();
  const std::string good = metadata_to_json(entry);
  const std::string key = key_text(entry.identity);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string metadata = good;
    metadata.replace(metadata.find(from), from.size(), to);
    return error_of(forge(metadata, frame_of(key), key.size(), {}));
  };
  EXPECT_EQ(with(":168", ":2147483648"), "metadata: field 'registers' is not a 32-bit integer");
  EXPECT_EQ(with(":168", ":18446744073709551615"),
            "metadata: field 'registers' is not a 32-bit integer");
  EXPECT_EQ(with(":168", ":-2147483649"), "metadata: field 'registers' is not a 32-bit integer");
  EXPECT_EQ(with(":168", ":1.5"), "metadata: field 'registers' is not a 32-bit integer");
  EXPECT_EQ(with("\"registers\"", "\"register\""),
            "metadata: field 'registers' is not a 32-bit integer");
  EXPECT_EQ(with("[128,128,8,4]", "[128,\"8\"]"),
            "metadata: field 'parameter_bytes' is not an array of integers");
  EXPECT_EQ(with("123.456", "\"fast\""), "metadata: field 'compile_ms' is not a number");
  EXPECT_EQ(with("\"2026-01-31T12:00:00Z\"", "null"), "metadata: field 'date' is not a string");
  EXPECT_EQ(with(good, "[]"), "metadata: not a JSON object");
  EXPECT_EQ(with(good, std::string(100'000, '[')), "metadata: values nest more than 8 deep");
  EXPECT_EQ(with("{\"kernel\"", "{\"x\":[[[[[[[[]]]]]]]],\"kernel\""),
            "metadata: values nest more than 8 deep");
}

TEST(CacheEntry, UnknownMetadataIsPassedOver) {
  const Entry entry = sample();
  std::string metadata = metadata_to_json(entry);
  metadata.insert(1, R"("from_a_newer_library":{"deep":[1,[[[[[2]]]]]]},)");
  const std::string key = key_text(entry.identity);
  const auto read = deserialize(forge(metadata, frame_of(key), key.size(), entry.cubin));
  ASSERT_TRUE(read) << read.error();
  EXPECT_EQ(*read, entry);
}

}  // namespace
}  // namespace octile::cache
