// Whether FP8 pays: the share that a layer is charged for, the rules of the verdict, and the
// estimates without a GPU beside the records in docs/ of both cards.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/measure/record.h"
#include "runtime/tuned/tuning_records.h"
#include "tests/support/api_handles.h"
#include "tools/models/bf16_roofline.h"
#include "tools/models/estimated_times.h"
#include "tools/models/judge.h"
#include "tools/models/layer_records.h"
#include "tools/models/recipes.h"
#include "tools/models/source.h"
#include "tools/verdict/models.h"

namespace octile::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// ---- what a layer is charged for

std::vector<LayerCase> cases_of(const Model& model, Mode mode, std::int64_t tokens,
                                std::int64_t microbatches = 1) {
  ModelUse use;
  use.modes = {mode};
  use.modes_given = true;
  use.counts = {tokens};
  auto cases = layer_cases(model, use, microbatches);
  EXPECT_TRUE(cases) << cases.error().message;
  return cases.value_or(std::vector<LayerCase>());
}

Model shipped(const std::string& name) {
  auto model = find_model(name);
  EXPECT_TRUE(model && assign_recipes(*model, {}));
  return *model;
}

const LayerCase& case_of(const std::vector<LayerCase>& cases, const std::string& layer) {
  const auto found = std::ranges::find(cases, layer, &LayerCase::layer);
  EXPECT_NE(found, cases.end()) << layer;
  return found == cases.end() ? cases.front() : *found;
}

TEST(LayerCases, LayersOfOneInputShareItsQuantiserByN) {
  const auto cases = cases_of(shipped("llama-3-8b"), Mode::kTraining, 2048, 4);
  double all = 0;
  for (const char* layer : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}) {
    const LayerCase& c = case_of(cases, layer);
    ASSERT_EQ(c.gemms.size(), 3);
    ASSERT_EQ(c.quantizers.size(), 3);  // X, W, dY
    all += c.quantizers[0].share;
    EXPECT_EQ(c.quantizers[0].fused->source, "rmsnorm");
    EXPECT_DOUBLE_EQ(c.quantizers[1].share, 0.25);
    EXPECT_EQ(c.quantizers[1].rows, c.n);
    EXPECT_DOUBLE_EQ(c.quantizers[2].share, 1);
  }
  EXPECT_DOUBLE_EQ(all, 1);
  const LayerCase& q = case_of(cases, "self_attn.q_proj");
  EXPECT_DOUBLE_EQ(q.quantizers[0].share, 4096.0 / 6144);
  EXPECT_DOUBLE_EQ(q.kept_bytes_bf16, 2.0 * 2048 * 4096 * 4096 / 6144);
  EXPECT_DOUBLE_EQ(q.copy_bytes_fp8, 2 * (4096.0 * 4096 + 4 * 32 * 32));
  EXPECT_DOUBLE_EQ(q.weight_bytes_fp8, 2 * 4096.0 * 4096 + q.copy_bytes_fp8) << "masters in BF16";
  EXPECT_EQ(case_of(cases, "mlp.down_proj").quantizers[0].fused->source, "silu_mul");
  EXPECT_FALSE(case_of(cases, "self_attn.o_proj").quantizers[0].fused);
}

TEST(LayerCases, WeightsAreQuantisedBeforehandToServe) {
  const auto cases = cases_of(shipped("deepseek-v3"), Mode::kDecode, 64);
  for (const LayerCase& c : cases) {
    EXPECT_EQ(c.quantizers.size(), c.gemms.size()) << c.layer;
    EXPECT_EQ(c.kept_bytes_fp8, 0) << c.layer;
  }
  EXPECT_EQ(case_of(cases, "self_attn.kv_b_proj").gemms.size(), 2) << "absorbed";
  const LayerCase& experts = case_of(cases, "mlp.experts.gate_up_proj");
  EXPECT_EQ(experts.gemms[0].tokens, 2) << "512 rows of 256 experts";
  EXPECT_EQ(experts.quantizers[0].rows, 512);
}

// ---- the verdict

KernelTime measured_us(double us, const std::vector<double>& rounds = {}) {
  return {{us, us, us, TimeSource::kMeasured}, rounds};
}
KernelTime source_us(double us, double error, TimeSource source) {
  return {{us, us * (1 - error), us * (1 + error), source}};
}

LayerCase one_layer(double share = 1) {
  LayerCase layer;
  layer.layer = "up";
  layer.copies = 10;
  layer.tokens = 64;
  layer.gemms.resize(1);
  layer.quantizers.resize(1);
  layer.quantizers[0].share = share;
  return layer;
}

