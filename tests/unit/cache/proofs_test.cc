// Outcomes of known-answer tests: their text and their file.
#include "cache/proofs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "cache/memo_file.h"
#include "cache/turn.h"
#include "tests/support/api_handles.h"

namespace octile {
namespace {

using cache::Proof;
using cache::Proofs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Proof right_one() {
  return {"00112233445566778899aabbccddeeff",
          "13.0 libcuda.so.580.95.05",
          "matrix unit mma: gemm m=? n=64",
          "0123456789abcdef0123456789abcdef",
          "",
          25,
          "2026-11-30T16:10:00Z"};
}

TEST(Proofs, TextIsReadBack) {
  Proof wrong = right_one();
  wrong.wrong = "D[5][7] is \"3\"";
  wrong.sum_bits = 0;
  EXPECT_FALSE(wrong.is_right());
  const std::vector<Proof> proofs{right_one(), wrong};
  const auto parsed = cache::parse_proofs(cache::to_json_text(proofs));
  ASSERT_TRUE(parsed) << parsed.error();
  EXPECT_EQ(*parsed, proofs);
  EXPECT_THAT(*cache::parse_proofs(cache::to_json_text(std::vector<Proof>{})), IsEmpty());
}

TEST(Proofs, WrongTextsAreNamed) {
  const std::string good = cache::to_json_text(std::vector<Proof>{right_one()});
  for (const auto& [from, to, why] : std::vector<std::array<std::string, 3>>{
           {"\"version\":1", "\"version\":2", "'version' is not 1"},
           {"\"proofs\":[", "\"others\":[", "'proofs' is not an array"},
           {"\"device\":\"", "\"devise\":\"", "'device' is not a string"},
           {"\"wrong\":\"\"", "\"wrong\":null", "'wrong' is not a string"},
           {"\"sum_bits\":25", "\"sum_bits\":\"many\"", "'sum_bits' is not a 32-bit integer"},
           {"[\n{", "[1,{", "a proof is not a JSON object"},
           {"{", "", "not a JSON object"}}) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    const auto parsed = cache::parse_proofs(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_THAT(parsed.error(), HasSubstr(why));
  }
}

TEST(Proofs, OneOfTheSameTestIsReplaced) {
  const test::TempFolder folder;
  const Proofs file(folder.path(), right_one().device);
  EXPECT_THAT(*file.read(), IsEmpty());
  Proof other = right_one();
  other.digest = "of another cubin";
  Proof again = right_one();
  again.wrong = "it does not end within 10 s";
  for (const Proof& proof : {right_one(), other, again}) ASSERT_TRUE(file.put(proof));
  EXPECT_THAT(*file.read(), ElementsAre(other, again));
}

// A file that grew without end would be read by nobody.
TEST(Proofs, TheOldestMakeRoom) {
  const test::TempFolder folder;
  const Proofs file(folder.path(), right_one().device);
  Proof proof = right_one();
  proof.wrong = std::string(10'000, 'x');
  for (int i = 0; i < 12; ++i) {
    proof.digest = std::to_string(i);
    ASSERT_TRUE(file.put(proof)) << i;
  }
  const auto kept = file.read();
  ASSERT_TRUE(kept) << kept.error().sentence;
  EXPECT_EQ(kept->size(), cache::kMaxMemoBytes / 10'200);
  EXPECT_EQ(kept->back().digest, "11");
}

TEST(Proofs, WithoutARootNothingIsKept) {
  const test::TempFolder folder;
  for (const Proofs& none : {Proofs("", right_one().device), Proofs(folder.path(), "")}) {
    EXPECT_EQ(none.path(), "");
    EXPECT_TRUE(none.put(right_one()));
    EXPECT_THAT(*none.read(), IsEmpty());
  }
}

Proof of(int device, const std::string& digest) {
  Proof proof = right_one();
  proof.device = std::string(31, '0') + std::to_string(device);
  proof.digest = digest;
  return proof;
}

constexpr int kWriters = 8, kDevices = 2, kTests = 6;

// Keeps outcomes of its own for each device, as whoever tests the machine's devices at once does.
void keep_some(const std::string& root, int writer) {
  for (int test = 0; test < kTests; ++test)
    for (int device = 0; device < kDevices; ++device) {
      const Proof proof = of(device, std::to_string(writer) + "/" + std::to_string(test));
      ASSERT_TRUE(Proofs(root, proof.device).put(proof));
    }
}

void expect_all(const std::string& root) {
  for (int device = 0; device < kDevices; ++device) {
    const auto kept = Proofs(root, of(device, "").device).read();
    ASSERT_TRUE(kept) << kept.error().sentence;
    EXPECT_EQ(kept->size(), kWriters * kTests) << "of device " << device;
  }
}

TEST(Proofs, ThreadsAtOnceLoseNone) {
  const test::TempFolder folder;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kWriters; ++i)
      threads.emplace_back([&folder, i] { keep_some(folder.path(), i); });
  }
  expect_all(folder.path());
}

TEST(Proofs, ProcessesAtOnceLoseNone) {
  const test::TempFolder folder;
  for (int i = 0; i < kWriters; ++i) {
    if (::fork() == 0) {
      keep_some(folder.path(), i);
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
  }
  for (int i = 0; i < kWriters; ++i) {
    int status = 0;
    ASSERT_GT(::wait(&status), 0);
    EXPECT_EQ(status, 0);
  }
  expect_all(folder.path());
}

// The bound is that of one device.
TEST(Proofs, DevicesTakeNoRoomFromEachOther) {
  const test::TempFolder folder;
  constexpr int kMany = 40;
  const auto numbered = [](int device) {
    Proof proof = right_one();
    proof.device = std::string(30, 'f') + std::to_string(10 + device);
    proof.wrong = std::string(10'000, 'x');
    return proof;
  };
  for (int i = 0; i < kMany; ++i) {
    const Proof proof = numbered(i);
    ASSERT_TRUE(Proofs(folder.path(), proof.device).put(proof));
  }
  for (int i = 0; i < kMany; ++i)
    EXPECT_THAT(*Proofs(folder.path(), numbered(i).device).read(), ElementsAre(numbered(i)));
}

// A holder of the turn that is stopped holds nobody up for good. This takes ten seconds.
TEST(Proofs, AStoppedWriterIsPassedBy) {
  const test::TempFolder folder;
  const Proof proof = right_one();
  cache::Turn stopped(folder.path(), "proofs-" + proof.device);
  ASSERT_EQ(*stopped.try_take(), cache::TurnState::kMine);
  const Proofs file(folder.path(), proof.device);
  EXPECT_TRUE(file.put(proof));
  EXPECT_THAT(*file.read(), ElementsAre(proof));
}

}  // namespace
}  // namespace octile
