// octile inspect's report: which tensor is the worst, what it advises, and what it says of a pair.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "tests/cli/command.h"
#include "tests/cli/written_tensors.h"

namespace octile::tests {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Returns values about 0.02, the first ones of which are as large as that.
Written with_outliers(const std::string& name, const std::vector<float>& outliers) {
  std::vector<float> values;
  for (int i = 0; i < 64 * 128; ++i)
    values.push_back(0.02F * (1.0F + static_cast<float>(i % 89) / 89));
  std::ranges::copy(outliers, values.begin());
  return f32(name, {64, 128}, values);
}

std::string keep_of(const Outcome& outcome) {
  const std::string text = unwrapped(outcome.out);
  const std::size_t begin = text.find("--keep '") + 8;
  return text.substr(begin, text.find('\'', begin) - begin);
}

TEST(InspectReport, WhatIsFlushedByTwoOutliersIsTheWorst) {
  const Shell shell;
  const fs::path file = shell.folder() / "x.safetensors";
  write_safetensors(file, {with_outliers("layers.0.mlp.fine.weight", {}),
                           with_outliers("layers.0.mlp.two.weight", {1e6F, -1e6F})});
  const Outcome outcome = shell.run({"inspect", file, "--recipe", "tensorwise", "--wide"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_LT(outcome.out.find("mlp.two"), outcome.out.find("mlp.fine"));
  EXPECT_EQ(keep_of(outcome), "mlp.two");
  // Scales in fp32 flush as much: they make the outliers exact, and nothing else better.
  EXPECT_THAT(outcome.out, HasSubstr("+0.00 dB"));
  EXPECT_THAT(unwrapped(outcome.out), HasSubstr("the others have rest"));
  EXPECT_THAT(shell.run({"inspect", file, "--recipe", "tensorwise", "--top", "1"}).out,
              HasSubstr("mlp.two"));
  // The two are in one block.
  const std::vector<json> lines =
      lines_of(shell.run({"inspect", file, "--json", "--recipe", "blockwise,mxfp8"}));
  EXPECT_EQ(lines.at(2).at("name"), "layers.0.mlp.two.weight");
  EXPECT_GT(lines.at(2).at("recipes").at(1).at("worst_blocks").at(0).at("flushed_share"), 0.9);
}

// Names of checkpoints whose models `octile shapes` knows by other names.
TEST(InspectReport, ThePatternOfKeepIsTakenByShapes) {
  const Shell shell;
  const auto expect_taken = [&](const std::string& name, const std::string& config,
                                const std::vector<Written>& tensors, const std::string& pattern) {
    const fs::path folder = shell.folder() / name;
    write_safetensors(folder / "model.safetensors", tensors);
    std::ofstream(folder / "config.json") << config;
    EXPECT_EQ(keep_of(shell.run({"inspect", folder})), pattern);
    const Outcome shapes = shell.run({"shapes", "--model", folder, "--keep", pattern});
    EXPECT_EQ(shapes.exit_code, 0) << shapes.err;
  };
  std::vector<Written> experts;
  for (const char* expert : {"0", "1"}) {
    const std::string at = std::string("model.layers.0.block_sparse_moe.experts.") + expert;
    experts.push_back(with_outliers(at + ".w1.weight", {}));
    experts.push_back(with_outliers(at + ".w3.weight", {1e9F, 1e9F}));
    experts.push_back(with_outliers(at + ".w2.weight", {}));
    experts.back().shape = {128, 64};
  }
  expect_taken("mixtral",
               R"({"model_type": "mixtral", "hidden_size": 128, "intermediate_size": 64,
                   "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
                   "vocab_size": 64, "num_local_experts": 2, "num_experts_per_tok": 1})",
               experts, "mlp.experts.gate_up_proj");
  expect_taken("dbrx",
               R"({"model_type": "dbrx", "d_model": 128, "n_heads": 4,
                   "ffn_config": {"moe_num_experts": 2, "moe_top_k": 1}})",
               {with_outliers("transformer.blocks.0.ffn.experts.mlp.w2", {1e9F, 1e9F})},
               "mlp.experts.mlp.down_proj");
}

TEST(InspectReport, SaysWhichExpertHasTheNan) {
  const Shell shell;
  const fs::path file = shell.folder() / "x.safetensors";
  Written bad = bf16("layers.0.mlp.experts.7.up_proj.weight", 4, 64);
  bad.data.replace(0, 2, "\xC0\x7F");
  write_safetensors(file, {bf16("layers.0.mlp.experts.2.up_proj.weight", 4, 64), bad});
  const Outcome outcome = shell.run({"inspect", file});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("has 1 NaN and 0 infinities, in expert 7\n"));
}

TEST(InspectReport, ValuesBeyondFp32AreNoInfinities) {
  const Shell shell;
  const fs::path file = shell.folder() / "x.safetensors";
  const std::vector<double> values{1e300, -1e300, 1, 2};
  write_safetensors(file, {{"layers.0.up_proj.weight",
                            "F64",
                            {2, 2},
                            std::string(reinterpret_cast<const char*>(values.data()), 32)}});
  const Outcome outcome = shell.run({"inspect", file});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("has 0 NaNs and 2 values beyond fp32\n"));
}