TEST(Judge, TakesTheRatiosOfRounds) {
  // Both drift by half; their ratio is 20 : 12 + 0.5 * 4 in every round.
  const std::vector<double> drift{1, 1.1, 1.2, 1.3, 1.4, 1.5};
  const auto times = [&](double bf16, double gemm, double quantize) {
    const auto of = [&](double us) {
      std::vector<double> rounds;
      for (const double d : drift) rounds.push_back(us * d);
      return measured_us(us, rounds);
    };
    return CaseTimes{{of(bf16)}, {of(gemm)}, {of(quantize)}, {1}};
  };
  const JudgedLayer judged = judge(one_layer(0.5), times(20, 12, 4));
  EXPECT_NEAR(judged.verdict.gain_low, 20.0 / 14, 1e-9);
  EXPECT_NEAR(judged.verdict.gain_high, 20.0 / 14, 1e-9);
  EXPECT_EQ(judged.verdict.verdict, Verdict::kPays);
  EXPECT_NEAR(judged.verdict.saved_us, 10 * (20 - 14), 1e-9);
  EXPECT_NEAR(judged.verdict.fused_quantize, 0.5, 1e-9);
  EXPECT_NEAR(judged.eager_bf16_us, 20 + kHostUs, 1e-9);
  EXPECT_NEAR(judged.eager_fp8_us, 14 + 1.5 * kHostUs, 1e-9);
  EXPECT_EQ(judge(one_layer(), times(16.3, 12, 4)).verdict.verdict, Verdict::kEven);  // 1.019
  EXPECT_EQ(judge(one_layer(), times(16, 12, 4)).verdict.verdict, Verdict::kEven);
  EXPECT_EQ(judge(one_layer(), times(15.9, 12, 4)).verdict.verdict, Verdict::kLoses);
}

TEST(Judge, EstimatesSayLess) {
  const auto verdict = [](double bf16, double error, TimeSource source) {
    return judge(one_layer(),
                 {{source_us(bf16, error, source)}, {measured_us(800)}, {measured_us(200)}, {0}})
        .verdict.verdict;
  };
  EXPECT_EQ(verdict(1030, 0, TimeSource::kMeasured), Verdict::kPays);
  for (const TimeSource source : {TimeSource::kNear, TimeSource::kEstimated}) {
    EXPECT_EQ(verdict(1260, 0.1, source), Verdict::kPays);
    EXPECT_EQ(verdict(1240, 0.1, source), Verdict::kMeasure);
    EXPECT_EQ(verdict(1260, 0.3, source), Verdict::kMeasure) << "the error reaches 1";
    EXPECT_EQ(verdict(810, 0.1, source), Verdict::kMeasure);
    EXPECT_EQ(verdict(790, 0.1, source), Verdict::kLoses);
  }
  // 2 us more or less besides for each kernel.
  const JudgedLayer small = judge(one_layer(), {{source_us(3, 0, TimeSource::kEstimated)},
                                                {source_us(1.5, 0, TimeSource::kEstimated)},
                                                {source_us(0.5, 0, TimeSource::kEstimated)},
                                                {0}});
  EXPECT_EQ(small.verdict.verdict, Verdict::kMeasure);
  EXPECT_EQ(small.verdict.bf16.high, 5);
}

// A round trip of a record keeps the verdict, and gives the layer's times back.
TEST(LayerRecords, AreJudgedAsTheLayerWas) {
  const DeviceSpec& h100 = *find_device("h100");
  const LayerCase layer = cases_of(shipped("llama-3-8b"), Mode::kDecode, 64).at(0);
  const auto rounds = [](double us) {
    return measured_us(us, {us, 1.01 * us, 0.99 * us, us, us, us});
  };
  const JudgedLayer judged = judge(layer, CaseTimes{{rounds(60)}, {rounds(38)}, {rounds(8)}, {1}});
  EXPECT_EQ(judged.verdict.verdict, Verdict::kPays);
  Record record = new_record("octile bench verdict", h100, "13.0");
  record.protocol.timing = "graph";
  set_layer("M", judged, record);
  const Json details = record.details;
  EXPECT_EQ(*details.find("verdict")->string(), "pays");
  ASSERT_TRUE(set_verdicts(record));
  EXPECT_EQ(record.details, details) << "judged anew, it is the same";
  const auto parsed = parse_records(to_json_line(record), "a test");
  ASSERT_TRUE(parsed) << parsed.error().message;
  const auto again = judge(layer, "M", h100, *parsed);
  ASSERT_TRUE(again);
  EXPECT_EQ(source_of(again->verdict), TimeSource::kMeasured);
  EXPECT_NEAR(again->verdict.bf16.median, judged.verdict.bf16.median, 1e-3);
  EXPECT_NEAR(again->verdict.quantize.median, judged.verdict.quantize.median, 1e-3);
  EXPECT_NEAR(again->verdict.fp8_gemms.median, judged.verdict.fp8_gemms.median, 1e-3);
  EXPECT_NEAR(again->verdict.gain_low, judged.verdict.gain_low, 1e-5);
  EXPECT_NEAR(again->verdict.gain_eager, judged.verdict.gain_eager, 1e-3);
  EXPECT_EQ(again->verdict.verdict, judged.verdict.verdict);
  EXPECT_EQ(again->verdict.verdict_eager, judged.verdict.verdict_eager);

  // Records of anything else do not serve.
  EXPECT_FALSE(judge(layer, "N", h100, *parsed));
  EXPECT_FALSE(judge(layer, "M", *find_device("h200"), *parsed));
  LayerCase other = layer;
  other.gemms.front().tokens = 65;
  EXPECT_FALSE(judge(other, "M", h100, *parsed)) << "rows";
  other = layer;
  other.quantizers.front().share /= 2;
  EXPECT_FALSE(judge(other, "M", h100, *parsed)) << "its share of quantising";
  Record wrong = parsed->front();
  wrong.ok = false;
  EXPECT_FALSE(judge(layer, "M", h100, std::vector{wrong}));
  // The last one counts, and an estimate of BF16 makes the verdict one.
  Record last = parsed->front();
  last.details.set("bf16", "estimated");
  const auto estimated = judge(layer, "M", h100, std::vector{parsed->front(), last});
  EXPECT_EQ(source_of(estimated->verdict), TimeSource::kEstimated);
  EXPECT_EQ(estimated->verdict.verdict, Verdict::kPays) << "1.30";
}

