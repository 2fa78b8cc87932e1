// Bad usage of every subcommand gives an exit status, one sentence on stderr and nothing on stdout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <ostream>

#include "tests/cli/command.h"

namespace octile::tests {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct BadInput {
  std::vector<std::string> arguments;
  int exit_code;
  std::string says;
};

// NOLINTNEXTLINE(readability-identifier-naming): the name GoogleTest looks for
void PrintTo(const BadInput& input, std::ostream* out) {
  for (const std::string& argument : input.arguments) *out << argument << ' ';
}

// Returns the number and the words of a case, as far as a test's name may have them:
// "03_emit_gemm".
std::string test_name(const ::testing::TestParamInfo<BadInput>& input) {
  constexpr std::size_t kLongest = 60;
  std::string name = input.index < 10 ? "0" : "";
  name += std::to_string(input.index);
  for (const std::string& argument : input.param.arguments) {
    name += '_';
    for (const char c : argument) {
      if (std::isalnum(static_cast<unsigned char>(c)) != 0)
        name += c;
      else if (name.back() != '_')
        name += '_';
    }
  }
  return name.substr(0, kLongest);
}

class BadUsage : public ::testing::TestWithParam<BadInput> {};

TEST_P(BadUsage, IsRefusedInOneSentence) {
  const Shell shell;
  const Outcome outcome = shell.run(GetParam().arguments);
  EXPECT_EQ(outcome.exit_code, GetParam().exit_code) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, StartsWith("octile: "));
  EXPECT_THAT(outcome.err, EndsWith("\n"));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(GetParam().says));
}

constexpr int kFailed = 1;
constexpr int kBadUsage = 2;

INSTANTIATE_TEST_SUITE_P(
    Command, BadUsage,
    ::testing::Values(BadInput{{}, kBadUsage, "subcommand is required"},
                      BadInput{{"frobnicate"}, kBadUsage, "no subcommand 'frobnicate'"},
                      BadInput{{"--bogus"}, kBadUsage, "`octile` has no option '--bogus'"},
                      BadInput{{"compil"}, kBadUsage, "did you mean 'compile'?"},
                      BadInput{{"list"}, kBadUsage, "did you mean `octile cache list`?"},
                      BadInput{{"help", "cache", "lst"}, kBadUsage, "did you mean 'list'?"},
                      BadInput{{"help", "emit", "x"}, kBadUsage, "`octile emit` has no verbs"},
                      BadInput{{"help", "frobnicate"}, kBadUsage, "no subcommand 'frobnicate'"},
                      BadInput{{"demo", "--frob"}, kBadUsage, "--frob"},
                      BadInput{{"demo", "--quick=much"}, kBadUsage, "--quick takes no value"},
                      BadInput{{"emit", "--gemm", "8x8x16", "--gemm", "8x8x32"},
                               kBadUsage,
                               "--gemm is given 2 times; allowed: once"}),
    test_name);

INSTANTIATE_TEST_SUITE_P(Demo, BadUsage,
                         ::testing::Values(BadInput{{"demo", "--device", "h2000"},
                                                    kBadUsage,
                                                    "--device is 'h2000'; did you mean 'h200'?"},
                                           BadInput{
                                               {"demo", "--device", "cuda:0"}, kFailed, "libcuda"}),
                         test_name);

