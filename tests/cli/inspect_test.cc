// octile inspect: files and folders, what it prints of them, and what it says of those that it
// cannot read. Its numbers are checked by tests/oracle/inspect_oracle.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
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
using ::testing::Not;

TEST(Inspect, PrintsTheWorstFirstAndWhatLeavesItInBf16) {
  const Shell shell;
  Written bad = bf16("model.layers.1.mlp.down_proj.weight", 128, 256);
  const std::uint16_t huge = 0x7000;  // 1.6e29 sets the scale of its block
  std::memcpy(bad.data.data(), &huge, sizeof(huge));
  write_safetensors(
      shell.folder() / "m/model.safetensors",
      {bf16("model.layers.0.mlp.up_proj.weight", 128, 256), bad,
       bf16("model.embed_tokens.weight", 64, 256), flattened(bf16("model.norm.weight", 1, 256))});
  const Outcome outcome = shell.run({"inspect", shell.folder() / "m"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("--keep 'mlp.down_proj' leaves the worst in BF16"));
  EXPECT_LT(outcome.out.find("layers.1.mlp.down_proj"), outcome.out.find("layers.0.mlp.up_proj"));
  EXPECT_THAT(outcome.out, HasSubstr("blockwise, 1\n  stays in BF16"));
  const Outcome one = shell.run({"inspect", shell.folder() / "m", "--top", "1"});
  EXPECT_THAT(one.out, Not(HasSubstr("up_proj  ")));
  EXPECT_THAT(one.out, HasSubstr("1 more line; --top 0 prints all"));
}

TEST(Inspect, ARecordForEachTensorAndOneForTheModel) {
  const Shell shell;
  const fs::path file = shell.folder() / "x.safetensors";
  write_safetensors(file,
                    {bf16("layers.0.q_proj.weight", 130, 256), bf16("lm_head.weight", 64, 128)});
  const Outcome outcome = shell.run({"inspect", "--json", "--recipe", "blockwise,mxfp8", file});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<json> lines = lines_of(outcome);
  ASSERT_EQ(lines.size(), 4);
  EXPECT_EQ(lines[0].at("quantised"), 1);
  const json& tensor = lines[1];
  EXPECT_EQ(tensor.at("keep"), "q_proj");
  EXPECT_EQ(tensor.at("recipes").at(0).at("blocks"), 4);
  EXPECT_EQ(tensor.at("recipes").at(1).at("blocks"), 130 * 8);
  EXPECT_TRUE(tensor.at("recipes").at(1).at("f32_rest_snr_db").is_null());
  EXPECT_EQ(lines[2].at("left_out"), "the output layer, kept in BF16");
  EXPECT_FALSE(lines[2].contains("recipes"));
  EXPECT_EQ(lines[3].at("what"), "model");
  EXPECT_EQ(lines[3].at("recipes").at(0).at("snr_db"), tensor.at("recipes").at(0).at("snr_db"));
}

TEST(Inspect, TheConfigNamesRecipeAndLayersLeftOut) {
  const Shell shell;
  const fs::path folder = shell.folder() / "m";
  write_safetensors(folder / "model.safetensors",
                    {bf16("model.layers.0.mlp.up_proj.weight", 32, 64),
                     bf16("model.layers.1.mlp.up_proj.weight", 32, 64)});
  std::ofstream(folder / "config.json") << R"({"model_type": "llama", "quantization_config": {
      "quant_method": "fbgemm_fp8", "modules_to_not_convert": ["model.layers.1"]}})";
  const std::vector<json> lines = lines_of(shell.run({"inspect", "--json", folder}));
  ASSERT_EQ(lines.size(), 4);
  EXPECT_EQ(lines[1].at("recipes").at(0).at("recipe"), "rowwise:f32");
  EXPECT_EQ(lines[2].at("left_out"), "left out by quantization_config");
}