// A record of eager layers has their gain alone.
TEST(LayerRecords, GetTheVerdictOfWhatTheyMeasured) {
  Record record = new_record("thresholds.py", *find_device("h100"), "13.0");
  record.what =
      "layer model=PyTorch layer=nn.Linear mode=training tokens=128 n=64 k=64 recipe=mxfp8";
  record.protocol.timing = "stream";
  record.unit = kRatioUnit;
  record.peers = {{"bf16", "", std::nullopt, std::nullopt}};
  for (const auto& [samples, verdict] :
       {std::pair(std::vector{1.02}, "pays"), std::pair(std::vector{1.019}, "even"),
        std::pair(std::vector{0.999}, "loses"),
        std::pair(std::vector{1.5, 1.4, 0.9, 1.5, 1.4}, "even")}) {
    record.values = measured(samples);
    ASSERT_TRUE(set_verdicts(record));
    EXPECT_EQ(*record.details.find("verdict")->string(), verdict);
    EXPECT_EQ(*record.details.find("verdict_eager")->string(), verdict);
    EXPECT_EQ(record.details.find("gain_eager")->number(), record.values.median);
    EXPECT_FALSE(record.details.contains("gain"));
  }
  record.protocol.timing = "graph";
  record.details = Json::object();
  EXPECT_THAT(set_verdicts(record).error().message,
              HasSubstr("has no detail gain_eager; allowed: one above 0"));
  // A compiled module's own gain is beside that of the eager one.
  record.protocol.timing = "compiled";
  record.values = measured({1.1});
  for (const auto& [eager, verdict] : {std::pair(2.2, "pays"), std::pair(0.9, "loses")}) {
    record.details = Json{{"groups", 16}, {"rows", 8192}, {"gain_eager", eager}};
    ASSERT_TRUE(set_verdicts(record));
    EXPECT_EQ(*record.details.find("verdict")->string(), "pays");
    EXPECT_EQ(*record.details.find("verdict_eager")->string(), verdict);
    EXPECT_EQ(record.details.find("gain_eager")->number(), eager);
    EXPECT_EQ(record.details.find("gain")->number(), 1.1);
  }
  record.what = "nn.Linear tokens=128";
  EXPECT_THAT(set_verdicts(record).error().message, HasSubstr("allowed: records of layers"));
}

TEST(Judge, TheBestMixLeavesOutWhatLoses) {
  const auto layer = [](const char* name, double bf16) {
    JudgedLayer judged =
        judge(one_layer(), {{measured_us(bf16)}, {measured_us(8)}, {measured_us(2)}, {0}});
    judged.verdict.layer = name;
    judged.layer.weight_bytes_fp8 = 3;
    judged.layer.copy_bytes_fp8 = 2;
    return judged;
  };
  std::vector<JudgedLayer> layers{layer("up", 15), layer("down", 9)};
  layers.push_back(layer("up", 15));
  layers.back().verdict.tokens = 128;
  const auto models = sum_up(layers, *find_device("h100"));
  ASSERT_EQ(models.size(), 2);
  EXPECT_EQ(models[1].tokens, 128);
  const ModelVerdict& model = models[0];
  EXPECT_DOUBLE_EQ(model.bf16_us, 240);
  EXPECT_DOUBLE_EQ(model.fp8_us, 200);
  EXPECT_DOUBLE_EQ(model.best_mix_us, 190);
  EXPECT_THAT(model.mix, ElementsAre("up"));
  EXPECT_DOUBLE_EQ(model.weight_bytes_fp8, 60);
  EXPECT_DOUBLE_EQ(model.copy_bytes_fp8, 40);
  EXPECT_DOUBLE_EQ(step_of_mix(model, 1), 0.95);
  const std::string text = model_text(model, 1);
  EXPECT_THAT(text, HasSubstr("a step of 1.00 ms becomes 0.95 ms (1.05)"));
  EXPECT_THAT(text, HasSubstr("FP8 copies"));
  EXPECT_THAT(text, StartsWith("decode of 64 tokens: BF16 "));
  EXPECT_EQ(sources_text(layers, "h100"), "measured on h100: 3 of 3 layers measured");
  // One estimate makes the sum one.
  layers[0].verdict.bf16.source = TimeSource::kNear;
  layers[1].verdict.quantize.source = TimeSource::kEstimated;
  EXPECT_THAT(model_text(sum_up(layers, *find_device("h100"))[0], std::nullopt),
              StartsWith("decode of 64 tokens, estimated: BF16 "));
  EXPECT_THAT(model_text(sum_up(layers, *find_device("h100"))[1], std::nullopt),
              StartsWith("decode of 128 tokens: "));
  EXPECT_EQ(sources_text(layers, "h100"),
            "estimated for h100: 1 of 3 layers measured, 1 near, 1 estimated");
  const Json by = *to_json(sum_up(layers, *find_device("h100"))[0]).find("by");
  EXPECT_EQ(by.find("near")->integer(), 1);
  EXPECT_EQ(by.find("measured")->integer(), 0);
}