INSTANTIATE_TEST_SUITE_P(
    Emit, BadUsage,
    ::testing::Values(
        BadInput{{"emit"}, kBadUsage, "exactly one is allowed"},
        BadInput{{"emit", "--gemm", "1x8x16", "--quantize", "1x8"}, kBadUsage, "exactly one"},
        BadInput{{"emit", "--gemm", "128x7168"}, kBadUsage, "'128x7168'"},
        BadInput{{"emit", "--gemm", "128x7167x2048"}, kBadUsage, "n is 7167"},
        BadInput{{"emit", "--gemm", "128x7168x2048", "--recipe", "best"}, kBadUsage, "'best'"},
        BadInput{{"emit", "--problem",
                  "gemm m=1 n=8 k=16 a=e4m3:1x32 b=e4m3:1x32 d=bf16 acc=0 promote=64"},
                 kFailed,
                 "an MX scale holds for 32 of K"},
        BadInput{{"emit", "--gemm", "128x7168x2048", "--device", "h210"},
                 kBadUsage,
                 "--device is 'h210'; did you mean 'h200'?; allowed: h200, h100, h20, l4, l40s, "},
        BadInput{
            {"emit", "--problem",
             "gemm m=64 n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=e4m3:1x128 acc=0 promote=128",
             "--device", "L4"},
            kFailed,
            "is not supported on NVIDIA L4 (compute capability 8.9): not built yet: FP8 D without "
            "TMA"},
        BadInput{{"emit", "--quantize", "16x7168", "--device", "sm_80"},
                 kBadUsage,
                 "--device is 'sm_80', of compute capability 8.0: FP8 needs 8.9 or newer; allowed"},
        BadInput{{"compile", "--quantize", "16x7168", "--device", "RTX-3090"},
                 kBadUsage,
                 "of compute capability 8.6: FP8 needs 8.9 or newer"},
        BadInput{{"emit", "--gemm", "128x7168x2048", "--device", "l40s", "--config", "copies=tma"},
                 kBadUsage,
                 "device_has_instructions"},
        BadInput{{"emit", "--gemm", "128x7168x2048", "--device", "host"}, kBadUsage, "host"},
        BadInput{{"emit", "--gemm", "?x7168x2048", "--tokens", "0"},
                 kBadUsage,
                 "--tokens is 0; allowed: 1 to 2147483647"},
        BadInput{
            {"emit", "--gemm", ""}, kBadUsage, "--gemm is ''; allowed: a text that is not empty"},
        BadInput{{"emit", "--gemm", "1x8x2147483648"}, kBadUsage, "from 0 to 2147483647"},
        BadInput{{"emit", "--gemm", "128x7168x2048", "--config", "tile=1"}, kBadUsage, "tile"},
        BadInput{{"emit", "--problem", "gemm m=1"}, kBadUsage, "n"},
        BadInput{{"emit", "--quantize", "?x7168", "-o", "/nonexistent/x.cu"},
                 kFailed,
                 "/nonexistent/x.cu"}),
    test_name);

