#include "tools/models/model_file.h"

#include <gtest/gtest.h>

#include <string>

namespace octile::tools {
namespace {

constexpr std::string_view kGood = R"({"model": "M", "source": "S",
  "gemms": [{"name": "o", "n": 24, "k": 48, "split": "k"}], "tokens": [1, 64]})";

std::string with(std::string_view from, std::string_view to) {
  std::string text(kGood);
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string error_of(std::string_view json) {
  const auto file = parse_model_file(json, "f.json");
  if (file) return "accepted";
  EXPECT_EQ(file.error().code, ErrorCode::kInvalidArgument);
  return file.error().message;
}

TEST(ModelFile, ReadsEveryField) {
  const auto file = parse_model_file(kGood, "f.json");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->model, "M");
  EXPECT_EQ(file->source, "S");
  ASSERT_EQ(file->gemms.size(), 1U);
  EXPECT_EQ(file->gemms[0].name, "o");
  EXPECT_EQ(file->gemms[0].n, 24);
  EXPECT_EQ(file->gemms[0].k, 48);
  EXPECT_EQ(file->gemms[0].split, TensorSplit::kK);
  EXPECT_EQ(file->tokens, (std::vector<std::int64_t>{1, 64}));
  EXPECT_EQ(parse_model_file(with("\"k\"}", "\"n\"}"), "")->gemms[0].split, TensorSplit::kN);
  EXPECT_EQ(parse_model_file(with("\"k\"}", "\"none\"}"), "")->gemms[0].split, TensorSplit::kNone);
}

TEST(ModelFile, NamesWhatIsWrong) {
  const std::string count = "; allowed is an integer from 1 to 2147483647";
  EXPECT_EQ(error_of("[]"), "f.json: the file is []; allowed is an object");
  EXPECT_EQ(error_of(with("\"model\"", "\"modell\"")),
            "f.json: the file has an unknown field 'modell'; its fields are model, source, gemms, "
            "tokens, optional experts");
  EXPECT_EQ(error_of(with("\"source\": \"S\",", "")),
            "f.json: the file lacks the field 'source'; its fields are model, source, gemms, "
            "tokens, optional experts");
  EXPECT_EQ(error_of(with("\"M\"", "\"\"")),
            "f.json: model is \"\"; allowed is a string that is not empty");
  EXPECT_EQ(error_of(with("\"S\"", "7")),
            "f.json: source is 7; allowed is a string that is not empty");
  EXPECT_EQ(error_of(with("24", "\"24\"")), "f.json: gemms[0].n is \"24\"" + count);
  EXPECT_EQ(error_of(with("24", "-24")), "f.json: gemms[0].n is -24" + count);
  EXPECT_EQ(error_of(with("48", "0")), "f.json: gemms[0].k is 0" + count);
  EXPECT_EQ(error_of(with("48", "4.5")), "f.json: gemms[0].k is 4.5" + count);
  EXPECT_EQ(error_of(with("48", "9223372036854775808")),
            "f.json: gemms[0].k is 9223372036854775808" + count);
  EXPECT_EQ(error_of(with("\"k\"}", "\"m\"}")),
            "f.json: gemms[0].split is \"m\"; allowed is \"n\", \"k\" or \"none\"");
  EXPECT_EQ(error_of(with("\"n\": 24, ", "")),
            "f.json: gemms[0] lacks the field 'n'; its fields are name, n, k, split");
  EXPECT_EQ(error_of(with("\"name\"", "\"layer\"")),
            "f.json: gemms[0] has an unknown field 'layer'; its fields are name, n, k, split");
  EXPECT_EQ(error_of(with("[1, 64]", "[]")),
            "f.json: tokens is []; allowed is an array that is not empty");
  EXPECT_EQ(error_of(with("[1, 64]", "[64, 64]")),
            "f.json: tokens[1] is 64; allowed is more than the 64 before it");
  EXPECT_EQ(error_of(with("[1, 64]", "[1, null]")), "f.json: tokens[1] is null" + count);
  // A long value is cut.
  EXPECT_LT(error_of(with("\"M\"", "[\"" + std::string(1000, 'x') + "\"]")).size(), 200U);
}