TEST(Inspect, FilterNamesPartsOfNames) {
  const Shell shell;
  const fs::path file = shell.folder() / "x.safetensors";
  write_safetensors(file, {bf16("layers.0.mlp.up_proj.weight", 4, 64),
                           bf16("layers.0.mlp.experts.0.up_proj.weight", 4, 64),
                           bf16("layers.0.mlp.experts.1.up_proj.weight", 4, 64),
                           bf16("layers.1.mlp.up_proj.weight", 4, 64)});
  EXPECT_THAT(names_of(shell.run({"inspect", "--json", file, "--filter", "layers.0"})),
              ElementsAre("layers.0.mlp.experts.*.up_proj.weight", "layers.0.mlp.up_proj.weight"));
  const Outcome none = shell.run({"inspect", file, "--filter", "layers.7"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("--filter matches no tensor"));
}

TEST(Inspect, NansAndInfinitiesAreNamedAndCounted) {
  const Shell shell;
  const fs::path file = shell.folder() / "x.safetensors";
  Written bad = bf16("layers.0.up_proj.weight", 4, 64);
  const std::uint16_t nan = 0x7FC0, infinity = 0xFF80;
  std::memcpy(bad.data.data() + 10, &nan, sizeof(nan));
  std::memcpy(bad.data.data() + 40, &infinity, sizeof(infinity));
  Written norm = bf16("norm.weight", 1, 64);
  std::memcpy(norm.data.data(), &nan, sizeof(nan));
  write_safetensors(file, {bad, norm});
  const Outcome outcome = shell.run({"inspect", "--json", file});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("'layers.0.up_proj.weight' has 1 NaN and 1 infinity\n"));
  EXPECT_THAT(outcome.err, HasSubstr("'norm.weight' has 1 NaN and 0 infinities\n"));
  EXPECT_EQ(lines_of(outcome).back().at("nonfinite").size(), 2);
}

TEST(Inspect, WhatCannotBeReadIsASentenceAndTheRestIsInspected) {
  const Shell shell;
  const fs::path folder = shell.folder() / "m";
  write_safetensors(folder / "a.safetensors", {bf16("a.weight", 4, 64)});
  std::ofstream(folder / "b.safetensors") << "ten bytes.";
  ASSERT_EQ(::mkfifo((folder / "c.safetensors").c_str(), 0600), 0);
  std::ofstream(folder / "config.json") << "{";
  std::ofstream(folder / "model.safetensors.index.json")
      << R"({"weight_map": {"a.weight": "a.safetensors", "b": "b.safetensors", "c": "c.safetensors",
                            "d": "d.safetensors"}})";
  const Outcome outcome = shell.run({"inspect", "--json", folder});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(names_of(outcome), ElementsAre("a.weight"));
  EXPECT_THAT(outcome.err, HasSubstr("b.safetensors: its header has"));
  EXPECT_THAT(outcome.err, HasSubstr("c.safetensors is a FIFO; allowed: a regular file"));
  EXPECT_THAT(outcome.err, HasSubstr("d.safetensors cannot be read: No such file"));
  EXPECT_THAT(outcome.err, HasSubstr("config.json: line 1, column 1"));
  EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 4);
  // A header that says of itself that it is long, in a file that is.
  const std::uint64_t bytes = 20'000'001;
  std::ofstream(folder / "a.safetensors", std::ios::binary)
      .write(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  fs::resize_file(folder / "a.safetensors", 30'000'000);
  EXPECT_THAT(shell.run({"inspect", folder / "a.safetensors"}).err,
              HasSubstr("a.safetensors: its header has 20000001 bytes; allowed: up to 20000000"));
  EXPECT_EQ(lines_of(outcome).back().at("problems").size(), 4);
}

TEST(Inspect, ScalesThatFitNothing) {
  const Shell shell;
  const fs::path folder = shell.folder() / "m";
  const std::string codes(256 * 256, '\x38');
  const auto floats = [](std::vector<float> values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  };
  write_safetensors(folder / "model.safetensors",
                    {{"a.weight", "F8_E4M3", {256, 256}, codes},
                     {"d.weight", "F4", {4, 64}, std::string(128, 'x')},
                     {"a.weight_scale_inv", "F32", {2, 2}, floats({0.5F, 0.3F, -1.0F, 1.0F})},
                     {"b.weight", "F8_E4M3", {256, 256}, codes},
                     {"b.weight_scale_inv", "F32", {3, 2}, floats({1, 1, 1, 1, 1, 1})},
                     {"c.weight", "F8_E4M3", {256, 256}, codes}});
  std::ofstream(folder / "config.json") << R"({"model_type": "deepseek_v3", "quantization_config": {
      "quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}})";
  const Outcome outcome = shell.run({"inspect", folder});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  std::string text = outcome.out;
  std::ranges::replace(text, '\n', ' ');
  EXPECT_THAT(text, HasSubstr("'a.weight': 1 of 4 scales are zero, negative or not finite"));
  EXPECT_THAT(text, HasSubstr("'a.weight': 1 of 4 scales are not powers of two"));
  EXPECT_THAT(text, HasSubstr("1 tensor is of type F4, which no recipe has: not read"));
  const Outcome records = shell.run({"inspect", folder, "--json"});
  EXPECT_THAT(records.out, HasSubstr("'b.weight_scale_inv' are F32 [3, 2], which fit no blocks"));
  EXPECT_THAT(records.out, HasSubstr("'c.weight' has no scales"));
  EXPECT_EQ(lines_of(records).back().at("remarks").size(), 5);
}

