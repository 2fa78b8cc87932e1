// The page of --report: its numbers, its texts, its parts with and without verdicts and charts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "tools/page/assets.h"
#include "tools/page/charts.h"
#include "tools/page/html.h"
#include "tools/page/page.h"
#include "tools/report/record_files.h"

namespace octile::tools {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kHostile = "</script><img src=x onerror=\"alert('1')\">";
constexpr const char* kLibrary = "window.vegaEmbed = null;";

cache::TuningRecord decision(std::int64_t tokens = 64) {
  cache::TuningRecord record;
  record.problem = "gemm m=? n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128";
  record.bucket = record.tokens = tokens;
  record.device = "h200";
  record.sm_count = 132;
  record.winner = {"tile=64x64x128", 10.123456, 10.1, 10.25};
  record.default_config = cache::TimedConfig{"tile=128x64x128", 12.5, 12.25, 12.75};
  record.gain = 1.2347562;
  record.baselines_us = {{"bf16", 17.625}, {"cublaslt", 11.375}, {"floor", 4.0}};
  return record;
}

PageContent content_of(const cache::TuningRecord& record) {
  PageContent content;
  content.device = *find_device("h200");
  content.device_name = "NVIDIA H200";
  content.tuned = {record};
  return content;
}

PageContent with_verdicts() {
  PageContent content = content_of(decision());
  LayerVerdict layer;
  layer.layer = kHostile;
  layer.tokens = 64;
  layer.copies = 58;
  layer.bf16 = {17.625, 17, 18, TimeSource::kMeasured};
  layer.fp8_gemms = {10.125, 10, 11, TimeSource::kNear};
  layer.quantize = {1.5, 1, 2, TimeSource::kMeasured};
  layer.gain = 1.51612903;
  layer.verdict = Verdict::kPays;
  content.layers = {layer};
  ModelVerdict total;
  total.tokens = 64;
  total.bf16_us = 1000;
  total.fp8_us = 800;
  total.best_mix_us = 750;
  total.mix = {"q_proj"};
  total.by.add(layer);
  total.pays = 1;
  total.weight_bytes_bf16 = 2e9;
  total.weight_bytes_fp8 = 1e9;
  content.totals = {total};
  return content;
}

std::vector<std::string> ids_of(const PageContent& content) {
  std::vector<std::string> ids;
  for (const Chart& chart : charts_of(content, rows_of(content))) ids.push_back(chart.id);
  return ids;
}

TEST(Page, ShowsEveryNumberOfARecord) {
  const std::string page = page_html(content_of(decision()), kLibrary);
  for (const char* number :
       {"<td class=n>64", "<data value=10.123456>10.12</data>", "<td class=n>12.50",
        "<data value=1.2347562>1.235</data>", "<data value=17.625>17.62</data>",
        "<data value=11.375>11.38</data>", "<td class=n>10.10", "<td class=n>10.25"})
    EXPECT_THAT(page, HasSubstr(number));
  EXPECT_THAT(page, HasSubstr("tile=64x64x128"));
  EXPECT_THAT(page, HasSubstr("1.235 times as fast as the default"));
}

TEST(Page, NamesAreText) {
  PageContent content = with_verdicts();
  content.models = {kHostile};
  content.device_name = kHostile;
  content.names[content.tuned.front().problem] = kHostile;
  const std::string page = page_html(content, kLibrary);
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, HasSubstr("&lt;/script&gt;&lt;img"));
  // Specifications, library, and the page's own script.
  const std::regex end("</script>");
  EXPECT_EQ(std::distance(std::sregex_iterator(page.begin(), page.end(), end), {}), 3);
  EXPECT_EQ(json_in_script({{"name", kHostile}}).find('<'), std::string::npos);
  EXPECT_EQ(html_text("\x1b[2J\n\xff"), "\\x1b[2J\\x0a\\xff");
}

TEST(Page, AllowsItsOwnScriptsAndNothingElse) {
  const std::string page = page_html(with_verdicts(), kLibrary);
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, HasSubstr(csp_hash(kLibrary)));
  EXPECT_THAT(page, HasSubstr(csp_hash(page_file("page.js"))));
  EXPECT_THAT(page, Not(HasSubstr("unsafe")));
  EXPECT_EQ(csp_hash(""), "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='");
  EXPECT_FALSE(std::regex_search(page, std::regex("(src|href)=\"?(https?:)?//")));
}