// A sentence of a library that parses JSON would name its own classes.
TEST(ModelFile, SaysWhereAFileIsNoJson) {
  EXPECT_EQ(error_of(""), "f.json: it is empty; allowed: one JSON object");
  EXPECT_EQ(error_of(" \n"), "f.json: it is empty; allowed: one JSON object");
  EXPECT_EQ(
      error_of("{\"model\": \"M\",\n  \"source\": \"S\""),
      "f.json: line 2, column 15: the text ends here, within an object, an array or a string");
  EXPECT_EQ(error_of(with("64]", "64,]")),
            "f.json: line 2, column 78: a comma precedes ']'; allowed: none after the last value");
  EXPECT_EQ(error_of(with("\"M\"", "'M'")),
            "f.json: line 1, column 11: a string is in single quotes; allowed: double quotes");
  EXPECT_EQ(error_of(with("\"source\"", "// where from\n\"source\"")),
            "f.json: line 1, column 16: there is a comment; allowed: none in JSON");
  EXPECT_EQ(error_of(with("24", "twenty")),
            "f.json: line 2, column 32: 'twenty' is not what follows; allowed: a value");
  EXPECT_EQ(error_of(with("24", "nul")),
            "f.json: line 2, column 32: 'nul' is not what follows; allowed: a value");
  EXPECT_EQ(error_of(with("\"source\":", "\"source\"")),
            "f.json: line 1, column 25: '\"S\"' is not what follows; allowed: ':', ',' or an end");
  EXPECT_EQ(error_of(with("[{", "{\"a\": [{")).substr(0, 47),
            "f.json: line 2, column 84: the text ends here, ");
  EXPECT_EQ(error_of(with("\"S\"", "\"S\n\"")),
            "f.json: line 1, column 28: a string does not end in its line");
  EXPECT_EQ(error_of(with("\"S\"", "\"\\S\"")).substr(0, 50),
            "f.json: line 1, column 28: '\\S' is not an escape; ");
  EXPECT_EQ(error_of(with("24", "1e999")), "f.json: not JSON: a number is too large");
  EXPECT_EQ(error_of(std::string(kGood) + "x").substr(0, 42),
            "f.json: line 2, column 79: 'x' is not what");
  for (std::size_t cut = 0; cut < kGood.size(); ++cut) {
    const std::string error = error_of(kGood.substr(0, cut));
    EXPECT_EQ(error.find("json.exception"), std::string::npos) << error;
  }
}

constexpr std::string_view kExperts = R"([1, 64], "experts": {"count": 8, "per_token": 2,
  "gate_up": {"n": 64, "k": 32}, "down": {"n": 32, "k": 16}})";

// The good file with experts, in which `from` is replaced.
std::string with_experts(std::string_view from, std::string_view to) {
  std::string experts(kExperts);
  const std::size_t at = experts.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return with("[1, 64]", experts.replace(at, from.size(), to));
}

TEST(ModelFile, ReadsExperts) {
  EXPECT_FALSE(parse_model_file(kGood, "f.json")->experts);
  const auto file = parse_model_file(with("[1, 64]", kExperts), "f.json");
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_TRUE(file->experts);
  EXPECT_EQ(file->experts->count, 8);
  EXPECT_EQ(file->experts->per_token, 2);
  EXPECT_EQ(file->experts->gate_up.n, 64);
  EXPECT_EQ(file->experts->gate_up.k, 32);
  EXPECT_EQ(file->experts->down.n, 32);
  EXPECT_EQ(file->experts->down.k, 16);
}

TEST(ModelFile, NamesWhatIsWrongWithExperts) {
  const std::string count = "; allowed is an integer from 1 to 2147483647";
  EXPECT_EQ(error_of(with("[1, 64]", "[1], \"experts\": null")),
            "f.json: experts is null; allowed is an object");
  EXPECT_EQ(error_of(with_experts("\"count\": 8, ", "")),
            "f.json: experts lacks the field 'count'; its fields are count, per_token, gate_up, "
            "down");
  EXPECT_EQ(error_of(with_experts("per_token", "top_k")),
            "f.json: experts has an unknown field 'top_k'; its fields are count, per_token, "
            "gate_up, down");
  EXPECT_EQ(error_of(with_experts("8", "0")), "f.json: experts.count is 0" + count);
  EXPECT_EQ(error_of(with_experts("\"per_token\": 2", "\"per_token\": 2.5")),
            "f.json: experts.per_token is 2.5" + count);
  EXPECT_EQ(error_of(with_experts("\"per_token\": 2", "\"per_token\": 9")),
            "f.json: experts.per_token is 9; allowed is at most experts.count, 8");
  EXPECT_EQ(error_of(with_experts("\"n\": 64", "\"n\": -64")),
            "f.json: experts.gate_up.n is -64" + count);
  EXPECT_EQ(error_of(with_experts("16", "\"16\"")), "f.json: experts.down.k is \"16\"" + count);
  EXPECT_EQ(error_of(with_experts("\"n\": 32, ", "")),
            "f.json: experts.down lacks the field 'n'; its fields are n, k");
}

// Printing the refused value would recurse once for each bracket and overflow the stack.
TEST(ModelFile, RefusesDeepNestingWithoutFollowingIt) {
  EXPECT_EQ(error_of(with("\"M\"", std::string(100'000, '[') + std::string(100'000, ']'))),
            "f.json: nested more than 64 deep; allowed is less");
}

TEST(ModelFile, SaysWhichFileCannotBeRead) {
  const auto missing = read_model_file("/nowhere/model.json");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().message,
            "/nowhere/model.json cannot be read: No such file or directory");
  const auto folder = read_model_file("/");
  ASSERT_FALSE(folder);
  EXPECT_EQ(folder.error().message,
            "/ is a folder; allowed: a file, a pipe, or - for standard input");
}

}  // namespace
}  // namespace octile::tools