TEST(Judge, AModelThatDoesNotFitHasNoSum) {
  JudgedLayer judged =
      judge(one_layer(), {{measured_us(15)}, {measured_us(8)}, {measured_us(2)}, {0}});
  const auto sum_of = [&](double gb_of_weights, const char* device) {
    judged.layer.weight_bytes_fp8 = gb_of_weights * 1e9 / 10;  // of 10 copies
    return sum_up({judged}, *find_device(device)).at(0);
  };
  EXPECT_EQ(sum_of(85.8, "h100").too_large, "") << "80 GB of a datasheet are 85.9e9 bytes";
  EXPECT_EQ(sum_of(86, "h100").too_large, "86 GB of weights, an h100 has 80: --tp");
  EXPECT_EQ(sum_of(86, "h200").too_large, "");
  EXPECT_EQ(sum_of(669, "b200").too_large, "669 GB of weights, a b200 has 180: --tp");
  judged.layer.groups = 256;
  const ModelVerdict model = sum_of(669, "h100");
  EXPECT_EQ(model.too_large, "669 GB of weights, an h100 has 80: --tp, --ep");
  EXPECT_EQ(model_text(model, 1),
            "decode of 64 tokens: the sum is missing, because one rank does not hold the model: "
            "669 GB of "
            "weights, an h100 has 80: --tp, --ep");
  const Json json = to_json(model);
  EXPECT_EQ(*json.find("too_large")->string(), model.too_large);
  EXPECT_FALSE(json.contains("bf16_us"));
  EXPECT_EQ(json.find("weight_bytes_fp8")->number(), 669e9);
  DeviceSpec unknown = *find_device("h100");
  unknown.dram_gb = 0;
  EXPECT_EQ(sum_up({judged}, unknown).at(0).too_large, "");
}

// FP8 calls the host twice where BF16 does once, so a small layer pays as a graph alone.
TEST(Judge, CallByCallTheBestMixLeavesOutMore) {
  JudgedLayer large =
      judge(one_layer(), {{measured_us(100)}, {measured_us(60)}, {measured_us(2)}, {0}});
  JudgedLayer small =
      judge(one_layer(), {{measured_us(6)}, {measured_us(4)}, {measured_us(1)}, {0}});
  EXPECT_EQ(small.verdict.verdict, Verdict::kPays);
  EXPECT_EQ(small.verdict.verdict_eager, Verdict::kLoses) << "9 : 11";
  EXPECT_EQ(large.verdict.verdict_eager, Verdict::kPays);
  const auto models = sum_up({large, small}, *find_device("h100"));
  ASSERT_EQ(models.size(), 1);
  const ModelVerdict& model = models.front();
  EXPECT_DOUBLE_EQ(model.eager_bf16_us, 10 * (100 + 6 + 2 * kHostUs));
  EXPECT_DOUBLE_EQ(model.eager_fp8_us, model.fp8_us + 10 * 2 * 2 * kHostUs);
  EXPECT_LT(model.best_mix_us, model.bf16_us - large.verdict.saved_us) << "the small one is in it";
  EXPECT_DOUBLE_EQ(model.eager_best_mix_us, 10 * (large.eager_fp8_us + small.eager_bf16_us));
  EXPECT_THAT(model_text(model, std::nullopt), HasSubstr("call by call BF16 1120 us, FP8 "));
}

// ---- after tuning

// A record with the time of the same GEMM in BF16 makes both measured, with any shipped records.
TEST(VerdictsOfModels, TakeTheRecords) {
  const auto cases = cases_of(shipped("llama-3-8b"), Mode::kDecode, 64);
  const LayerCase& o = case_of(cases, "self_attn.o_proj");
  cache::TuningRecord record;
  record.problem = to_text(with_dynamic_tokens(Problem(o.gemms[0].problem)));
  record.bucket = record.tokens = 64;
  record.device = "h100";
  record.sm_count = 132;
  record.winner = {to_text(default_config(o.gemms[0].problem, 64, *find_device("h100"))), 5, 5, 5};
  record.baselines_us = {{"cublaslt", 9}, {"bf16", 50}};
  record.quantize_us = {{"b", 3}, {"a", 2}};
  cache::TuningSet records;
  records.add(std::vector{record}, "a run");
  records.add(embedded_tuning(), kEmbeddedOrigin);
  const auto verdicts_on = [&](const std::vector<std::string>& names) {
    ModelOptions options;
    options.models = names;
    options.modes = {"decode"};
    return verdicts_of_models(options, "auto", options.use(), *find_device("h100"), {records});
  };
  EXPECT_TRUE(verdicts_on({})->empty());
  const auto models = verdicts_on({"llama-3-8b"});
  ASSERT_TRUE(models) << models.error().message;
  const auto& layers = models->at(0).verdicts.layers;
  const auto judged =
      std::ranges::find(layers, o.layer, [](const JudgedLayer& j) { return j.verdict.layer; });
  ASSERT_NE(judged, layers.end());
  EXPECT_EQ(judged->verdict.bf16.median, 50);
  EXPECT_EQ(judged->verdict.bf16.source, TimeSource::kMeasured);
  EXPECT_EQ(judged->verdict.fp8_gemms.median, 5);
  EXPECT_EQ(judged->verdict.quantize.median, 2);
  EXPECT_EQ(judged->verdict.gain_low, 50.0 / 7) << "all of it was measured";
  EXPECT_EQ(models->at(0).verdicts.sums.size(), 1);
  EXPECT_FALSE(verdicts_on({"llama-3-9b"}));
}

