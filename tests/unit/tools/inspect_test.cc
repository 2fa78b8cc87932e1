// octile inspect's readers: the headers of .npy files, matrices in files, and the blocks of scales.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/api_handles.h"
#include "tools/inspect/npy.h"
#include "tools/inspect/stored_matrix.h"

namespace octile::tools {
namespace {

std::string npy(const std::string& literal, std::size_t data_bytes, char version = 1) {
  std::string text("\x93NUMPY", 6);
  text += version;
  text += '\0';
  const std::uint32_t length = static_cast<std::uint32_t>(literal.size());
  text.append(reinterpret_cast<const char*>(&length), version == 1 ? 2 : 4);
  return text + literal + std::string(data_bytes, '\0');
}

Result<StoredTensor> read(const std::string& bytes) {
  return npy_header_bytes(std::string_view(bytes).substr(0, kNpyLengthBytes), bytes.size(), "x")
      .and_then([&](std::uint64_t length) {
        return parse_npy_header(std::string_view(bytes).substr(0, length), bytes.size(), "x");
      });
}

TEST(Npy, ReadsWhatNumpyWrites) {
  const std::string text =
      "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }              \n";
  for (const char version : {'\1', '\2', '\3'}) {
    const auto tensor = read(npy(text, 48, version));
    ASSERT_TRUE(tensor) << tensor.error().message;
    EXPECT_EQ(tensor->dtype, "F32");
    EXPECT_EQ(tensor->shape, (std::vector<std::int64_t>{3, 4}));
    EXPECT_EQ(tensor->end - tensor->begin, 48);
    EXPECT_EQ(tensor->begin, (version == 1 ? 10 : 12) + text.size());
  }
  EXPECT_EQ(read(npy("{'descr': '|V2', 'fortran_order': True, 'shape': (5,), }\n", 10))->dtype,
            "BF16");
  EXPECT_EQ(read(npy("{'descr': '<f8', 'fortran_order': False, 'shape': (), }\n", 8))->shape.size(),
            0);
}

TEST(Npy, RefusesInOneSentence) {
  const auto header = [](const char* descr, const char* order, const char* shape) {
    return fmt::format("{{'descr': {}, 'fortran_order': {}, 'shape': {}, }}\n", descr, order,
                       shape);
  };
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "x: it does not begin as a .npy file; allowed: an array of numpy.save()"},
      {npy("{}", 0, 9), "x: its format has version 9; allowed: 1 to 3"},
      {npy("{}", 0), "x: its header has no descr, fortran_order and shape; allowed: all three"},
      {npy(header("'<i4'", "False", "(2,)"), 8),
       "x: descr is '<i4'; allowed: <f2, <f4, <f8, and <V2"},
      {npy(header("[('a', '<f4')]", "False", "(2,)"), 8), "x: descr is [('a'; allowed: <f2"},
      {npy(header("'<f4'", "False", "(2, -1)"), 8),
       "x: shape is (2, -1); allowed: up to 8 integers"},
      {npy(header("'<f4'", "False", "(2, x)"), 8), "x: shape is (2, x); allowed: up to 8 integers"},
      {npy(header("'<f4'", "True", "(2, 2)"), 16), "x: fortran_order is True; allowed: False"},
      {npy(header("'<f4'", "False", "(2, 2)"), 15),
       "x: shape is (2, 2) of <f4, and 15 bytes follow"},
      {npy(header("'<f8'", "False", "(9223372036854775807, 9223372036854775807)"), 15),
       "x: shape is (9223372036854775807"}};
  for (const auto& [bytes, sentence] : cases) {
    const auto got = read(bytes);
    ASSERT_FALSE(got.has_value()) << sentence;
    EXPECT_EQ(got.error().message.substr(0, sentence.size()), sentence);
  }
  std::string longer = npy("{}", 0);
  longer[8] = 100;
  EXPECT_EQ(read(longer).error().message, "x: its header has 100 bytes; allowed: up to 2");
}