TEST(Page, HasTheChartsThatThereAreNumbersFor) {
  EXPECT_THAT(ids_of(with_verdicts()),
              ElementsAre("heat-decode", "gains", "roofline", "predictions", "memory"));
  PageContent content = content_of(decision());
  content.tuned.front().problem = "unknown";
  content.tuned.front().default_config.reset();
  EXPECT_THAT(ids_of(content), ElementsAre());
  const std::string page = page_html(content, kLibrary);
  EXPECT_THAT(page, HasSubstr("Whether FP8 pays is not shown"));
  EXPECT_THAT(page, HasSubstr("There is no roofline"));
  EXPECT_THAT(page, Not(HasSubstr("id=\"layers\"")));
}

TEST(Page, ShowsErrorAgainstSpeedOfMeasuredIntervals) {
  cache::TuningRecord own = decision(), other = decision();
  own.problem = "gemm m=? n=7168 k=2048 a=e4m3:tensor b=e4m3:tensor d=bf16 acc=0 promote=128";
  own.error = 0.0009765625;
  other.problem = "gemm m=? n=7168 k=2048 a=e4m3:tensor b=e4m3:tensor d=bf16 acc=0 promote=512";
  other.winner.median_us = 9.5;
  other.error = 0.00390625;
  PageContent content = content_of(own);
  content.tuned.push_back(other);
  EXPECT_THAT(ids_of(content), Contains("promotion"));
  const std::string page = page_html(content, kLibrary);
  EXPECT_THAT(page, HasSubstr("<td>128<td class=n><data value=0.0009765625>0.00098</data>"));
  EXPECT_THAT(page, HasSubstr("<td>512<td class=n><data value=0.00390625>0.0039</data>"));

  content.tuned.front().error.reset();
  content.tuned.pop_back();
  EXPECT_THAT(ids_of(content), Not(Contains("promotion")));
  EXPECT_THAT(page_html(content, kLibrary), HasSubstr("octile tune --max-error"));
}

TEST(Page, ShowsTheErrorOfAMeasurement) {
  Record record;
  record.what = "gemm m=64 n=7168 k=2048 promote=512";
  record.unit = "us";
  record.values.median = 9.5;
  record.details = {{"promote", "512"}, {"error", 0.00390625}};
  PageContent content;
  content.measured = {record};
  const std::vector<PageRow> rows = rows_of(content);
  ASSERT_EQ(rows.size(), 1);
  EXPECT_EQ(rows.front().promote, "512");
  EXPECT_EQ(rows.front().error, 0.00390625);
}

TEST(Page, SaysWhetherFp8Pays) {
  const std::string page = page_html(with_verdicts(), kLibrary);
  EXPECT_THAT(page, HasSubstr("In decode at 64 tokens FP8 is estimated to pay in 1 of 1 layer: all "
                              "in FP8 is 1.25 times as fast as BF16, the best mix 1.33 times (0 of "
                              "1 layers measured, 1 near)."));
  EXPECT_THAT(page, HasSubstr("Does FP8 pay, estimated</h2>"));
  EXPECT_THAT(page, HasSubstr("Does FP8 pay, estimated: decode</h3>"));
  EXPECT_THAT(page, HasSubstr("Estimated: 0 of 1 layers measured, 1 near. FP8 pays from 1.02 on as "
                              "measured, and from 1.25 as estimated.</figcaption>"));
  EXPECT_THAT(page, HasSubstr("<td>estimated: 0 of 1 layers measured, 1 near"));
  EXPECT_THAT(page, HasSubstr("<td><span class=\"pays\">pays</span><td>near"));
  EXPECT_THAT(page, HasSubstr("<span class=\"pays\">pays</span>"));
  EXPECT_THAT(page, HasSubstr("<data value=10.125>10.12</data> <small>near</small>"));
  // A sum is not known better than its parts.
  EXPECT_THAT(page, HasSubstr("<data value=11.625>11.62</data> <small>near</small>"));
}

