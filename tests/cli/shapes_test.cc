// octile shapes, and where --model of every verb finds a model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <fstream>

#include "tests/cli/command.h"
#include "tests/cli/fifo.h"

namespace octile::tests {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kTiny = R"({"model_type": "llama", "hidden_size": 256,
  "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "vocab_size": 1024, "torch_dtype": "bfloat16"})";

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

std::string refused(const Shell& shell, const std::string& model) {
  const Outcome outcome = shell.run({"shapes", "--model", model});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
  return outcome.err;
}

TEST(Shapes, ListsTheShippedModels) {
  const Shell shell;
  const Outcome outcome = shell.run({"shapes", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json shipped = outcome.json().at("shipped");
  EXPECT_GE(shipped.size(), 40);
  EXPECT_THAT(shell.run({"shapes"}).out, HasSubstr("deepseek-v3 "));
  const Outcome idle = shell.run({"shapes", "--tp", "8"});
  EXPECT_EQ(idle.exit_code, 2);
  EXPECT_THAT(idle.err, HasSubstr("--tp is 8 without --model"));
}

// The shapes and the verdict are of one reading: neither can be read twice.
TEST(Shapes, AModelMayComeThroughAPipe) {
  for (const std::string path : {"-", "fifo"}) {
    Shell shell;
    const Fifo fifo(shell.folder() / "fifo", kTiny);
    if (path == "-") shell.redirect(0, fifo.path());
    const Outcome outcome = shell.run({"shapes", "--model", path == "-" ? path : fifo.path(),
                                       "--estimate", "--device", "h200", "--json"});
    ASSERT_EQ(outcome.exit_code, 0) << path << outcome.err;
    const json model = outcome.json().at("models").at(0);
    EXPECT_EQ(model.at("layers"), 2);
    EXPECT_FALSE(model.at("estimate").at("layers").empty());
  }
}

TEST(Shapes, AModelIsAWordAFileAFolderOrAnId) {
  Shell shell;
  const fs::path folder = shell.folder() / "tiny";
  write(folder / "config.json", kTiny);
  const fs::path cached = shell.folder() / "hub" / "models--my-org--tiny.1";
  write(cached / "refs" / "main", "0123abcd\n");
  write(cached / "snapshots" / "0123abcd" / "config.json", kTiny);
  shell.set("HF_HUB_CACHE", (shell.folder() / "hub").string());
  for (const std::string& model :
       {folder.string(), (folder / "config.json").string(), std::string("my-org/tiny.1")}) {
    const Outcome outcome = shell.run({"shapes", "--model", model, "--json"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const json told = outcome.json().at("models").at(0);
    EXPECT_EQ(told.at("parameters"),
              2 * (3 * 256 * 256 + 3 * 512 * 256 + 512) + 2 * 1024 * 256 + 256);
  }
  const Outcome several = shell.run({"shapes", "--json", "--model", "deepseek-ai/DeepSeek-V3,hy3"});
  ASSERT_EQ(several.exit_code, 0) << several.err;
  const json models = several.json().at("models");
  EXPECT_EQ(models.at(0).at("model"), "deepseek-v3");
  EXPECT_EQ(models.at(1).at("model"), "hy3");
  // HF_HOME comes before ~/.cache.
  Shell home;
  write(home.folder() / "hf/hub/models--a--b/refs/main", "77");
  write(home.folder() / "hf/hub/models--a--b/snapshots/77/config.json", kTiny);
  home.set("HF_HOME", (home.folder() / "hf").string());
  EXPECT_EQ(home.run({"shapes", "--model", "a/b"}).exit_code, 0);
}

TEST(Shapes, RefusesInOneSentence) {
  Shell shell;
  shell.set("HF_HUB_CACHE", (shell.folder() / "hub").string());
  const auto file = [&](const std::string& text) {
    const fs::path path = shell.folder() / "config.json";
    write(path, text);
    return path.string();
  };
  EXPECT_THAT(refused(shell, "meta-llama/Llama-3.1-8C"),
              AllOf(HasSubstr("did you mean 'meta-llama/Llama-3.1-8B'?"),
                    HasSubstr("no model of that id is in ")));
  EXPECT_THAT(refused(shell, file("{")), HasSubstr("config.json: line 1, column 1: the text ends"));
  EXPECT_THAT(refused(shell, file(R"({"model_type": "llama", "model_type": "llama"})")),
              HasSubstr("config.json: the key 'model_type' stands twice in one object"));
  EXPECT_THAT(refused(shell, file(R"({"model_type": "lllama"})")),
              HasSubstr("model_type is 'lllama', which has no row here; allowed: the model's"));
  EXPECT_THAT(refused(shell, file(R"({"a": )" + std::string(80, '[') + std::string(80, ']') + "}")),
              HasSubstr("nested more than 64 deep"));
  EXPECT_THAT(refused(shell, file(std::string((16 << 20) + 1, ' '))),
              HasSubstr("has more than 16777216 bytes"));
  fs::remove(shell.folder() / "config.json");
  ASSERT_EQ(::mkfifo((shell.folder() / "config.json").c_str(), 0600), 0);
  EXPECT_THAT(refused(shell, shell.folder().string()),
              HasSubstr("config.json is a FIFO; allowed: a regular file"));
  write(shell.folder() / "hub/models--a--b/refs/main", "../../etc");
  EXPECT_THAT(refused(shell, "a/b"), HasSubstr("refs/main is '../../etc'; allowed: the name of a"));
}

// Every verb derives the same problems.
TEST(Shapes, VerbsAgree) {
  const Shell shell;
  const std::vector<std::string> model{"--model", "kimi-k2", "--tp", "8", "--mode", "decode"};
  const auto problems = [&](std::vector<std::string> command, const std::string& key) {
    command.insert(command.end(), model.begin(), model.end());
    const Outcome outcome = shell.run(command);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::set<std::string> texts;
    const json document = outcome.json();
    for (const json& one : document.at(key)) {
      const auto text = one.at("problem").get<std::string>();
      if (text.starts_with("gemm")) texts.insert(text);
    }
    return texts;
  };
  const auto explained = problems({"explain", "--json"}, "problems");
  EXPECT_EQ(explained.size(), 11U);
  EXPECT_EQ(problems({"compile", "--dry-run", "--json"}, "problems"), explained);
  EXPECT_EQ(
      problems({"tune", "--explain", "--json", "--device", "h200", "--tokens", "64"}, "tasks"),
      explained);
  std::vector<std::string> bench{"bench"};
  bench.insert(bench.end(), model.begin(), model.end());
  EXPECT_THAT(shell.run(bench).err, HasSubstr("needs a GPU"));
}

// --device says of each problem of a model whether that device has a kernel.
TEST(Shapes, ExplainSaysWhatADeviceHasKernelsOf) {
  const Shell shell;
  const std::vector<std::string> words{"explain", "--model", "llama-3-8b", "--recipe",
                                       "mxfp8",   "--json",  "--mode",     "decode"};
  for (const char* device : {"l40s", "h100"}) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"--device", device});
    const Outcome outcome = shell.run(all);
    const json told = outcome.json();
    EXPECT_EQ(told.at("device"), device);
    bool has_all = true;
    for (const json& one : told.at("problems")) {
      const json devices = shell.run({"explain", one.at("problem"), "--json"}).json().at("devices");
      EXPECT_EQ(one.at("supported"), std::ranges::find(devices, device) != devices.end()) << one;
      has_all = has_all && one.at("supported");
    }
    EXPECT_EQ(outcome.exit_code, has_all ? 0 : 3);
  }
  EXPECT_FALSE(shell.run(words).json().contains("device"));
  const Outcome text = shell.run({"explain", "--model", "llama-3-8b", "--device", "l40s"});
  EXPECT_THAT(text.out, AllOf(HasSubstr("on l40s"), HasSubstr("has kernels")));
}

TEST(Shapes, TokensAreCountsAndRanges) {
  const Shell shell;
  const Outcome outcome = shell.run(
      {"explain", "--model", "llama-3-8b", "--tokens", "1:64,100", "--mode", "prefill", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.json().at("problems").at(0).at("tokens"),
            json::array({1, 2, 4, 8, 16, 32, 64, 100}));
}

TEST(Shapes, EstimatesWhetherFp8Pays) {
  const Shell shell;
  const std::vector<std::string> words{"shapes", "--model", "llama-3-8b", "--estimate", "--device",
                                       "h100",   "--mode",  "training",   "--tokens",   "8192"};
  const Outcome text = shell.run(words);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("does FP8 pay, estimated for h100: 0 of 7 layers measured, "));
  EXPECT_THAT(text.out, HasSubstr("training of 8192 tokens, estimated: BF16 "));
  std::vector<std::string> json_words = words;
  for (const char* word : {"--json", "--step-ms", "9000", "--microbatches", "4"}) {
    json_words.emplace_back(word);
  }
  const Outcome outcome = shell.run(json_words);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json model = outcome.json().at("models").at(0);
  EXPECT_EQ(model.at("device"), "h100");
  EXPECT_EQ(model.at("device_memory_bytes"), std::int64_t{80} << 30);
  const json& layers = model.at("estimate").at("layers");
  EXPECT_EQ(layers.size(), model.at("weights").size());
  double saved = 0;
  for (const json& layer : layers) {
    const json& gemms = layer.at("fp8_gemms_us");
    EXPECT_LE(gemms.at("low"), gemms.at("median"));
    EXPECT_EQ(layer.at("bf16_us").at("source"), "estimated");
    saved += layer.at("saved_us").get<double>();
  }
  const json& sum = model.at("estimate").at("sums").at(0);
  EXPECT_NEAR(sum.at("bf16_us").get<double>() - sum.at("fp8_us").get<double>(), saved, 1);
  EXPECT_LT(sum.at("step_ms_best_mix"), 9000);
}

TEST(Shapes, AModelThatDoesNotFitHasNoSum) {
  const Shell shell;
  const std::vector<std::string> words{"shapes",   "--model", "deepseek-v3", "--estimate",
                                       "--device", "h100",    "--mode",      "prefill"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return shell.run(more);
  };
  const Outcome whole = with({"--wide"});
  EXPECT_THAT(whole.out, HasSubstr("an h100 has 80: --tp, --ep"));
  EXPECT_THAT(whole.out, ::testing::Not(HasSubstr("best mix")));
  EXPECT_THAT(
      with({"--step-ms", "9"}).err,
      HasSubstr("--step-ms is 9, and the sum is missing: 669 GB of weights, an h100 has 80"));
  EXPECT_THAT(with({"--tp", "8"}).out, HasSubstr("BF16 107969 us"));
  const json sum = with({"--json"}).json().at("models").at(0).at("estimate").at("sums").at(0);
  EXPECT_FALSE(sum.contains("best_mix_us"));
  EXPECT_EQ(sum.at("too_large"), "669 GB of weights, an h100 has 80: --tp, --ep");
}

// The record of a layer is the truth about it.
TEST(Shapes, TakesTheRecordsOfLayers) {
  Shell shell;
  const fs::path path = shell.folder() / "layers.jsonl";
  write(path, layer_record());
  shell.set("OCTILE_VERDICTS", path.string());
  const std::vector<std::string> words{"shapes",   "--model", "llama-3.2-1b", "--estimate",
                                       "--device", "h100",    "--mode",       "decode"};
  EXPECT_THAT(shell.run(words).out,
              HasSubstr("does FP8 pay, estimated for h100: 1 of 4 layers measured, "));
  std::vector<std::string> as_json = words;
  as_json.emplace_back("--json");
  const json estimate = shell.run(as_json).json().at("models").at(0).at("estimate");
  const json& layer = estimate.at("layers").at(0);
  EXPECT_EQ(layer.at("layer"), "self_attn.qkv_proj");
  EXPECT_EQ(layer.at("by"), "measured");
  EXPECT_EQ(layer.at("verdict"), "even") << "an estimate would ask for a measurement";
  EXPECT_EQ(layer.at("bf16_us").at("median"), 10.1);
  EXPECT_NEAR(layer.at("gain_eager").get<double>(), 13.1 / 16, 1e-9);
  EXPECT_EQ(layer.at("verdict_eager"), "loses");
  EXPECT_EQ(estimate.at("sums").at(0).at("by").at("measured"), 1);
  write(path, "{}");
  const Outcome outcome = shell.run(words);
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("OCTILE_VERDICTS: "));
  EXPECT_THAT(outcome.err, HasSubstr("line 1: record is null; allowed: 1"));
}

TEST(Shapes, RefusesWhatAnEstimateDoesNotTake) {
  const Shell shell;
  const auto error = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "shapes");
    const Outcome outcome = shell.run(words);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    return outcome.err;
  };
  EXPECT_THAT(error({"--model", "llama-3-8b", "--tokens", "64"}),
              HasSubstr("--tokens without --estimate"));
  EXPECT_THAT(error({"--estimate"}), HasSubstr("--estimate without --model"));
  const std::vector<std::string> llama{"--model", "llama-3-8b", "--estimate", "--device", "h200"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), llama.begin(), llama.end());
    return error(more);
  };
  EXPECT_THAT(with({"--step-ms", "9"}), HasSubstr("there are 2 modes and token counts"));
  EXPECT_THAT(with({"--step-ms", "0.5", "--mode", "prefill"}),
              HasSubstr("--step-ms is 0.5; allowed: at least "));
  EXPECT_THAT(with({"--microbatches", "0"}), HasSubstr("--microbatches is 0"));
  EXPECT_THAT(with({"--tokens", "0", "--mode", "decode"}), HasSubstr("--tokens has 0"));
  const Outcome experts = shell.run(
      {"shapes", "--model", "qwen3-30b-a3b", "--estimate", "--device", "l4", "--recipe", "mxfp8"});
  EXPECT_EQ(experts.exit_code, 1);
  EXPECT_THAT(experts.err, HasSubstr("not built yet: groups of operands with MX scales"));
}

}  // namespace
}  // namespace octile::tests
