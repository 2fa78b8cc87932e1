// Which bytes a fingerprint counts, and in which rows.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "generator/quantize/fingerprint.h"
#include "runtime/reference/quantize/reference_fingerprint.h"

namespace octile {
namespace {

struct Tensor {
  Tensor() {
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<unsigned char>(37 * i + 11);
  }
  alignas(16) std::array<unsigned char, 96> bytes{};
};

TEST(Fingerprint, RowsWithoutGapsAreOneRow) {
  const Tensor t;
  const auto whole = reference::fingerprint(t.bytes.data(), 1, 60, 60);
  EXPECT_EQ(reference::fingerprint(t.bytes.data(), 3, 20, 20), whole);
  EXPECT_NE(reference::fingerprint(t.bytes.data(), 3, 20, 24), whole);
}

TEST(Fingerprint, EveryByteOfARowCountsAndNoOther) {
  for (const std::int64_t stride : {20, 28}) {
    Tensor t;
    const auto of_tensor = [&] { return reference::fingerprint(t.bytes.data(), 3, 20, stride); };
    const auto before = of_tensor();
    for (std::int64_t i = 0; i < 96; ++i) {
      const bool in_a_row = i % stride < 20 && i / stride < 3;
      unsigned char& byte = t.bytes.at(static_cast<std::size_t>(i));
      byte ^= 1;
      EXPECT_EQ(of_tensor() != before, in_a_row) << i;
      byte ^= 1;
    }
  }
}

TEST(Fingerprint, LaunchesReadAlignedRowsInWholeWords) {
  const Tensor t;
  const auto aligned = [&](std::int64_t first, std::int64_t rows, std::int64_t stride) {
    return fingerprint_args(t.bytes.data() + first, rows, 20, stride).aligned;
  };
  EXPECT_EQ(aligned(0, 3, 32), 1);
  EXPECT_EQ(aligned(0, 3, 24), 0) << "the second row";
  EXPECT_EQ(aligned(0, 3, 20), 1) << "one row of 60 bytes";
  EXPECT_EQ(aligned(2, 3, 32), 0);
  const std::int64_t piece = kFingerprintPiece;
  EXPECT_EQ(fingerprint_args(t.bytes.data(), 3, piece / 2, piece / 2).pieces_of_row, 2);
  EXPECT_EQ(fingerprint_args(t.bytes.data(), 3, piece / 2, piece).pieces_of_row, 1);
}

}  // namespace
}  // namespace octile