INSTANTIATE_TEST_SUITE_P(
    Compile, BadUsage,
    ::testing::Values(
        BadInput{{"compile"},
                 kBadUsage,
                 "none of --gemm, --quantize, --problem, --problem-file and --model"},
        BadInput{{"compile", "--gemm", "?x8x16", "--part", "3/2"}, kBadUsage, "'3/2'"},
        BadInput{{"compile", "--gemm", "?x8x16", "--part", "1"}, kBadUsage, "'1'"},
        BadInput{{"compile", "--gemm", "?x8x16", "--problem-file", "p"}, kBadUsage, "2 of"},
        BadInput{{"compile", "--problem-file", "/nonexistent"}, kBadUsage, "'/nonexistent'"},
        BadInput{{"compile", "--gemm", "?x8x16", "--tokens", "4294967296"},
                 kBadUsage,
                 "4294967296; allowed: 0 to 2147483647"},
        BadInput{{"compile", "--model", "gpt-9"}, kBadUsage, "'gpt-9'"},
        BadInput{{"compile", "--model", "./nothing.json"},
                 kBadUsage,
                 "--model is './nothing.json': there is no such file or folder\n"},
        BadInput{{"compile", "--model", "/no/folder/config.json"},
                 kBadUsage,
                 "--model is '/no/folder/config.json': there is no such file or folder\n"},
        BadInput{{"compile", "--model", "."},
                 kBadUsage,
                 "--model is '.': ./config.json cannot be read: No such file or directory"},
        BadInput{{"compile", "--problem-file", "/"}, kBadUsage, "'/': / is a folder; allowed: a"},
        BadInput{{"compile", "--model", "deepseek-v3", "--gemm", "1x8x16"}, kBadUsage, "--model"},
        BadInput{{"compile", "--model", "deepseek-v3", "--tokens", "64,0"}, kBadUsage, "has 0"},
        BadInput{{"compile", "--model", "deepseek-v3", "--recipe", "best"}, kBadUsage, "'best'"},
        BadInput{{"compile", "--model", "deepseek-v3", "--for", "jax"},
                 kBadUsage,
                 "--for is 'jax'; allowed: torch"},
        BadInput{{"compile", "--model", "qwen3-8b", "--serving", "vllm", "--mode", "training"},
                 kBadUsage,
                 "--mode training is given with --for vllm; allowed: decode, prefill or serving"},
        BadInput{{"compile", "--model", "qwen3-8b", "--for", "sglang", "--passes", "fprop"},
                 kBadUsage,
                 "--passes is given with --for sglang; allowed: decode, prefill or serving"},
        BadInput{{"compile", "--gemm", "64x256x512", "--for", "torch"},
                 kBadUsage,
                 "--for is torch without --model"},
        BadInput{{"compile", "--gemm", "1x8x16", "--tokens", "4"},
                 kBadUsage,
                 "states m=1; allowed only if m"},
        BadInput{{"compile", "--gemm", "?x8x16", "--passes", "fprop,bprop"},
                 kBadUsage,
                 "--passes has 'bprop'; allowed: fprop, dgrad, wgrad"},
        BadInput{{"compile", "--gemm", "?x8x16", "--ep", "8"},
                 kBadUsage,
                 "--ep is 8 without --model; allowed with --model only"},
        BadInput{{"compile", "--model", "mixtral-8x7b", "--ep", "0"},
                 kBadUsage,
                 "--ep is 0; allowed: 1 to 100000"},
        BadInput{{"compile", "--model", "mixtral-8x7b", "--tp", "3"},
                 kBadUsage,
                 "--tp is 3; allowed are divisors of num_attention_heads, 32"},
        BadInput{{"compile", "--gemm", "?x8x16", "--tp", "2"},
                 kBadUsage,
                 "--tp is 2 without --model; allowed with --model only"},
        BadInput{{"compile", "--model", "mixtral-8x7b", "--mode", "decod"},
                 kBadUsage,
                 "--mode is 'decod'; did you mean 'decode'?; allowed: decode, prefill"},
        BadInput{{"compile", "--model", "mixtral-8x7b", "--layout", "fused"},
                 kBadUsage,
                 "--layout is 'fused'; allowed: serving, separate, both"},
        BadInput{{"compile", "--gemm", "?x8x16", "--tokens", "8:4"},
                 kBadUsage,
                 "--tokens has '8:4'; allowed: ranges upwards, from 1 to 2147483647"},
        BadInput{{"compile", "--gemm", "?x8x16", "--recipe", "auto"},
                 kBadUsage,
                 "--recipe is 'auto'; allowed: "},
        BadInput{{"compile", "--model", "mixtral-8x7b", "--ep", "2", "--tokens", "1073741824"},
                 kBadUsage,
                 "--tokens is 1073741824; allowed are 1 to 1073741823"},
        BadInput{{"compile", "--model", "mixtral-8x7b", "--ep", "3"},
                 kBadUsage,
                 "--ep is 3; allowed are divisors of the model's 8 experts"},
        BadInput{{"compile", "--quantize", "?x8", "--passes", "wgrad"},
                 kBadUsage,
                 "--passes is given with --quantize; allowed with --gemm, --model and "
                 "--problem-file only"},
        BadInput{{"compile", "--gemm", "64x8x16", "--passes", "wgrad", "--tokens", "4"},
                 kBadUsage,
                 "states m=64"},
        BadInput{{"compile", "--gemm", "1x8x16", "--device", "cuda"}, kFailed, "libcuda"},
        BadInput{{"compile", "--gemm", "1x8x16", "--device", "host"}, kBadUsage, "host"},
        BadInput{{"compile", "--gemm", "1x8x16", "--jobs", "-1"},
                 kBadUsage,
                 "--jobs is -1; allowed: 0 to 1024"},
        BadInput{{"compile", "--gemm", "?x8x16", "--tokens", "1,,2"},
                 kBadUsage,
                 "--tokens has '' in '1,,2'"},
        BadInput{{"compile", "--model", "deepsek-v3"}, kBadUsage, "did you mean 'deepseek-v3'?"},
        BadInput{{"compile", "--gemm", "1x8x16", "--recipe", "rowise"},
                 kBadUsage,
                 "--recipe is 'rowise'; did you mean 'rowwise'?"},
        BadInput{{"compile", "--gemm", "1x8x16", "--tokans", "4"},
                 kBadUsage,
                 "has no option '--tokans'; did you mean '--tokens'?"},
        BadInput{{"compile", "--gemm", "1x8x16", "--tokens", "many"},
                 kBadUsage,
                 "--tokens has 'many'; allowed: whole numbers"}),
    test_name);

