// octile inspect's files: what it reads of checkpoints and arrays that others wrote, or that are
// wrong, and how much memory and time that takes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include "tests/cli/command.h"
#include "tests/cli/written_tensors.h"

namespace octile::tests {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::ptrdiff_t lines_in(const std::string& text) { return std::ranges::count(text, '\n'); }

// Writes [rows, cols] of floats as numpy.save() does.
void write_npy(const fs::path& path, const std::string& shape, const std::vector<float>& values,
               bool is_by_columns = false) {
  const std::string literal = std::string("{'descr': '<f4', 'fortran_order': ") +
                              (is_by_columns ? "True" : "False") + ", 'shape': " + shape + ", }\n";
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  const auto length = static_cast<std::uint16_t>(literal.size());
  file << std::string("\x93NUMPY\1\0", 8);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << literal;
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(float)));
}

std::vector<float> numbers(int count) {
  std::vector<float> values;
  for (int i = 0; i < count; ++i) values.push_back(static_cast<float>(i % 37) - 11.3F);
  return values;
}

TEST(InspectFiles, TypesThatNoRecipeHasAreReadPast) {
  const Shell shell;
  const fs::path file = shell.folder() / "x.safetensors";
  write_safetensors(file, {bf16("a.weight", 4, 64),
                           {"b.weight", "F8_E4M3FNUZ", {4, 64}, std::string(256, 'x')},
                           {"c.weight", "F8_E5M2FNUZ", {4, 64}, std::string(256, 'x')}});
  const Outcome outcome = shell.run({"inspect", file, "--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(names_of(outcome), ElementsAre("a.weight"));
  EXPECT_THAT(lines_of(outcome).back().at("remarks"),
              ElementsAre("1 tensor is of type F8_E4M3FNUZ, which no recipe has: not read",
                          "1 tensor is of type F8_E5M2FNUZ, which no recipe has: not read"));
}

TEST(InspectFiles, TheIndexIsComparedWithItsFiles) {
  const Shell shell;
  const fs::path folder = shell.folder() / "m";
  write_safetensors(folder / "a.safetensors", {bf16("layers.0.a_proj.weight", 4, 64)});
  write_safetensors(folder / "b.safetensors", {bf16("layers.0.c_proj.weight", 4, 64)});
  const auto inspect = [&](const std::string& index) {
    std::ofstream(folder / "model.safetensors.index.json") << index;
    return shell.run({"inspect", folder});
  };
  Outcome outcome = inspect(R"({"weight_map": {"layers.0.a_proj.weight": "a.safetensors",
      "layers.0.z.weight": "a.safetensors"}})");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("weight_map lists 1 tensor that the file it names lacks, "
                                     "'layers.0.z.weight' of a.safetensors first\n"));
  EXPECT_EQ(lines_in(outcome.err), 1);
  outcome = inspect(R"({"weight_map": {"layers.0.a_proj.weight": "b.safetensors",
      "layers.0.c_proj.weight": "a.safetensors"}})");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("weight_map lists 2 tensors that another file has than it "
                                     "names, 'layers.0.a_proj.weight' of b.safetensors first\n"));
  EXPECT_EQ(lines_in(outcome.err), 1);
  EXPECT_THAT(inspect(R"({"weight_map": {}})").err, HasSubstr("its weight_map is empty; allowed"));
  EXPECT_THAT(inspect(R"({"weight_map": {"a": 5}})").err, HasSubstr("weight_map has 5 for 'a'"));
}

TEST(InspectFiles, WhatHasNothingToInspectIsTold) {
  const Shell shell;
  const fs::path file = shell.folder() / "x.safetensors";
  const auto said = [&](const std::vector<Written>& tensors) {
    write_safetensors(file, tensors);
    const Outcome outcome = shell.run({"inspect", file});
    EXPECT_EQ(outcome.exit_code, 1);
    return outcome.err;
  };
  EXPECT_THAT(said({{"a.weight", "F4", {4, 64}, std::string(128, 'x')}}),
              HasSubstr("no tensor is inspected: 1 is of type F4, which is not read\n"));
  EXPECT_THAT(said({{"a.weight", "U8", {4, 64}, std::string(256, 'x')},
                    {"a.weight_scale", "F8_E4M3", {4, 4}, std::string(16, 'x')},
                    {"b.weight", "BF16", {0, 5}, ""}}),
              HasSubstr("1 is of type U8, which is not read, 1 has scales of another tensor, 1 has "
                        "no elements\n"));
  EXPECT_THAT(said({}), HasSubstr("no tensor is inspected: the files have none\n"));
}