// ---- estimates beside measurements

// Logarithms of expected over measured times.
class Errors {
 public:
  void add(double expected, double measured) {
    const double e = std::log(expected / measured);
    ++count_, sum_ += e, squares_ += e * e;
  }
  int count() const { return count_; }
  double bias() const { return std::expm1(sum_ / count_); }
  double deviation() const { return std::sqrt(squares_ / count_ - std::pow(sum_ / count_, 2)); }
  void print(const std::string& what) const {
    fmt::print("{}: {}, bias {:+.1f} %, deviation {:.1f} %\n", what, count_, 100 * bias(),
               100 * deviation());
  }

 private:
  int count_ = 0;
  double sum_ = 0, squares_ = 0;
};

std::vector<Record> records_of(const char* file) {
  auto records = read_records(fmt::format("{}/docs/records/{}.jsonl", OCTILE_SOURCE_DIR, file));
  EXPECT_TRUE(records && !records->empty()) << file;
  return records.value_or(std::vector<Record>());
}

const DeviceSpec& card_of(const Record& record) {
  return *find_device(record.card.name.find("H200") != std::string::npos ? "h200" : "h100");
}

struct Shape {
  std::int64_t m = 0, n = 0, k = 0;
};

GemmProblem fprop_of(const Shape& s, const char* recipe = "blockwise") {
  return gemm_problem(*find_recipe(recipe), Pass::kFprop, kDynamic, s.n, s.k);
}

TEST(Estimates, Bf16IsWhatCublasltAndPyTorchTook) {
  Errors h100, h200;
  std::ifstream table(std::string(OCTILE_SOURCE_DIR) + "/docs/experiments/benchmarks.md");
  for (std::string line; std::getline(table, line);) {
    Shape s;
    double us = 0;
    if (std::sscanf(line.c_str(), "| %ld x %ld x %ld | %*f | %*f | %*f | %*d %% | %*f | %lf |",
                    &s.m, &s.n, &s.k, &us) == 4) {
      h200.add(bf16_us(fprop_of(s), s.m, *find_device("h200")), us);
    }
  }
  for (const Record& record : records_of("h100-0971869")) {
    if (record.part != "decoding, weights trusted" || record.protocol.timing != "graph") continue;
    Shape s;
    ASSERT_EQ(
        std::sscanf(record.what.c_str(), "ot.Linear tokens=%ld n=%ld k=%ld", &s.m, &s.n, &s.k), 3);
    h100.add(bf16_us(fprop_of(s), s.m, card_of(record)), first_peer_values(record).median);
  }
  h100.print("BF16 on an H100");
  h200.print("BF16 on an H200");
  EXPECT_EQ(h100.count(), 18);
  EXPECT_EQ(h200.count(), 32);
  EXPECT_LT(std::abs(h100.bias()), 0.05);
  EXPECT_LT(std::abs(h200.bias()), 0.03);
  EXPECT_LT(h100.deviation(), 0.085);
  EXPECT_LT(h200.deviation(), 0.05);
}

TEST(Estimates, QuantisersTakeWhatTheSweepSays) {
  for (const char* file : {"h100-9a6c646", "h200-d86c932"}) {
    Errors errors;
    for (const Record& record : records_of(file)) {
      const auto problem = parse_problem(record.what);
      if (!problem || record.unit != "us") continue;
      const auto& quantizer = std::get<QuantizeProblem>(*problem);
      errors.add(quantizer_us(quantizer, quantizer.rows, card_of(record)), record.values.median);
    }
    errors.print(std::string("quantisers, ") + file);
    EXPECT_GT(errors.count(), 100);
    EXPECT_LT(std::abs(errors.bias()), 0.05) << file;
    EXPECT_LT(errors.deviation(), kQuantizerError / 2 + 0.02) << file;
  }
}