// An option that has no effect in a combination is refused, with the combinations in which it has.
constexpr const char* kText =
    "gemm m=64 n=8 k=16 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128";
constexpr const char* kConfig = "tile=64x64x128 stages=13";
INSTANTIATE_TEST_SUITE_P(
    IdleOptions, BadUsage,
    ::testing::Values(
        BadInput{{"emit", "--gemm", "64x8x16", "--tokens", "4"}, kBadUsage, "states m=64"},
        BadInput{{"emit", "--problem", kText, "--recipe", "rowwise"},
                 kBadUsage,
                 "--recipe is rowwise, and the problem's text states its types"},
        BadInput{{"emit", "--gemm", "?x8x16", "--tokens", "4", "--config", kConfig},
                 kBadUsage,
                 "--tokens and --config are given; allowed: one of them"},
        BadInput{{"emit", "--gemm", "?x8x16", "--dump", "d", "--explain"},
                 kBadUsage,
                 "--dump and --explain are given"},
        BadInput{{"emit", "--gemm", "?x8x16", "--dump", "d", "-o", "f"},
                 kBadUsage,
                 "--dump and --output are given"},
        BadInput{{"compile", "--gemm", "64x8x16", "--dry-run", "--part", "1/2"},
                 kBadUsage,
                 "--part and --dry-run are given"},
        BadInput{{"cache", "why", "64x8x16", "--tokens", "4"}, kBadUsage, "states m=64"},
        BadInput{{"cache", "why", kText, "--recipe", "rowwise"}, kBadUsage, "--recipe is rowwise"},
        BadInput{{"cache", "list", "--json", "--columns", "size"},
                 kBadUsage,
                 "--columns and --json are given"},
        BadInput{{"explain", kText, "--recipe", "rowwise"}, kBadUsage, "--recipe is rowwise"},
        BadInput{{"explain", "gemm", "--recipe", "rowwise"}, kBadUsage, "--recipe is rowwise"},
        BadInput{{"explain", "--device", "h200"}, kBadUsage, "--device is h200; allowed with a"},
        BadInput{{"explain", "gemm", "--device", "h200"}, kBadUsage, "--device is h200; allowed"},
        BadInput{{"explain", "--model", "llama-3-8b", "--device", "sm_75"},
                 kBadUsage,
                 "--device is 'sm_75', of compute capability 7.5: FP8 needs 8.9 or newer"},
        BadInput{{"explain", "--markdown", "64x8x16"}, kBadUsage, "--markdown is given with"},
        BadInput{{"help", "--list-pages", "cache"}, kBadUsage, "--list-pages is given with"},
        BadInput{
            {"tune", "--refresh", "--recipe", "rowwise"}, kBadUsage, "beside a problem, --rec"},
        BadInput{{"tune", "--gemm", "?x8x16", "--report", "/nonexistent/page.html"},
                 kFailed,
                 "/nonexistent/page.html cannot be written: open its folder: "},
        BadInput{{"tune", "--gemm", "?x8x16", "--records", "/nonexistent/a.jsonl"},
                 kFailed,
                 "/nonexistent/a.jsonl cannot be written: open its folder: "},
        BadInput{{"bench", "--gemm", "8x8x16", "--report", "/tmp"}, kBadUsage, "/tmp is a folder"},
        BadInput{{"tune", "--gemm", "?x8x16", "--explain", "--budget", "5"},
                 kBadUsage,
                 "--budget is given with --explain, which searches nothing"},
        BadInput{
            {"tune", "--gemm", "?x8x16", "--explain", "--out", "."}, kBadUsage, "--out is given"},
        BadInput{{"tune", "--quantize", "?x128", "--baseline", "cublaslt"},
                 kBadUsage,
                 "--baseline is cublaslt, and no problem is a GEMM"},
        BadInput{{"bench", "--suite", "quantize", "--tokens", "8"},
                 kBadUsage,
                 "--tokens is given with --suite"},
        BadInput{{"bench", "--suite", "quantize", "--baseline", "cublaslt"},
                 kBadUsage,
                 "--baseline is given, and no problem is a GEMM"},
        BadInput{
            {"bench", "--quantize", "8x128", "--b-ready"}, kBadUsage, "--b-ready is given, and"},
        BadInput{{"bench", "--gemm", "?x8x16", "--host-overhead", "--search"},
                 kBadUsage,
                 "--search is given with --host-overhead"},
        BadInput{{"bench", "--rounds", "5", "linear", "--gemm", "64x64x64"},
                 kBadUsage,
                 "--rounds is given before `linear`, where it has no effect; allowed: "
                 "`octile bench linear --rounds`"}),
    test_name);