TEST(InspectReport, WeightsWithoutNameOrLossHaveNoAdvice) {
  const Shell shell;
  const fs::path file = shell.folder() / "x.safetensors";
  write_safetensors(file, {bf16("", 4, 64)});
  const std::string unnamed = unwrapped(shell.run({"inspect", file}).out);
  EXPECT_THAT(unnamed, HasSubstr("'' is the worst: rest"));
  EXPECT_THAT(unnamed, Not(HasSubstr("--keep")));
  Written zeros = bf16("layers.0.b_proj_x.weight", 4, 64);
  std::ranges::fill(zeros.data, '\0');
  write_safetensors(file, {bf16("layers.0.up_proj.weight", 4, 64), zeros});
  EXPECT_THAT(unwrapped(shell.run({"inspect", file}).out),
              HasSubstr("the others have nothing to lose"));
}

TEST(InspectReport, FitsANarrowTerminalAndNamesTheLayer) {
  Shell shell;
  const fs::path file = shell.folder() / "x.safetensors";
  const std::string before = "language_model.model.layers.", after = ".feed_forward.experts.";
  write_safetensors(file, {bf16(before + "31" + after + "gate_up_proj.weight", 4, 64),
                           bf16(before + "47" + after + "gate_up_proj.weight", 4, 64)});
  for (const char* width : {"20", "30", "40", "54", "60", "80"}) {
    shell.set("COLUMNS", width);
    const Outcome outcome = shell.run({"inspect", file});
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);) {
      const bool is_word = line.find(' ', 2) == std::string::npos;
      EXPECT_TRUE(is_word || line.size() <= std::stoul(width)) << line;
    }
    if (std::stoul(width) < 40) continue;
    EXPECT_THAT(outcome.out, HasSubstr("31."));
    EXPECT_THAT(outcome.out, HasSubstr("47."));
  }
}

class InspectPair : public ::testing::Test {
 protected:
  Outcome pair(const std::vector<Written>& a, const std::vector<Written>& b,
               const std::vector<std::string>& more = {}) {
    write_safetensors(shell_.folder() / "a.safetensors", a);
    write_safetensors(shell_.folder() / "b.safetensors", b);
    std::vector<std::string> arguments{"inspect", "--pair", shell_.folder() / "a.safetensors",
                                       shell_.folder() / "b.safetensors"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return shell_.run(arguments);
  }
  Shell shell_;
};

TEST_F(InspectPair, AnErrorWithoutASignalIsNotExact) {
  const std::vector<float> zeros(256), ones(256, 1.0F);
  const Outcome outcome = pair({f32("p.weight", {4, 64}, zeros)}, {f32("p.weight", {4, 64}, ones)});
  EXPECT_THAT(outcome.out, HasSubstr("-inf dB"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("exact")));
}

TEST_F(InspectPair, DoublesDifferByLessThanFp32Has) {
  const std::vector<float> ones(256, 1.0F);
  const std::vector<double> more(256, 1.0 + 1e-12);
  const Outcome outcome =
      pair({f32("p.weight", {4, 64}, ones)},
           {{"p.weight", "F64", {4, 64}, {reinterpret_cast<const char*>(more.data()), 2048}}},
           {"--json"});
  const json row = lines_of(outcome).at(1);
  EXPECT_EQ(row.at("differing"), 256);
  EXPECT_NEAR(row.at("snr_db"), 240, 0.01);
}

TEST_F(InspectPair, SaysWhyATensorHasNoCounterpart) {
  const std::string codes(256 * 256, '\x38');
  const std::string scales(24, '\0');
  const Outcome outcome = pair({bf16("p.weight", 256, 256), bf16("q.weight", 4, 64),
                                bf16("r.weight", 4, 64), bf16("s.weight", 4, 64)},
                               {{"p.weight", "F8_E4M3", {256, 256}, codes},
                                {"p.weight_scale_inv", "F32", {3, 2}, scales},
                                {"q.weight", "I32", {4, 64}, std::string(1024, 'x')},
                                {"r.weight", "BF16", {0, 64}, ""}},
                               {"--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const json end = lines_of(outcome).back();
  EXPECT_THAT(end.at("remarks"),
              ElementsAre("'p.weight_scale_inv' are F32 [3, 2], which fit no blocks of [256, 256]; "
                          "its codes are taken as values (in the second)",
                          "'q.weight' of the second is of type I32, which is not read",
                          "'r.weight' of the second is without elements",
                          "'s.weight' is in the first alone"));
}

TEST_F(InspectPair, ProblemsAreInTheLastRecord) {
  write_safetensors(shell_.folder() / "f/a.safetensors", {bf16("p.weight", 4, 64)});
  std::ofstream(shell_.folder() / "f/b.safetensors") << "ten bytes.";
  write_safetensors(shell_.folder() / "g.safetensors",
                    {bf16("p.weight", 4, 64), bf16("q.weight", 4, 64)});
  const Outcome outcome = shell_.run(
      {"inspect", "--pair", "--json", shell_.folder() / "f", shell_.folder() / "g.safetensors"});
  EXPECT_EQ(outcome.exit_code, 1);
  const json end = lines_of(outcome).back();
  EXPECT_EQ(end.at("problems").size(), 1);
  EXPECT_THAT(
      end.at("remarks"),
      ElementsAre("'q.weight' is in the second, and in no file of the first that could be read"));
}

}  // namespace
}  // namespace octile::tests