// Half of the shipped records as if the others had not been timed.
TEST(Estimates, NearRecordsAreWithinTheirError) {
  std::vector<cache::TuningRecord> known, asked;
  for (std::size_t i = 0; i < embedded_tuning().size(); ++i) {
    (i % 2 == 0 ? known : asked).push_back(embedded_tuning()[i]);
  }
  cache::TuningSet set;
  set.add(known, "half");
  Errors near;
  for (std::size_t i = 0; i < asked.size(); i += 4) {
    const cache::TuningRecord& record = asked[i];
    const auto problem = parse_problem(record.problem);
    const auto* gemm = std::get_if<GemmProblem>(&problem.value());
    if (gemm == nullptr) continue;
    LayerCase layer;
    layer.gemms = {{*gemm, record.tokens}};
    const CaseTimes times = estimated_times(layer, *find_device(record.device), set);
    if (times.gemms[0].us.source != TimeSource::kNear) continue;
    near.add(times.gemms[0].us.median, record.winner.median_us);
  }
  near.print("near records");
  EXPECT_GT(near.count(), 60);
  EXPECT_LT(std::abs(near.bias()), 0.03);
  EXPECT_LT(near.deviation(), kNearError / 2 + 0.005);
}

// The rest of a class of GEMMs if one factor is taken from the winners of the other card.
TEST(Estimates, GemmsOfACardAreWithinTheirErrorByTheOther) {
  std::map<std::string, std::map<std::string, std::vector<double>>>
      logarithms;  // by card and class
  for (std::size_t i = 0; i < embedded_tuning().size(); i += 3) {
    const cache::TuningRecord& record = embedded_tuning()[i];
    const auto problem = parse_problem(record.problem);
    const auto* gemm = std::get_if<GemmProblem>(&problem.value());
    if (gemm == nullptr) continue;
    LayerCase layer;
    layer.gemms = {{*gemm, record.tokens}};
    const CaseTimes times = estimated_times(layer, *find_device(record.device), cache::TuningSet());
    ASSERT_EQ(times.gemms[0].us.source, TimeSource::kEstimated);
    const char* kind = gemm->grouping != Grouping::kNone ? "groups"
                       : gemm->accumulate                ? "wgrad"
                       : record.tokens <= 128            ? "few"
                                                         : "many";
    logarithms[record.device][kind].push_back(
        std::log(times.gemms[0].us.median / record.winner.median_us));
  }
  int within = 0, all = 0;
  for (const auto& [card, other] : {std::pair("h100", "h200"), std::pair("h200", "h100")}) {
    for (const auto& [kind, errors] : logarithms[card]) {
      const std::vector<double>& known = logarithms[other][kind];
      ASSERT_FALSE(known.empty()) << kind;
      double bias = 0;
      for (const double e : known) bias += e / static_cast<double>(known.size());
      Errors held_out;
      for (const double e : errors) {
        held_out.add(std::exp(e - bias), 1);
        within += std::abs(std::expm1(e - bias)) <= kGemmError ? 1 : 0;
        ++all;
      }
      held_out.print(fmt::format("{} on {} by {}", kind, card, other));
    }
  }
  fmt::print("{} of {} are within {:.0f} %\n", within, all, 100 * kGemmError);
  EXPECT_GT(all, 300);
  EXPECT_GE(within, 0.95 * all);
}

cache::TuningSet shipped_records() {
  cache::TuningSet set;
  set.add(embedded_tuning(), kEmbeddedOrigin);
  return set;
}

Model layer_of(const Shape& s) {
  Model model{.name = "one", .origin = "this test", .layers = 1};
  model.weights.push_back({.role = "up",
                           .layers = 1,
                           .n = plain(s.n),
                           .k = plain(s.k),
                           .input = "hidden",
                           .recipe = "blockwise:f32"});
  return model;
}

// A layer that was measured as a graph, beside BF16.
struct Sample {
  std::string file, what;
  Shape shape;
  LayerCase layer;
  CaseTimes times;
  double gain = 0;
};

// Returns layers of PyTorch, forward alone and whole steps, which have more kernels than a layer of
// the library.
std::vector<Sample> measured_layers(std::initializer_list<const char*> files) {
  const cache::TuningSet set = shipped_records();
  std::vector<Sample> samples;
  for (const char* file : files) {
    for (const Record& record : records_of(file)) {
      Shape s;
      const bool forward = record.part == "decoding, weights trusted";
      const bool is_one =
          std::sscanf(record.what.c_str(), "%*s tokens=%ld n=%ld k=%ld", &s.m, &s.n, &s.k) == 3 ||
          std::sscanf(record.what.c_str(), "linear m=%ld n=%ld k=%ld", &s.m, &s.n, &s.k) == 3;
      if (!is_one || record.protocol.timing != "graph" || record.peers.front().name != "bf16") {
        continue;
      }
      if (!forward && record.part != "graph" && record.part != "step") continue;
      const Mode mode = !forward ? Mode::kTraining : s.m <= 256 ? Mode::kDecode : Mode::kPrefill;
      LayerCase layer = cases_of(layer_of(s), mode, s.m).at(0);
      CaseTimes times = estimated_times(layer, card_of(record), set);
      samples.push_back({file, record.what + " " + record.part, s, std::move(layer),
                         std::move(times), ratio_of(record, record.peers.front()).median});
    }
  }
  return samples;
}

bool says_pays(const Sample& sample, double gap_us) {
  return judge(sample.layer, sample.times, gap_us).verdict.verdict == Verdict::kPays;
}
bool is_wrong(const Sample& sample, double gap_us) {
  return sample.gain < 1 && says_pays(sample, gap_us);
}

