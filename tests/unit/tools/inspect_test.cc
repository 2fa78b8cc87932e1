// octile inspect's readers: the headers of .npy files, matrices in files, and the blocks of scales.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "generator/core/recipe.h"
#include "runtime/reference/synthetic.h"
#include "tests/support/api_handles.h"
#include "tests/support/cache_testing.h"
#include "tests/support/peak_memory.h"
#include "tools/inspect/measured.h"
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

Result<NpyArray> read_array(const std::string& bytes) {
  return npy_header_bytes(std::string_view(bytes).substr(0, kNpyLengthBytes), bytes.size(), "x")
      .and_then([&](std::uint64_t length) {
        return parse_npy_header(std::string_view(bytes).substr(0, length), bytes.size(), "x");
      });
}

Result<StoredTensor> read(const std::string& bytes) {
  return read_array(bytes).map([](const NpyArray& array) { return array.tensor; });
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

TEST(Npy, SaysThatColumnsAreContiguous) {
  const auto order_of = [](const char* order, const char* shape) {
    return read_array(npy(fmt::format("{{'descr': '<f4', 'fortran_order': {}, 'shape': {}, }}\n",
                                      order, shape),
                          24))
        ->is_by_columns;
  };
  EXPECT_TRUE(order_of("True", "(2, 3)"));
  EXPECT_FALSE(order_of("False", "(2, 3)"));
  EXPECT_FALSE(order_of("True", "(6,)"));
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
      {npy(header("'<f4'", "True", "(2, 2, 2)"), 32),
       "x: fortran_order is True of 3 dimensions; allowed: False, and True of up to two"},
      {npy(header("'<f4'", "1", "(2, 2)"), 16), "x: fortran_order is 1 of 2 dimensions; allowed"},
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
  SharedTensor stored(const std::string& name, const std::string& dtype,
                      std::vector<std::int64_t> shape, const std::string& data,
                      bool is_by_columns = false) {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path, std::ios::binary) << "head" << data;
    auto file = InputFile::open_regular(path);
    return std::make_shared<const TensorInFile>(
        TensorInFile{std::make_shared<const InputFile>(std::move(*file)),
                     name,
                     {dtype, std::move(shape), 4, 4 + data.size()},
                     is_by_columns});
  }

  static std::vector<float> read_all(const StoredMatrices& matrices, std::int64_t index,
                                     const reference::PanelPlace& place) {
    const FileMatrix matrix(matrices, index);
    std::vector<std::byte> scratch(matrix.scratch_bytes(place.rows * place.cols));
    const auto panel = matrix.read(place, scratch);
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

TEST_F(InFile, SaysWhetherInfinitiesAreStoredOrBeyondFp32) {
  const auto found = [&](double a, double b) {
    const std::vector<double> values{a, b};
    const std::string bytes(reinterpret_cast<const char*>(values.data()), 16);
    Subject subject{.name = "w", .role = {}, .parts = {}};
    subject.parts.push_back(matrices_of(stored("w", "F64", {1, 2}, bytes)));
    const Measured measured = *measure(subject, {}, 1);
    EXPECT_EQ(measured.values.infinities, std::fabs(a) > 1e39 ? 2 : 1);
    return std::pair(measured.has_infinities, measured.has_beyond_fp32);
  };
  EXPECT_EQ(found(1e300, -1e40), std::pair(false, true));
  EXPECT_EQ(found(1, INFINITY), std::pair(true, false));
  EXPECT_EQ(found(1e300, INFINITY), std::pair(true, true));
}

// A matrix [2, 3] whose columns are contiguous, as numpy.asfortranarray has it.
TEST_F(InFile, ColumnsThatAreContiguousAreReadAsTheArrayHasThem) {
  for (const char* type : {"F32", "F64"}) {
    const std::vector<float> floats{1, 4, 2, 5, 3, 6};
    const std::vector<double> doubles(floats.begin(), floats.end());
    const std::string bytes = type == std::string("F32")
                                  ? std::string(reinterpret_cast<const char*>(floats.data()), 24)
                                  : std::string(reinterpret_cast<const char*>(doubles.data()), 48);
    StoredMatrices matrices = matrices_of(stored("w", type, {2, 3}, bytes, true));
    EXPECT_EQ(matrices.rows, 2);
    EXPECT_EQ(read_all(matrices, 0, {0, 0, 2, 3}), (std::vector<float>{1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(read_all(matrices, 0, {1, 1, 1, 2}), (std::vector<float>{5, 6}));
    std::vector<double> exact;
    ASSERT_TRUE(FileMatrix(matrices, 0).read_exact({0, 1, 2, 2}, exact));
    EXPECT_EQ(exact, (std::vector<double>{2, 3, 5, 6}));
    matrices.is_transposed = true;  // [k, n] by columns is [n, k] by rows
    EXPECT_EQ(read_all(matrices, 0, {0, 0, 3, 2}), (std::vector<float>{1, 4, 2, 5, 3, 6}));
  }
}

TEST_F(InFile, DoublesAreComparedAsTheyAre) {
  const std::vector<double> values{1.0 / 3.0, 1e300, 5, 1};
  const std::string bytes(reinterpret_cast<const char*>(values.data()), 32);
  const StoredMatrices matrices = matrices_of(stored("w", "F64", {2, 2}, bytes));
  std::vector<double> exact;
  ASSERT_TRUE(FileMatrix(matrices, 0).read_exact({0, 0, 2, 2}, exact));
  EXPECT_EQ(exact, values);
}

// The file has what `matrices` names as [k, n]; its panels are those of [n, k].
TEST_F(InFile, PanelsOfATransposedMatrixAreTurned) {
  constexpr std::int64_t kRows = 300,
                         kCols = 205;  // of the file, which is turned in several parts
  std::vector<float> values;
  for (std::int64_t i = 0; i < 2 * kRows * kCols; ++i) values.push_back(static_cast<float>(i));
  const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * 4);
  StoredMatrices matrices = matrices_of(stored("w", "F32", {2, kRows, kCols}, bytes));
  matrices.is_transposed = true;
  EXPECT_EQ(FileMatrix(matrices, 1).rows(), kCols);
  EXPECT_EQ(FileMatrix(matrices, 1).cols(), kRows);
  for (const reference::PanelPlace& place :
       {reference::PanelPlace{0, 0, kCols, kRows}, reference::PanelPlace{3, 7, 150, 290},
        reference::PanelPlace{204, 299, 1, 1}, reference::PanelPlace{0, 128, 1, 172}}) {
    std::vector<float> expected;
    for (std::int64_t row = place.row; row < place.row + place.rows; ++row) {
      for (std::int64_t col = place.col; col < place.col + place.cols; ++col)
        expected.push_back(static_cast<float>((kRows + col) * kCols + row));
    }
    EXPECT_EQ(read_all(matrices, 1, place), expected) << place.row << ", " << place.col;
  }
}

TEST_F(InFile, PanelsOfTransposedFp8AreCodesTimesTheirScales) {
  // 4 x 6 codes; code 0x38 is 1 and 0x40 is 2. Blocks of the file are 2 x 4.
  std::string codes;
  for (int i = 0; i < 24; ++i) codes += i % 6 == 5 ? '\x40' : '\x38';
  StoredMatrices matrices = matrices_of(stored("w", "F8_E4M3", {4, 6}, codes));
  matrices.is_transposed = true;
  const std::vector<float> scales{1, 2, 3, 4};
  const std::string bytes(reinterpret_cast<const char*>(scales.data()), 16);
  matrices.scales = scale_grid(stored("s", "F32", {2, 2}, bytes), matrices);
  ASSERT_TRUE(matrices.scales.has_value());
  EXPECT_EQ(read_all(matrices, 0, {3, 1, 3, 2}), (std::vector<float>{1, 3, 2, 4, 4, 8}));
}

template <typename T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// Values with outliers, zeros, rows of other sizes, a NaN and an infinity.
std::vector<float> spoiled_values(std::int64_t rows, std::int64_t cols) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    const auto x = reference::random_normal(9, static_cast<std::uint64_t>(i));
    values.push_back(static_cast<float>(std::ldexp(x, static_cast<int>(i / cols % 7))));
  }
  values[static_cast<std::size_t>(cols / 2)] = 9e4F;
  values[values.size() - 3] = 0;
  values[values.size() - 2] = NAN;
  values[values.size() - 1] = -INFINITY;
  return values;
}

std::vector<float> turned(const std::vector<float>& x, std::int64_t rows, std::int64_t cols) {
  std::vector<float> out;
  for (std::int64_t col = 0; col < cols; ++col) {
    for (std::int64_t row = 0; row < rows; ++row)
      out.push_back(x[static_cast<std::size_t>(row * cols + col)]);
  }
  return out;
}

// The bits are those of the file whose matrices were transposed before, for every recipe; blocks
// are named as the file has them.
TEST_F(InFile, ATransposedFileHasTheNumbersOfOneThatWasTurnedBefore) {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes()) names.emplace_back(recipe.name);
  const RecipeTypes all = *RecipeTypes::of(names);
  const std::vector<TensorType> of_long_rows{
      {DType::kE4M3, Granularity::kPerRow, ScaleFormat::kF32},
      {DType::kE4M3, Granularity::kPerTensor, ScaleFormat::kF32Pow2}};
  const std::vector<TensorType> of_blocks{
      {DType::kE4M3, Granularity::k128x128, ScaleFormat::kF32Pow2},
      {DType::kE4M3, Granularity::k1x32, ScaleFormat::kE8M0}};
  struct Case {
    std::int64_t matrices, rows, cols;  // [n, k]
    std::span<const TensorType> types;
  };
  // Smaller than a block, of odd sizes, of several panels, of more than are read together, and with
  // rows longer than a panel.
  for (const Case& one : {Case{1, 7, 33, all.types()}, Case{3, 129, 205, all.types()},
                          Case{1, 150, 5000, all.types()}, Case{1, 1100, 130, all.types()},
                          Case{1, 700, 4100, of_blocks}, Case{1, 130, 32768 + 200, of_long_rows}}) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", one.matrices, one.rows, one.cols));
    std::string plain, transposed;
    for (std::int64_t i = 0; i < one.matrices; ++i) {
      const std::vector<float> x = spoiled_values(one.rows, one.cols);
      plain += raw(x);
      transposed += raw(turned(x, one.rows, one.cols));
    }
    Subject a{.name = "a", .role = {}, .parts = {}}, b{.name = "b", .role = {}, .parts = {}};
    a.parts.push_back(matrices_of(stored("a", "F32", {one.matrices, one.rows, one.cols}, plain)));
    b.parts.push_back(
        matrices_of(stored("b", "F32", {one.matrices, one.cols, one.rows}, transposed)));
    b.parts[0].is_transposed = true;
    const Measured of_a = *measure(a, one.types, 1), of_b = *measure(b, one.types, 1);
    EXPECT_EQ(of_b.values.nans, one.matrices);
    EXPECT_EQ(of_b.values.infinities, one.matrices);
    EXPECT_EQ(of_a.values.amax, of_b.values.amax);
    for (std::size_t type = 0; type < one.types.size(); ++type) {
      SCOPED_TRACE(to_text(one.types[type]));
      const reference::Loss &x = of_a.losses[type], &y = of_b.losses[type];
      EXPECT_EQ(x.signal, y.signal);
      EXPECT_EQ(x.noise, y.noise);
      EXPECT_EQ(x.rest_noise, y.rest_noise);
      EXPECT_EQ(x.bulk_noise, y.bulk_noise);
      EXPECT_EQ(x.flushed, y.flushed);
      EXPECT_EQ(x.saturated, y.saturated);
      EXPECT_EQ(x.blocks, y.blocks);
      EXPECT_EQ(x.set_by_one, y.set_by_one);
      ASSERT_EQ(x.worst().size(), y.worst().size());
      for (std::size_t i = 0; i < x.worst().size(); ++i) {
        EXPECT_EQ(x.worst()[i].snr_db, y.worst()[i].snr_db);
        EXPECT_EQ(x.worst()[i].matrix, y.worst()[i].matrix);
        EXPECT_EQ(x.worst()[i].row, y.worst()[i].col);
        EXPECT_EQ(x.worst()[i].col, y.worst()[i].row);
        EXPECT_EQ(x.worst()[i].rows, y.worst()[i].cols);
        EXPECT_EQ(x.worst()[i].cols, y.worst()[i].rows);
      }
    }
  }
}