INSTANTIATE_TEST_SUITE_P(
    Bench, BadUsage,
    ::testing::Values(
        BadInput{{"bench"}, kBadUsage, "--model and --suite are given; exactly one is allowed"},
        BadInput{{"bench", "--suite", "gemm"}, kBadUsage, "--suite is 'gemm'"},
        BadInput{{"bench", "--suite", "quantize", "--gemm", "1x8x16"}, kBadUsage, "one of the two"},
        BadInput{{"bench", "--gemm", "1x8x16", "--select", "1x32"}, kBadUsage, "without --suite"},
        BadInput{{"bench", "--suite", "quantize", "--passes", "dgrad"},
                 kBadUsage,
                 "--passes is given with --suite"},
        BadInput{{"bench", "--gemm", "64x8x16", "--passes", ""}, kBadUsage, "--passes is ''"},
        BadInput{{"bench", "--gemm", "64x8x16"}, kFailed, "octile: `octile bench` needs a GPU: "},
        BadInput{{"bench", "--gemm", "64x8x16", "--device", "h200"}, kBadUsage, "a live GPU"},
        BadInput{{"bench", "--gemm", "64x8x16", "--baseline", "numpy"}, kBadUsage, "'numpy'"},
        BadInput{{"bench", "--gemm", "64x8x16", "--search", "0"}, kBadUsage, "--search is 0"},
        BadInput{{"bench", "--gemm", "64x8x16", "--rounds", "1"}, kBadUsage, "--rounds is 1"},
        BadInput{{"bench", "quantize", "--cols", "0"}, kBadUsage, "--cols is 0"},
        BadInput{{"bench", "quantize", "--tokens", "0"}, kBadUsage, "--tokens is 0"},
        BadInput{{"bench", "quantize", "--sweep", "--tokens", "8"}, kBadUsage, "one of the two"},
        BadInput{{"bench", "quantize", "--select", "2x64"}, kBadUsage, "--select is '2x64'"},
        BadInput{{"bench", "linear"}, kBadUsage, "--gemm is required"},
        BadInput{{"bench", "linear", "--gemm", "128x64"}, kBadUsage, "'128x64'"},
        BadInput{{"bench", "linear", "--gemm", "64x64x24"}, kBadUsage, "K is 24"},
        BadInput{{"bench", "linear", "--gemm", "64x64x64", "--rounds", "2"}, kBadUsage, "is 2"},
        BadInput{{"bench", "linear", "--gemm", "64x64x64"},
                 kFailed,
                 "`octile bench linear` needs a GPU: "}),
    test_name);