// Only what is measured as a whole is said without that word.
TEST(Page, SaysThatItIsMeasured) {
  PageContent content = with_verdicts();
  content.layers.front().fp8_gemms.source = TimeSource::kMeasured;
  content.totals.front().by = {};
  content.totals.front().by.add(content.layers.front());
  const std::string page = page_html(content, kLibrary);
  EXPECT_THAT(page, HasSubstr("In decode at 64 tokens FP8 pays in 1 of 1 layer: all in FP8 is 1.25 "
                              "times as fast as BF16, the best mix 1.33 times. "));
  EXPECT_THAT(page, HasSubstr("Does FP8 pay</h2>"));
  EXPECT_THAT(page, HasSubstr("quantising included. FP8 pays from 1.02 on.</figcaption>"));
  EXPECT_THAT(page, HasSubstr("<td>1 of 1 layers measured"));
  EXPECT_THAT(page, Not(HasSubstr("stimated")));
}

TEST(Page, HasNoSumOfAModelThatDoesNotFit) {
  PageContent content = with_verdicts();
  content.totals.front().too_large = "669 GB of weights, an h100 has 80: --tp, --ep";
  const std::string page = page_html(content, kLibrary);
  EXPECT_THAT(page,
              HasSubstr("The sum is missing, because one rank does not hold the model: 669 GB "
                        "of weights, an h100 has 80: --tp, --ep."));
  EXPECT_THAT(page, Not(HasSubstr("times as fast as BF16")));
  EXPECT_THAT(page, Not(HasSubstr("id=\"totals\"")));
  EXPECT_THAT(page, HasSubstr("id=\"layers\""));
  EXPECT_THAT(ids_of(content), Contains("memory"));
}

TEST(Page, BeginsWithWhatTellsRowsApart) {
  PageContent content = content_of(decision());
  content.tuned.front().default_config.reset();
  content.names[content.tuned.front().problem] = "mlp.up_proj, mlp.down_proj";
  const std::string page = page_html(content, kLibrary);
  const std::string keys = page.substr(page.find("id=\"rows\""));
  EXPECT_LT(keys.find("data-key=\"problem\""), keys.find("data-key=\"tokens\""));
  EXPECT_LT(keys.find("data-key=\"tokens\""), keys.find("data-key=\"us\""));
  EXPECT_LT(keys.find("data-key=\"us\""), keys.find("data-key=\"layer\""));
  EXPECT_THAT(page, HasSubstr("<td>2 modules: mlp.up_proj, mlp.down_proj"));
  // The page names the parts that it does not show before the others.
  EXPECT_LT(page.find("Default and tuned times are not shown"), page.find("id=\"measurements\""));
}

TEST(Page, WithoutTheLibrarySaysSo) {
  const std::string page = page_html(with_verdicts(), "");
  EXPECT_THAT(page, HasSubstr("made without the library that draws charts"));
  EXPECT_THAT(page, Not(HasSubstr("class=\"chart\"")));
  EXPECT_THAT(page, HasSubstr("id=\"rows\""));
}

TEST(Page, HoldsTheRecords) {
  PageContent content = content_of(decision());
  EXPECT_THAT(page_html(content, ""),
              HasSubstr("base64," + base64(to_json_line(decision()) + "\n") + "\""));
  for (std::int64_t tokens = 1; tokens < 400; ++tokens) content.tuned.push_back(decision(tokens));
  EXPECT_THAT(page_html(content, ""), HasSubstr("download=\"records.jsonl.zst\""));
  EXPECT_EQ(base64("a") + base64("ab") + base64("abc"), "YQ==YWI=YWJj");
}

TEST(RecordFiles, NameTheLineThatIsNoRecord) {
  RecordFiles files;
  const std::string good = to_json_line(decision()) + "\n";
  EXPECT_TRUE(add_records(good + "\n" + good, "a", files));
  EXPECT_EQ(files.tuned.size(), 1) << "the last decision counts";
  for (const auto& [line, why] :
       {std::pair("nonsense", "not a JSON object"), std::pair(R"({"version": 1})", "problem"),
        std::pair(R"({"record": 1})", "tool")}) {
    const Status status = add_records(good + line, "b.jsonl", files);
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().message, StartsWith("b.jsonl:2: "));
    EXPECT_THAT(status.error().message, HasSubstr(why));
  }
  EXPECT_EQ(card_of("NVIDIA H100 80GB HBM3"), "h100");
}

}  // namespace
}  // namespace octile::tools