#if defined(__SANITIZE_ADDRESS__)
// Freed memory stays in quarantine.
constexpr std::int64_t kMostBytesOfPanels = std::int64_t{128} << 20;
#else
constexpr std::int64_t kMostBytesOfPanels = std::int64_t{48} << 20;
#endif

// A file of 143 MB of zeros is read as the panels of two threads, and no more of it is held: of
// each thread 8 MB of values and 4 MB of codes.
TEST_F(InFile, ATransposedFileIsReadInPanels) {
  constexpr std::int64_t kRows = 70000, kCols = 1024;  // columns longer than a panel
  const std::vector<TensorType> types{{DType::kE4M3, Granularity::kPerRow, ScaleFormat::kF32}};
  // A child has none of its parent's open files.
  const std::string report =
      cache::testing::Child([&]() -> std::string {
        StoredMatrices matrices = matrices_of(stored("w", "BF16", {kRows, kCols}, ""));
        std::filesystem::resize_file(folder_.path() + "/w", 4 + kRows * kCols * 2);
        matrices.is_transposed = true;
        const std::int64_t before = test::peak_bytes();
        const auto got = reference::inspect(FileMatrix(matrices, 0), types, {.threads = 2});
        if (!got) return got.error().message;
        if (got->values.zeros != kRows * kCols) return "not all was read";
        const std::int64_t more = test::peak_bytes() - before;
        return more < kMostBytesOfPanels ? "" : std::to_string(more) + " bytes more";
      }).wait();
  EXPECT_EQ(report, "");
}

TEST_F(InFile, AFileThatIsCutWhileItIsReadIsASentence) {
  const StoredMatrices matrices = matrices_of(stored("w", "BF16", {4, 4}, std::string(32, 'x')));
  std::filesystem::resize_file(folder_.path() + "/w", 20);
  const auto got = reference::inspect(FileMatrix(matrices, 0), {});
  ASSERT_FALSE(got.has_value());
  EXPECT_EQ(got.error().message,
            fmt::format("{}: it has 20 bytes, and had 36 when it was opened: tensors that are not "
                        "whole are not inspected",
                        folder_.path() + "/w"));
}

}  // namespace
}  // namespace octile::tools