INSTANTIATE_TEST_SUITE_P(
    BenchExperts, BadUsage,
    ::testing::Values(
        BadInput{{"bench", "experts"}, kBadUsage, "--model is required"},
        BadInput{{"bench", "experts", "--model", "gpt-9"}, kBadUsage, "--model is 'gpt-9'"},
        BadInput{
            {"bench", "experts", "--model", "llama-3-8b"},
            kBadUsage,
            "--model is 'llama-3-8b', which has no experts; allowed: a model that has, or one of "},
        BadInput{{"bench", "experts", "--model", "deepseek-v3", "--ep", "7"},
                 kBadUsage,
                 "--ep is 7; allowed are divisors of the model's 256 experts"},
        BadInput{
            {"bench", "experts", "--model", "deepseek-v3", "--ep", "0"}, kBadUsage, "--ep is 0;"},
        BadInput{{"bench", "experts", "--model", "deepseek-v3", "--tokens", "0"},
                 kBadUsage,
                 "--tokens is 0; allowed are 1 to 268435455"},
        BadInput{{"bench", "experts", "--model", "deepseek-v3", "--tokens", "268435456"},
                 kBadUsage,
                 "--tokens is 268435456;"},
        BadInput{{"bench", "experts", "--model", "deepseek-v3", "--routing", "best"},
                 kBadUsage,
                 "--routing is 'best'; allowed: uniform, skewed, both"},
        BadInput{{"bench", "experts", "--model", "deepseek-v3", "--recipe", "best"},
                 kBadUsage,
                 "'best'"},
        BadInput{{"bench", "experts", "--model", "deepseek-v3", "--recipe", "rowwise"},
                 kFailed,
                 "no quantiser writes a scale of a column for each group of tokens"},
        BadInput{{"bench", "experts", "--model", "deepseek-v3", "--recipe", "mxfp8"},
                 kFailed,
                 "group=contiguous groups=32' is not supported: not built yet: groups of operands "
                 "with MX scales"},
        BadInput{{"bench", "experts", "--model", "deepseek-v3", "--rounds", "2"},
                 kBadUsage,
                 "--rounds is 2"},
        BadInput{{"bench", "experts", "--model", "deepseek-v3", "--device", "h200"},
                 kBadUsage,
                 "a live GPU"},
        BadInput{{"bench", "experts", "--model", "mixtral-8x7b", "--recipe", "blockwise_hybrid"},
                 kFailed,
                 "libcuda"}),
    test_name);