class InFile : public ::testing::Test {
 protected:
  TensorInFile stored(const std::string& name, const std::string& dtype,
                      std::vector<std::int64_t> shape, const std::string& data) {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path, std::ios::binary) << "head" << data;
    auto file = InputFile::open_regular(path);
    return {std::make_shared<const InputFile>(std::move(*file)),
            name,
            {dtype, std::move(shape), 4, 4 + data.size()}};
  }

  static std::vector<float> read_all(const StoredMatrices& matrices, std::int64_t index,
                                     const reference::PanelPlace& place) {
    std::vector<std::byte> scratch(static_cast<std::size_t>(place.rows * place.cols) * 4);
    const auto panel = FileMatrix(matrices, index).read(place, scratch);
    EXPECT_TRUE(panel.has_value());
    const auto* const values = static_cast<const float*>(panel->x);
    return {values, values + place.rows * place.cols};
  }

  test::TempFolder folder_;
};

TEST_F(InFile, PanelsOfFp8AreCodesTimesTheirScales) {
  // Two matrices of 4 x 6 codes; code 0x38 is 1 and 0x40 is 2. Blocks are 2 x 4.
  std::string codes;
  for (int i = 0; i < 48; ++i) codes += i % 6 == 5 ? '\x40' : '\x38';
  StoredMatrices matrices = matrices_of(stored("w", "F8_E4M3", {2, 4, 6}, codes));
  EXPECT_EQ(matrices.count, 2);
  std::vector<float> scales{1, 2, 3, 4, 5, 6, 7, 8};
  const std::string bytes(reinterpret_cast<const char*>(scales.data()), 32);
  matrices.scales = scale_grid(stored("s", "F32", {2, 2, 2}, bytes), matrices);
  ASSERT_TRUE(matrices.scales.has_value());
  EXPECT_EQ(matrices.scales->block_rows, 2);
  EXPECT_EQ(matrices.scales->block_cols, 4);
  EXPECT_EQ(read_all(matrices, 0, {0, 0, 2, 6}),
            (std::vector<float>{1, 1, 1, 1, 2, 4, 1, 1, 1, 1, 2, 4}));
  EXPECT_EQ(read_all(matrices, 1, {1, 3, 2, 3}), (std::vector<float>{5, 6, 12, 7, 8, 16}));
}

TEST_F(InFile, ScalesAreOneATensorOneARowOrBlocks) {
  const StoredMatrices matrices = matrices_of(stored("w", "F8_E4M3", {256, 384}, "x"));
  const auto grid = [&](const std::string& dtype, std::vector<std::int64_t> shape) {
    const auto found = scale_grid(stored("s", dtype, std::move(shape), "x"), matrices);
    return found ? std::pair(found->block_rows, found->block_cols)
                 : std::pair(INT64_C(0), INT64_C(0));
  };
  using Edges = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(grid("F32", {}), Edges(256, 384));
  EXPECT_EQ(grid("BF16", {1}), Edges(256, 384));
  EXPECT_EQ(grid("F32", {256, 1}), Edges(1, 384));
  EXPECT_EQ(grid("F32", {256}), Edges(1, 384));
  EXPECT_EQ(grid("F32", {2, 3}), Edges(128, 128));
  EXPECT_EQ(grid("F8_E8M0", {256, 12}), Edges(1, 32));
  EXPECT_EQ(grid("U8", {8, 12}), Edges(32, 32));
  EXPECT_EQ(grid("F32", {3, 3}), Edges(0, 0));
  EXPECT_EQ(grid("I32", {2, 3}), Edges(0, 0));
  EXPECT_EQ(grid("F32", {1, 2, 3}), Edges(0, 0));
}

TEST_F(InFile, DoublesAreRoundedToFloats) {
  const std::vector<double> values{1.0 / 3.0, 1e300, -0.0, 2.5};
  const std::string bytes(reinterpret_cast<const char*>(values.data()), 32);
  const StoredMatrices matrices = matrices_of(stored("w", "F64", {2, 2}, bytes));
  EXPECT_EQ(read_all(matrices, 0, {0, 0, 2, 2}),
            (std::vector<float>{1.0F / 3.0F, INFINITY, -0.0F, 2.5F}));
}

TEST_F(InFile, AFileThatIsCutWhileItIsReadIsASentence) {
  const StoredMatrices matrices = matrices_of(stored("w", "BF16", {4, 4}, std::string(32, 'x')));
  std::filesystem::resize_file(folder_.path() + "/w", 20);
  const auto got = reference::inspect(FileMatrix(matrices, 0), {});
  ASSERT_FALSE(got.has_value());
  EXPECT_EQ(got.error().message,
            fmt::format("{}: it ends within 'w' at byte 20, and had 36 bytes when it was opened",
                        folder_.path() + "/w"));
}

}  // namespace
}  // namespace octile::tools