// Whoever measures FP8 to lose must not have been told that it pays.
TEST(Estimates, NoneSaysPaysWhereALayerLost) {
  int lost = 0, paid = 0;
  for (const Sample& sample : measured_layers({"h100-0971869", "h100-3924796"})) {
    const LayerVerdict v = judge(sample.layer, sample.times).verdict;
    fmt::print("{}: measured {:.2f}, estimated {:.2f} ({:.2f} to {:.2f}): {}\n", sample.what,
               sample.gain, v.gain, v.gain_low, v.gain_high, name_of(v.verdict));
    paid += v.verdict == Verdict::kPays ? 1 : 0;
    lost += sample.gain < 1 ? 1 : 0;
    EXPECT_FALSE(is_wrong(sample, kGapUs)) << sample.what;
  }
  EXPECT_GE(lost, 5);
  EXPECT_GE(paid, 5) << "an estimate that never says pays is none";
}

// Runs that no constant was chosen by: five layers of PyTorch on an H100, a later measurement, and
// three of the library on an H200.
TEST(Estimates, HoldOnRunsThatTheyWereNotFittedTo) {
  Errors errors;
  const auto samples = measured_layers({"h100-2026-11-26", "h200-dde5cca"});
  EXPECT_EQ(samples.size(), 8);
  for (const Sample& sample : samples) {
    const LayerVerdict v = judge(sample.layer, sample.times).verdict;
    fmt::print("{}: measured {:.2f}, estimated {:.2f}: {}\n", sample.what, sample.gain, v.gain,
               name_of(v.verdict));
    EXPECT_FALSE(is_wrong(sample, kGapUs)) << sample.what;
    if (sample.shape.m >= 2048) errors.add(v.gain, sample.gain);
  }
  errors.print("gains of runs held out, from 2048 tokens");
  EXPECT_LT(std::abs(errors.bias()), 0.06);
  EXPECT_LT(errors.deviation(), 0.04);
}

// kGapUs is the least gap that says nothing wrong of any layer, and a margin. The least gap of the
// layers of other sizes alone, with that margin, says nothing wrong of the size that is left out.
TEST(Estimates, TheGapOfAKernelHoldsForSizesThatAreLeftOut) {
  const auto samples = measured_layers({"h100-0971869", "h100-3924796"});
  using Size = std::pair<std::int64_t, std::int64_t>;
  const auto size_of = [](const Sample& s) { return Size(s.shape.n, s.shape.k); };
  const auto least_without = [&](const Size& left_out) {
    double gap_us = 0;
    while (std::ranges::any_of(
        samples, [&](const Sample& s) { return size_of(s) != left_out && is_wrong(s, gap_us); })) {
      gap_us += 0.25;
    }
    return gap_us;
  };
  const double margin_us = kGapUs - least_without({});
  fmt::print("margin {:.2f} us\n", margin_us);
  EXPECT_GE(margin_us, 0);
  std::set<Size> sizes;
  for (const Sample& sample : samples) sizes.insert(size_of(sample));
  EXPECT_EQ(sizes.size(), 4);
  for (const Size& left_out : sizes) {
    const double least_us = least_without(left_out);
    fmt::print("without {} x {}: {:.2f} us\n", left_out.first, left_out.second, least_us);
    for (const Sample& sample : samples) {
      if (size_of(sample) != left_out) continue;
      EXPECT_FALSE(is_wrong(sample, least_us + margin_us)) << sample.what;
    }
  }
}

// A search of an MX GEMM beside BF16: what was measured and what is estimated of their ratio.
struct MxSample {
  std::string what, kind;
  double measured = 0, estimated = 0;
};

std::vector<MxSample> mx_searches() {
  std::vector<MxSample> samples;
  for (const Record& record : records_of("h100-61770ac")) {
    const auto problem = parse_problem(record.what);
    if (!problem || record.unit != kRatioUnit) continue;
    const auto& gemm = std::get<GemmProblem>(*problem);
    const std::int64_t tokens = token_axis(gemm).tokens;
    const DeviceSpec& device = card_of(record);
    const double us = estimate_us(default_config(gemm, tokens, device), gemm, tokens, device);
    samples.push_back({record.what,
                       fmt::format("{} {}", record.what.substr(record.what.find(" b=") + 1, 12),
                                   gemm.accumulate ? "wgrad" : "fprop"),
                       record.values.median, bf16_us(gemm, tokens, device) / us});
  }
  return samples;
}

// MX GEMMs are slower than BF16's in all records of searches. Their factor in the cost model is the
// mean of these; each kind's is also taken from the others alone.
TEST(Estimates, NoneSaysThatMxGemmsPay) {
  const auto samples = mx_searches();
  EXPECT_GE(samples.size(), 8);
  Errors errors;
  for (const MxSample& sample : samples) {
    EXPECT_LT(sample.measured, 1) << sample.what;
    EXPECT_LT(sample.estimated, kEstimatePays) << sample.what;
    double sum = 0;
    int count = 0;
    for (const MxSample& other : samples) {
      if (other.kind == sample.kind) continue;
      sum += std::log(other.estimated / other.measured);
      ++count;
    }
    ASSERT_GT(count, 0);
    const double held_out = sample.estimated / std::exp(sum / count);
    fmt::print("{}: measured {:.2f}, by the others {:.2f}\n", sample.what, sample.measured,
               held_out);
    EXPECT_LT(held_out, kEstimatePays) << sample.what;
    errors.add(held_out, sample.measured);
  }
  errors.print("gains of MX GEMMs, by the other kinds");
}