TEST(Inspect, APairIsComparedByNames) {
  const Shell shell;
  const fs::path a = shell.folder() / "a.safetensors", b = shell.folder() / "b.safetensors";
  write_safetensors(a, {bf16("p.weight", 4, 64), bf16("q.weight", 4, 64), bf16("r.weight", 4, 64)});
  write_safetensors(b, {bf16("p.weight", 4, 64), bf16("q.weight", 4, 64, 0x3F90),
                        bf16("r.weight", 8, 32), bf16("s.weight", 4, 64)});
  const Outcome outcome = shell.run({"inspect", "--pair", "--json", a, b});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<json> lines = lines_of(outcome);
  ASSERT_EQ(lines.size(), 4);
  EXPECT_EQ(lines[0].at("pair"), json({a, b}));
  EXPECT_EQ(lines[0].at("tensors"), 2);
  EXPECT_TRUE(lines[1].at("snr_db").is_null());  // equal
  EXPECT_EQ(lines[1].at("differing"), 0);
  EXPECT_EQ(lines[2].at("differing"), 256);
  EXPECT_EQ(lines[2].at("largest_difference"), 0.125);
  EXPECT_EQ(lines[3].at("what"), "model");
  EXPECT_EQ(lines[3].at("differing"), 256);
  EXPECT_EQ(lines[3].at("remarks"),
            json({"'r.weight' is 1 x [4, 64] in the first and 1 x [8, 32] in the second",
                  "'s.weight' is in the second alone"}));
  EXPECT_THAT(shell.run({"inspect", "--pair", a, b}).out, HasSubstr("exact"));
  EXPECT_EQ(shell.run({"inspect", "--pair", a}).exit_code, 2);
  EXPECT_EQ(shell.run({"inspect", "--pair", a, b, "--sample", "0.5"}).exit_code, 2);
  EXPECT_EQ(shell.run({"inspect", "--pair", a, b, "--transposed", "p"}).exit_code, 2);
}

// GPT-2: Conv1D stores [k, n], which biases say, and of the square weight the layer.
std::vector<Written> gpt2(int hidden, Written c_proj) {
  const std::string at = "h.0.";
  const auto vector = [](const std::string& name, int count) {
    Written bias = bf16(name, 1, count);
    bias.shape = {count};
    return bias;
  };
  return {bf16("wte.weight", 96, hidden), bf16(at + "attn.c_attn.weight", hidden, 3 * hidden),
          vector(at + "attn.c_attn.bias", 3 * hidden), std::move(c_proj),
          vector(at + "attn.c_proj.bias", hidden)};
}