INSTANTIATE_TEST_SUITE_P(
    Tune, BadUsage,
    ::testing::Values(
        BadInput{{"tune"}, kBadUsage, "exactly one is allowed"},
        BadInput{{"tune", "--gemm", "?x8x16", "--model", "deepseek-v3"}, kBadUsage, "2 of"},
        BadInput{{"tune", "--quantize", "?x128", "--gemm", "?x8x16"}, kBadUsage, "2 of --gemm"},
        BadInput{{"tune", "--problem", "quantize rows=? cols=128 x=bf16 q=e4m3:9x9 out=row"},
                 kBadUsage,
                 "9x9"},
        BadInput{{"tune", "--quantize", "?x128", "--tokens", "0"}, kBadUsage, "is 0"},
        BadInput{{"tune", "--gemm", "?x8x16", "--budget", "0"}, kBadUsage, "--budget is 0"},
        BadInput{{"tune", "--gemm", "?x512x1024", "--max-error", "2"},
                 kBadUsage,
                 "--max-error is 2; allowed: a share of the sum of magnitudes, more than 0 and at "
                 "most 1"},
        BadInput{{"tune", "--gemm", "?x512x1024", "--max-error", "little"}, kBadUsage, "little"},
        BadInput{{"tune", "--quantize", "?x1024", "--max-error", "0.01"},
                 kBadUsage,
                 "--max-error is 0.01, and no problem has another promotion interval to search"},
        BadInput{{"tune", "--refresh", "--max-error", "0.01"},
                 kBadUsage,
                 "--max-error is given with --refresh; allowed: one of the two"},
        BadInput{{"tune", "--gemm", "?x8x16", "--explain", "--max-error", "0.01"},
                 kBadUsage,
                 "--max-error is given with --explain, which searches nothing"},
        BadInput{{"tune", "--gemm", "?x8x16", "--budget", "soon"}, kBadUsage, "soon"},
        BadInput{{"tune", "--gemm", "?x8x16", "--baseline", "numpy"}, kBadUsage, "'numpy'"},
        BadInput{{"tune", "--gemm", "?x8x16", "--tokens", "64,0"}, kBadUsage, "is 0"},
        BadInput{{"tune", "--gemm", "64x8x16", "--tokens", "64"}, kBadUsage, "states m=64"},
        BadInput{{"tune", "--problem",
                  "gemm m=? n=128 k=128 a=e4m3:1x128 b=e4m3:128x128 d=e4m3:1x128 acc=0 promote=128",
                  "--device", "l4", "--explain"},
                 kFailed,
                 "NVIDIA L4 (compute capability 8.9)"},
        BadInput{{"tune", "--model", "gpt-9"}, kBadUsage, "'gpt-9'"},
        BadInput{{"tune", "--model", "llama-3-8b", "--passes", "wgrad,all"},
                 kBadUsage,
                 "--passes has 'all'; allowed: fprop, dgrad, wgrad"},
        BadInput{{"tune", "--problem", "quantize rows=? cols=128 x=bf16 q=e4m3:1x128 out=row",
                  "--passes", "dgrad"},
                 kBadUsage,
                 "--passes is given with --problem;"},
        BadInput{{"tune", "--problem",
                  "gemm m=? n=16 k=16 a=e4m3:1x32 b=e4m3:1x32 d=e4m3:1x128 acc=0 promote=32"},
                 kFailed,
                 "not supported: not built yet: FP8 D of MX operands"},
        BadInput{{"tune", "--problem-file", "/nonexistent.txt"}, kBadUsage, "'/nonexistent.txt'"},
        BadInput{{"tune", "--gemm", "?x8x16", "--device", "h200"}, kBadUsage, "a live GPU"},
        BadInput{
            {"tune", "--gemm", "?x8x16", "--device", "b201", "--explain"}, kBadUsage, "'b201'"},
        BadInput{{"tune", "--gemm", "?x8x16", "--device", "host", "--explain"}, kBadUsage, "host"},
        BadInput{{"tune", "--gemm", "?x8x16"}, kFailed, "octile: `octile tune` needs a GPU: "},
        BadInput{{"tune", "--refresh", "--gemm", "?x8x16"}, kBadUsage, "--refresh is given beside"},
        BadInput{{"tune", "--gemm", "?x8x16", "--list"},
                 kBadUsage,
                 "--list is given without --explain"}),
    test_name);

INSTANTIATE_TEST_SUITE_P(Cache, BadUsage,
                         ::testing::Values(BadInput{{"cache"}, kBadUsage, "subcommand is required"},
                                           BadInput{
                                               {"cache", "show"}, kBadUsage, "digest is required"},
                                           BadInput{{"cache", "show", "ff"}, kBadUsage, "'ff'"}),
                         test_name);