// Frameworks have grouped GEMMs, so that a mixture's experts are one launch in BF16.
TEST(Estimates, ExpertsAreAGroupedGemm) {
  const DeviceSpec& h100 = *find_device("h100");
  const auto rank = shard(shipped("deepseek-v3"), {.tp = 8});
  ASSERT_TRUE(rank);
  std::vector<JudgedLayer> layers;
  std::map<std::string, LayerVerdict> of;
  for (const LayerCase& layer : cases_of(*rank, Mode::kPrefill, 4096)) {
    layers.push_back(judge(layer, estimated_times(layer, h100, shipped_records())));
    of[layer.layer] = layers.back().verdict;
  }
  const LayerVerdict& up = of.at("mlp.experts.gate_up_proj");
  const LayerVerdict& down = of.at("mlp.experts.down_proj");
  EXPECT_EQ(fmt::format("{:.0f} {:.2f}", up.bf16.median, up.gain), "817 1.21");
  EXPECT_EQ(up.verdict, Verdict::kMeasure);
  EXPECT_EQ(fmt::format("{:.0f} {:.2f}", down.bf16.median, down.gain), "486 1.44");
  EXPECT_EQ(down.verdict, Verdict::kPays);
  const ModelVerdict sum = sum_up(layers, *find_device("h100")).at(0);
  EXPECT_EQ(fmt::format("{:.0f} {:.2f}", sum.bf16_us, sum.bf16_us / sum.fp8_us), "107969 1.28");
  // One launch starts once, forward and for dW, whose groups divide K.
  const Recipe& recipe = *find_recipe("blockwise");
  for (const Pass pass : {Pass::kFprop, Pass::kWgrad}) {
    const GemmProblem grouped = gemm_problem(recipe, pass, kDynamic, 512, 7168, 32);
    const GemmProblem one = gemm_problem(recipe, pass, kDynamic, 512, 7168);
    EXPECT_LT(bf16_us(grouped, 32 * 128, h100), 32 * bf16_us(one, 128, h100) - 31);
  }
  const GemmProblem few = gemm_problem(recipe, Pass::kFprop, kDynamic, 512, 7168, 32);
  EXPECT_LT(bf16_us(few, 4, h100), bf16_us(few, 32, h100) / 4) << "4 of 32 groups have rows";
}

// FP8 has twice BF16's rate and half of its bytes: an estimate that says more is wrong.
TEST(Estimates, NoneGainsMoreThanRateAndBytes) {
  constexpr double kMost = 2;
  const cache::TuningSet set = shipped_records();
  const std::array cards{find_device("h100"), find_device("h200")};
  std::set<std::string> seen;
  for (const std::string& name : shipped_model_names()) {
    for (const auto& [mode, tokens] :
         {std::pair(Mode::kDecode, 64), std::pair(Mode::kPrefill, 4096),
          std::pair(Mode::kTraining, 8192)}) {
      for (const LayerCase& layer : cases_of(shipped(name), mode, tokens)) {
        const std::string text =
            fmt::format("{} {} of {} tokens", to_text(Problem(layer.gemms[0].problem)),
                        name_of(mode), layer.gemms[0].tokens);
        if (!seen.insert(text).second) continue;
        const DeviceSpec& card = *cards.at(seen.size() % cards.size());
        const LayerVerdict v = judge(layer, estimated_times(layer, card, set)).verdict;
        EXPECT_LE(v.gain, kMost * v.gain_high / v.gain) << name << " " << text << " " << card.name;
      }
    }
  }
  EXPECT_GT(seen.size(), 500);
}

// The step of DeepSeek-V3's experts, which `octile bench experts` timed on both cards beside a loop
// of cuBLASLt over the experts.
TEST(Estimates, ExpertsGainAboutWhatTheyWereMeasuredTo) {
  Model model = shipped("deepseek-v3");
  auto rank = shard(std::move(model), {1, 8});
  ASSERT_TRUE(rank);
  const auto cases = cases_of(*rank, Mode::kTraining, 8192);
  for (const auto& [card, measured] : {std::pair("h100", 1.265), std::pair("h200", 1.321)}) {
    double bf16 = 0, fp8 = 0;
    for (const LayerCase& layer : cases) {
      if (layer.groups == 0) continue;
      const LayerVerdict v =
          judge(layer, estimated_times(layer, *find_device(card), shipped_records())).verdict;
      bf16 += v.bf16.median;
      fp8 += v.fp8_gemms.median + v.quantize.median;
    }
    fmt::print("experts on {}: BF16 {:.0f} us, FP8 {:.0f}, {:.2f}, measured {:.2f}\n", card, bf16,
               fp8, bf16 / fp8, measured);
    EXPECT_NEAR(bf16 / fp8 / measured, 1, 0.15) << card;
  }
}

}  // namespace
}  // namespace octile::tools