TEST(Inspect, WeightsThatAreStoredTransposedAreReadAlongColumns) {
  const Shell shell;
  const fs::path file = shell.folder() / "x.safetensors";
  Written c_proj = bf16("h.0.attn.c_proj.weight", 160, 160);
  const std::uint16_t huge = 0x7000;  // sets the scale of the blocks of column 5
  std::memcpy(c_proj.data.data() + 2 * (130 * 160 + 5), &huge, sizeof(huge));
  write_safetensors(file, gpt2(160, c_proj));
  const Outcome outcome = shell.run({"inspect", file, "--json", "--recipe", "rowwise,mxfp8"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<json> lines = lines_of(outcome);
  ASSERT_EQ(lines[2].at("name"), "h.0.attn.c_proj.weight");
  for (const std::size_t i : {1U, 2U}) EXPECT_EQ(lines[i].at("layout"), "[k, n]");
  EXPECT_EQ(lines[1].at("shape"), json({160, 480}));
  EXPECT_EQ(lines[1].at("recipes").at(0).at("blocks"), 480);      // one for each column
  EXPECT_EQ(lines[1].at("recipes").at(1).at("blocks"), 480 * 5);  // 32 elements of a column
  const auto expect_place = [](const json& block, int row, int rows) {
    EXPECT_EQ(block.at("row"), row);
    EXPECT_EQ(block.at("col"), 5);
    EXPECT_EQ(block.at("rows"), rows);
    EXPECT_EQ(block.at("cols"), 1);
  };
  expect_place(lines[2].at("recipes").at(0).at("worst_blocks").at(0), 0, 160);
  expect_place(lines[2].at("recipes").at(1).at("worst_blocks").at(0), 128, 32);
  const Outcome table = shell.run({"inspect", file, "--wide"});
  EXPECT_THAT(table.out, HasSubstr("2 are\n  stored as [k, n]"));
  EXPECT_THAT(table.out, HasSubstr("160 x 480 [k, n]"));
}

TEST(Inspect, TransposedTakesThePlaceOfWhatShapesSay) {
  const Shell shell;
  const fs::path file = shell.folder() / "x.safetensors";
  write_safetensors(file, gpt2(32, bf16("h.0.attn.c_proj.weight", 32, 32)));
  const auto layouts = [&](const std::string& pattern) {
    std::vector<std::string> texts;
    for (const json& line :
         lines_of(shell.run({"inspect", file, "--json", "--transposed", pattern})))
      if (line.contains("layout")) texts.push_back(line.at("layout"));
    return texts;
  };
  EXPECT_THAT(layouts("none"), ElementsAre("[n, k]", "[n, k]"));
  EXPECT_THAT(layouts("attn.c_proj"), ElementsAre("[n, k]", "[k, n]"));
  EXPECT_THAT(layouts("c_*"), ElementsAre("[k, n]", "[k, n]"));
}

// The config's hidden size tells of experts; those of DBRX lie one behind the other in a matrix.
TEST(Inspect, ExpertsMayBeStoredTransposed) {
  const Shell shell;
  const auto records = [&](const std::string& config, const std::vector<Written>& tensors) {
    const fs::path folder = shell.folder() / "m";
    write_safetensors(folder / "model.safetensors", tensors);
    std::ofstream(folder / "config.json") << config;
    return lines_of(shell.run({"inspect", "--json", folder, "--recipe", "rowwise"}));
  };
  Written up = bf16("model.layers.0.feed_forward.experts.up_proj", 2 * 64, 96);
  up.shape = {2, 64, 96};
  std::vector<json> lines = records(R"({"model_type": "new", "hidden_size": 64})", {up});
  EXPECT_EQ(lines.at(1).at("layout"), "[k, n]");
  EXPECT_EQ(lines.at(1).at("recipes").at(0).at("blocks"), 2 * 96);
  EXPECT_EQ(lines.at(1).at("recipes").at(0).at("worst_blocks").at(0).at("rows"), 64);
  lines = records(R"({"model_type": "new", "hidden_size": 96})", {up});
  EXPECT_EQ(lines.at(1).at("layout"), "[n, k]");
  lines = records(R"({"model_type": "dbrx", "d_model": 32, "ffn_config": {"moe_num_experts": 4}})",
                  {bf16("transformer.blocks.0.ffn.experts.mlp.w2", 4 * 48, 32)});
  EXPECT_EQ(lines.at(1).at("layout"), "[k, n]");
  EXPECT_EQ(lines.at(1).at("matrices"), 4);
  EXPECT_EQ(lines.at(1).at("recipes").at(0).at("blocks"), 4 * 32);
}

TEST(Inspect, RefusesWhatItsOptionsDoNotAllow) {
  const Shell shell;
  const fs::path file = shell.folder() / "x.safetensors";
  write_safetensors(file, {bf16("p.weight", 4, 64)});
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"--sample", "0"}, "--sample is 0; allowed: above 0, up to 1"},
      {{"--sample", "nan"}, "--sample is nan; allowed: above 0, up to 1"},
      {{"--recipe", "blockwize"}, "recipe is 'blockwize'"},
      {{"--filter", "re:("}, "is not a regular expression"},
      {{"--transposed", "q"}, "--transposed matches no weight that is quantised; allowed: names"}};
  for (const auto& [options, sentence] : cases) {
    std::vector<std::string> arguments{"inspect", file};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = shell.run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << sentence;
    EXPECT_THAT(outcome.err, HasSubstr(sentence));
    EXPECT_THAT(outcome.out, IsEmpty());
  }
  const Outcome npz = shell.run({"inspect", "x.npz"});
  EXPECT_THAT(npz.err, HasSubstr("x.npz is an archive of arrays"));
}

}  // namespace
}  // namespace octile::tests