INSTANTIATE_TEST_SUITE_P(
    CacheOptions, BadUsage,
    ::testing::Values(
        BadInput{{"cache", "list", "--sort", "colour"}, kBadUsage, "--sort has 'colour'"},
        BadInput{{"cache", "list", "--columns", "size,x"}, kBadUsage, "--columns has 'x'"},
        BadInput{{"cache", "list", "--older-than", "30"}, kBadUsage, "--older-than is '30'"},
        BadInput{{"cache", "list", "--newer-than", "99999999d"}, kBadUsage, "up to 36525d"},
        BadInput{{"cache", "list", "--larger-than", "-1"}, kBadUsage, "--larger-than is '-1'"},
        BadInput{{"cache", "list", "--smaller-than", "9999999T"}, kBadUsage, "--smaller-than"},
        BadInput{{"cache", "list", "--device", "tpu"}, kBadUsage, "--device is 'tpu'"},
        BadInput{{"cache", "list", "--recipe", "none"}, kBadUsage, "--recipe is 'none'"},
        BadInput{{"cache", "verify", "--older-than", "x"}, kBadUsage, "--older-than is 'x'"},
        BadInput{{"cache", "why"}, kBadUsage, "none of --gemm"},
        BadInput{{"cache", "why", "--gemm", "0x0x0"},
                 kBadUsage,
                 "is empty, and no kernel is launched for it"},
        BadInput{{"cache", "list", "--columns", ""}, kBadUsage, "--columns is ''"},
        BadInput{{"cache", "list", "--sort", "sise"}, kBadUsage, "did you mean 'size'?"},
        BadInput{{"cache", "bogus"},
                 kBadUsage,
                 "no verb 'bogus' of `octile cache`; `octile help cache` lists them"},
        BadInput{{"cache", "lits"}, kBadUsage, "did you mean 'list'?"},
        BadInput{
            {"cache", "list", "--bogus"}, kBadUsage, "`octile cache list` has no option '--bogus'"},
        BadInput{{"cache", "why", "gemm", "--gemm", "1x8x16"}, kBadUsage, "given twice"},
        BadInput{{"cache", "why", "--gemm", "?x8x16", "--tokens", "0"}, kBadUsage, "--tokens is 0"},
        BadInput{{"cache", "why", "--gemm", "?x8x16", "--device", "host"}, kBadUsage, "host"},
        BadInput{{"cache", "heat"}, kBadUsage, "no verb 'heat' of `octile cache`"},
        BadInput{{"cache", "warm", "--gemm", "?x8x16"}, kBadUsage, "`octile compile`"},
        BadInput{{"cache", "export", "/nonexistent/a.tar"}, kFailed, "/nonexistent/a.tar"},
        BadInput{{"cache", "import", "/nonexistent.tar"}, kBadUsage, "/nonexistent.tar"}),
    test_name);

INSTANTIATE_TEST_SUITE_P(
    Doctor, BadUsage,
    ::testing::Values(
        BadInput{{"doctor", "why"}, kBadUsage, "did you mean `octile cache why`?"},
        BadInput{
            {"doctor", "--measure", "--matrix"}, kBadUsage, "--measure and --matrix are given"},
        BadInput{{"doctor", "--device", "cuda:1", "--matrix"},
                 kBadUsage,
                 "--device is cuda:1 with --matrix; allowed: with a test, --measure or --report"},
        BadInput{
            {"doctor", "--device", "l40s"}, kBadUsage, "--device is l40s; allowed: a live GPU"},
        BadInput{
            {"doctor", "--report", "--measure"}, kBadUsage, "--report and --measure are given"},
        BadInput{{"doctor", "--measure", "--device", "h200"},
                 kBadUsage,
                 "--device is h200; allowed: a live GPU"},
        BadInput{{"doctor", "--report", "--device", "l40s"},
                 kBadUsage,
                 "--device is l40s; allowed: a live GPU"},
        BadInput{
            {"doctor", "--measure"}, kFailed, "octile: `octile doctor --measure` needs a GPU: "}),
    test_name);

TEST(Command, SaysItsVersionAndHelps) {
  const Shell shell;
  const Outcome version = shell.run({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.out, StartsWith("octile "));
  for (const char* topic : {"demo", "emit", "compile", "tune", "bench", "cache", "doctor"}) {
    const Outcome help = shell.run({"help", topic});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_THAT(help.out, HasSubstr("--help")) << topic;
    EXPECT_EQ(help.out, shell.run({topic, "--help"}).out);
  }
  EXPECT_THAT(shell.run({"help"}).out, HasSubstr("doctor"));
}

TEST(Command, BenchExpertsHelpsWithWhatTokensAre) {
  const Outcome help = Shell().run({"bench", "experts", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* option : {"--model", "--ep", "--tokens", "--recipe", "--routing", "--rounds"}) {
    EXPECT_THAT(help.out, HasSubstr(option));
  }
  EXPECT_THAT(help.out, HasSubstr("tokens of one rank"));
}

TEST(Command, OfflineNeverCompiles) {
  Shell shell;
  shell.set("OCTILE_OFFLINE", "1");
  const Outcome outcome = shell.run({"compile", "--gemm", "64x7168x2048"});
  EXPECT_EQ(outcome.exit_code, kFailed);
  EXPECT_THAT(outcome.err, HasSubstr("offline"));
}

}  // namespace
}  // namespace octile::tests