TEST(InspectFiles, MatricesOfOneRowOrColumnAreMeasuredAndKernelsAreNot) {
  const Shell shell;
  const fs::path file = shell.folder() / "x.safetensors";
  Written kernel = bf16("layers.0.conv.weight", 8, 12);
  kernel.shape = {8, 3, 2, 2};
  Written mixer = bf16("layers.0.mixer.conv1d.weight", 8, 4);
  mixer.shape = {8, 1, 4};
  write_safetensors(file,
                    {bf16("layers.0.row_x.weight", 1, 64), bf16("layers.0.col_x.weight", 64, 1),
                     bf16("layers.0.one_x.weight", 1, 1), kernel, mixer});
  const Outcome outcome = shell.run({"inspect", file, "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(lines_of(outcome).front().at("quantised"), 3);
  EXPECT_THAT(lines_of(outcome).back().at("remarks"),
              ElementsAre("2 tensors have another shape than a weight of a layer, "
                          "'layers.0.conv.weight' [8, 3, 2, 2] first: only values that are not "
                          "finite are counted"));
  write_npy(shell.folder() / "x.npy", "(2, 3, 4, 5)", numbers(120));
  const json array = lines_of(shell.run({"inspect", shell.folder() / "x.npy", "--json"})).at(1);
  EXPECT_EQ(array.at("matrices"), 6);
  EXPECT_EQ(array.at("recipes").at(0).at("blocks"), 6);
  EXPECT_FALSE(array.contains("keep"));
}

TEST(InspectFiles, ArraysArePairedByNamesBelowTheirFoldersOrAsTwoFiles) {
  const Shell shell;
  const fs::path folder = shell.folder();
  write_npy(folder / "a/w.npy", "(4, 6)", numbers(24));
  write_npy(folder / "b/w.npy", "(4, 6)", numbers(24));
  write_npy(folder / "b/other.npy", "(4, 6)", numbers(24));
  const auto paired = [&](const fs::path& a, const fs::path& b) {
    return lines_of(shell.run({"inspect", "--pair", "--json", a, b})).front().at("tensors");
  };
  EXPECT_EQ(paired(folder / "a", folder / "b"), 1);
  EXPECT_EQ(paired(folder / "a/w.npy", folder / "b/other.npy"), 1);
}

TEST(InspectFiles, AnArrayByColumnsHasTheNumbersOfOneByRows) {
  const Shell shell;
  std::vector<float> rows = numbers(150 * 40), columns(rows.size());
  rows[7 * 40 + 3] = 1e6F;
  for (std::size_t i = 0; i < rows.size(); ++i) columns[i % 40 * 150 + i / 40] = rows[i];
  write_npy(shell.folder() / "a.npy", "(150, 40)", rows);
  write_npy(shell.folder() / "b.npy", "(150, 40)", columns, true);
  const auto record = [&](const char* name) {
    return lines_of(shell.run({"inspect", "--json", shell.folder() / name, "--recipe",
                               "blockwise,rowwise,mxfp8"}))
        .at(1);
  };
  const json a = record("a.npy"), b = record("b.npy");
  EXPECT_EQ(a.at("recipes"), b.at("recipes"));
  EXPECT_EQ(a.at("shape"), b.at("shape"));
  EXPECT_EQ(b.at("layout"), "[n, k]");
}

TEST(InspectFiles, SeveralFoldersAreRefusedAndTensorsThatAreThereTwiceAreASentence) {
  const Shell shell;
  const fs::path folder = shell.folder();
  const std::vector<Written> tensors{bf16("a.weight", 4, 64), bf16("b.weight", 4, 64)};
  write_safetensors(folder / "m/x.safetensors", tensors);
  write_safetensors(folder / "n/x.safetensors", tensors);
  const Outcome folders = shell.run({"inspect", folder / "m", folder / "n"});
  EXPECT_EQ(folders.exit_code, 2);
  EXPECT_EQ(lines_in(folders.err), 1);
  EXPECT_THAT(folders.err, HasSubstr("2 folders are given"));
  EXPECT_THAT(folders.out, IsEmpty());
  const Outcome twice = shell.run({"inspect", folder / "m", folder / "n/x.safetensors"});
  EXPECT_EQ(twice.exit_code, 1);
  EXPECT_EQ(lines_in(twice.err), 1);
  EXPECT_THAT(twice.err, HasSubstr("2 of its 2 tensors are in another file too, 'a.weight' in"));
}

TEST(InspectFiles, OfAFileThatIsCutTheWholeTensorsAreInspected) {
  const Shell shell;
  const fs::path file = shell.folder() / "x.safetensors";
  write_safetensors(file,
                    {bf16("a.weight", 4, 64), bf16("b.weight", 4, 64), bf16("c.weight", 4, 64)});
  const auto whole = fs::file_size(file);
  fs::resize_file(file, whole - 600);
  const Outcome outcome = shell.run({"inspect", file, "--json"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(names_of(outcome), ElementsAre("a.weight"));
  EXPECT_THAT(outcome.err, HasSubstr("it has " + std::to_string(whole - 600) + " of the " +
                                     std::to_string(whole) +
                                     " bytes that its header tells of: 2 of its 3 tensors are not "
                                     "whole and not inspected\n"));
  EXPECT_EQ(lines_in(outcome.err), 1);
}

TEST(InspectFiles, AConfigThatIsNotUnderstoodIsARemark) {
  const Shell shell;
  const fs::path folder = shell.folder() / "m";
  write_safetensors(folder / "model.safetensors", {bf16("layers.0.up_proj.weight", 4, 64)});
  const auto remarks = [&](const std::string& config) {
    std::ofstream(folder / "config.json") << config;
    return lines_of(shell.run({"inspect", folder, "--json"})).back().at("remarks").dump();
  };
  EXPECT_THAT(remarks("[]"), HasSubstr("config.json is not an object: blockwise is taken"));
  for (const char* stated : {R"("fp8")", R"({"quant_method": "awq", "bits": 4})"}) {
    EXPECT_THAT(
        remarks(std::string(R"({"model_type": "llama", "quantization_config": )") + stated + "}"),
        HasSubstr("states no recipe of Octile: blockwise is taken"));
  }
  EXPECT_EQ(remarks(R"({"model_type": "llama"})"), "[]");
}

TEST(InspectFiles, NumbersThatNoExpertHasArePartsOfNames) {
  const Shell shell;
  const fs::path file = shell.folder() / "x.safetensors";
  const std::string at = "layers.0.mlp.experts.";
  write_safetensors(file,
                    {bf16(at + "0.up_proj.weight", 4, 64), bf16(at + "3.up_proj.weight", 4, 64),
                     bf16(at + "4294967296.up_proj.weight", 4, 64)});
  EXPECT_THAT(names_of(shell.run({"inspect", file, "--json"})),
              ElementsAre(at + "*.up_proj.weight", at + "4294967296.up_proj.weight"));
}

// --- bounds ---

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::int64_t kMostBytes = std::int64_t{4}
                                    << 30;  // shadows, and freed memory that is kept
#else
constexpr std::int64_t kMostBytes = std::int64_t{256} << 20;
#endif
constexpr double kMostSecondsToFirstLine = 20;  // 2 on a machine without other work

struct Usage {
  int exit_code = -1;
  std::int64_t bytes = 0;    // resident at most
  double to_first_line = 0;  // seconds
};

Usage usage_of(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {OCTILE_COMMAND, "inspect"});
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const auto start = std::chrono::steady_clock::now();
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::execv(OCTILE_COMMAND, argv.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  Usage usage;
  std::array<char, 4096> text{};
  for (bool first = true; ::read(ends[0], text.data(), text.size()) > 0; first = false) {
    if (!first) continue;
    usage.to_first_line =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  ::close(ends[0]);
  int status = 0;
  rusage used{};
  EXPECT_EQ(::wait4(child, &status, 0, &used), child);
  usage.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  usage.bytes = std::int64_t{used.ru_maxrss} * 1024;
  return usage;
}

// Writes a file of zeros, which the file system does not hold.
void write_zeros(const fs::path& path, const std::vector<std::string>& names, std::int64_t rows,
                 std::int64_t cols) {
  std::string header = "{";
  const std::int64_t bytes = rows * cols * 2;
  std::int64_t at = 0;
  for (const std::string& name : names) {
    header += (at == 0 ? "\"" : ",\"") + name + R"(":{"dtype":"BF16","shape":[)" +
              std::to_string(rows) + "," + std::to_string(cols) + R"(],"data_offsets":[)" +
              std::to_string(at) + "," + std::to_string(at + bytes) + "]}";
    at += bytes;
  }
  header += "}";
  const std::uint64_t length = header.size();
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << header;
  file.close();
  fs::resize_file(path, 8 + length + static_cast<std::uint64_t>(at));
}

TEST(InspectBounds, TwoGigabytesTakeLittleMemoryAndTheFirstLineComesSoon) {
  const Shell shell;
  std::vector<std::string> names;
  for (int i = 0; i < 8; ++i)
    names.push_back("model.layers." + std::to_string(i) + ".mlp.up_proj.weight");
  write_zeros(shell.folder() / "x.safetensors", names, 8192, 16384);
  const Usage usage = usage_of({shell.folder() / "x.safetensors"});
  EXPECT_EQ(usage.exit_code, 0);
  EXPECT_LT(usage.bytes, kMostBytes);
  EXPECT_LT(usage.to_first_line, kMostSecondsToFirstLine);
}

// Headers of 18 MB each: the second one is refused beside the first.
TEST(InspectBounds, LongHeadersTakeNoMoreMemoryThanOne) {
  const Shell shell;
  std::vector<std::string> arguments;
  for (int file = 0; file < 2; ++file) {
    std::vector<std::string> names;
    for (int layer = 0; layer < 75; ++layer) {
      for (int expert = 0; expert < 2000; ++expert) {
        names.push_back("model.layers." + std::to_string(75 * file + layer) + ".mlp.experts." +
                        std::to_string(expert) + ".up_proj.weight");
      }
    }
    const fs::path path = shell.folder() / ("x" + std::to_string(file) + ".safetensors");
    write_zeros(path, names, 1, 2);
    arguments.push_back(path);
  }
  const Usage usage = usage_of(arguments);
  EXPECT_EQ(usage.exit_code, 1);
  EXPECT_LT(usage.bytes, kMostBytes);
}

}  // namespace
}  // namespace octile::tests
