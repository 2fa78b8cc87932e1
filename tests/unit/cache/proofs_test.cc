// Outcomes of known-answer tests: their text and their file.
#include "cache/proofs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "cache/memo_file.h"
#include "tests/support/cache_testing.h"

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
  const Proofs file(folder.path());
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
  const Proofs file(folder.path());
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
  const Proofs none("");
  EXPECT_EQ(none.path(), "");
  EXPECT_TRUE(none.put(right_one()));
  EXPECT_THAT(*none.read(), IsEmpty());
}

}  // namespace
}  // namespace octile
