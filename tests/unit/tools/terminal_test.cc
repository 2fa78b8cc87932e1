// Text that fits a terminal: cut, wrapped, and tables that choose their columns.
#include "tools/common/terminal.h"

#include <gtest/gtest.h>

#include <chrono>
#include <sstream>
#include <string>

#include "generator/families.h"
#include "tools/cache/served.h"
#include "tools/common/progress.h"
#include "tools/common/text_table.h"
#include "tools/doctor/cache_folder.h"
#include "tools/explain/fields.h"

namespace octile::tools {
namespace {

TEST(Terminal, CutsTheMiddleOfANameAtCodePoints) {
  EXPECT_EQ(cut_middle("octile_gemm", 11), "octile_gemm");
  EXPECT_EQ(cut_middle("octile_gemm_e4m3", 11), "octi...e4m3");
  EXPECT_EQ(cut_middle("abcdefgh", 1), "a...h") << "at least a letter of each end";
  const std::string accents = "\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9";
  EXPECT_EQ(columns_of(accents), 8U);
  EXPECT_EQ(cut_middle(accents, 5), "\u00e9...\u00e9");
}

TEST(Terminal, WideLettersTakeTwoColumnsAndMarksNone) {
  EXPECT_EQ(columns_of("\u91cd\u307f"), 4U);
  EXPECT_EQ(columns_of("e\u0301"), 1U);
  EXPECT_EQ(cut_middle("\u91cd\u307f\u91cd\u307f", 8), "\u91cd\u307f\u91cd\u307f");
  EXPECT_EQ(cut_middle("\u91cd\u307f\u91cd\u307f", 7), "\u91cd...\u307f");
}

TEST(Terminal, CutsAModuleSoThatTheNumberOfItsLayerStays) {
  const std::string name = "language_model.model.layers.17.mlp.experts.down_proj";
  EXPECT_EQ(cut_module(name, 60), name);
  EXPECT_EQ(cut_module(name, 40), "...model.layers.17.mlp.experts.down_proj");
  EXPECT_EQ(cut_module(name, 20), "...17.mlp.ex..._proj");
  EXPECT_EQ(cut_module(name, 8), "lan...oj") << "too few for the number";
  EXPECT_EQ(cut_module("h.0.attn.c_attn_of_a_long_name", 20), "...0.attn.c...g_name");
}

TEST(Terminal, WrapsAtSpaces) {
  EXPECT_EQ(wrapped("one two three", 9), "one two\nthree");
  EXPECT_EQ(wrapped("one two three", 9, 2), "one two\n  three");
  EXPECT_EQ(wrapped("two three", 9, 4, 4), "two\n    three");
  EXPECT_EQ(wrapped("  indented stays", 80), "  indented stays");
  EXPECT_EQ(wrapped("a\nb", 80, 2), "a\n  b");
  EXPECT_EQ(wrapped("unbreakable", 4), "unbreakable");
}

TextTable sample() {
  TextTable table({"<name", "us", "bytes", "<problem"});
  table.cut("problem", 10).leave_out({"bytes", "us"});
  table.add_row({"a", "10.5", "1000", "gemm m=? n=7168 k=2048"});
  return table;
}

// Once nothing may be left out first, names are cut beyond their least, then further columns go.
TEST(TextTable, FitsANarrowTerminal) {
  TextTable table({"<tensor", "<recipe", "SNR", "rest"});
  table.cut_name("tensor", 30).leave_out({"SNR"}).leave_out_last({"recipe"});
  table.add_row({"model.layers.3.mlp.experts.gate_up_proj", "blockwise", "31.57 dB", "31.57 dB"});
  table.add_row({"\u91cd\u307f\u91cd\u307f\u91cd\u307f.layers.4.\u91cd\u307f\u91cd\u307f", "mxfp8",
                 "31.57 dB", "31.57 dB"});
  EXPECT_NE(table.render(45).find("recipe"), std::string::npos);
  EXPECT_NE(table.render(45).find("3."), std::string::npos);
  EXPECT_EQ(table.render(28).find("blockwise"), std::string::npos);
  EXPECT_NE(table.render(28).find("...3."), std::string::npos);
  for (std::size_t width = 20; width < 90; ++width) {
    std::istringstream lines(table.render(width));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(columns_of(line), width) << line;
  }
}

TEST(TextTable, FitsByCuttingAndThenByLeavingOut) {
  EXPECT_EQ(sample().render(),
            "  name    us  bytes  problem\n"
            "  a     10.5   1000  gemm m=? n=7168 k=2048\n");
  EXPECT_EQ(sample().render(40),
            "  name    us  bytes  problem\n"
            "  a     10.5   1000  gemm m=?...8 k=2048\n");
  EXPECT_EQ(sample().render(28),
            "  name    us  problem\n"
            "  a     10.5  gemm m...=2048\n"
            "  left out: bytes; --wide\n"
            "  shows all\n");
  for (std::size_t width = 20; width < 60; ++width) {
    std::istringstream lines(sample().render(width));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), width) << line;
  }
}

TEST(TextTable, ALineThatCannotFitIsNotBroken) {
  TextTable table({"<name"});
  table.add_row({"a name that may not be cut"});
  EXPECT_EQ(table.render(10), "  name\n  a name that may not be cut\n");
}

TEST(Progress, SaysHowLongTheRestTakes) {
  using std::chrono::seconds;
  EXPECT_EQ(time_left_text(seconds(0), 0, 10), "");
  EXPECT_EQ(time_left_text(seconds(10), 5, 10), ", about 10 s left");
  EXPECT_EQ(time_left_text(seconds(60), 1, 4), ", about 3 min left");
  EXPECT_EQ(time_left_text(seconds(60), 4, 4), "");
}

TEST(Served, FieldsReplaceThoseOfTheText) {
  EXPECT_EQ(with_fields("gemm m=? n=7168 k=2048", {"n=512"}), "gemm m=? n=512 k=2048");
  EXPECT_EQ(with_fields("gemm m=? n=7168", {"m=64", "bias=bf16"}), "gemm m=64 n=7168 bias=bf16");
}

TEST(CacheFolder, KnowsNetworkDisks) {
  EXPECT_EQ(network_filesystem(0x6969), "nfs");
  EXPECT_EQ(network_filesystem(0xffffffffff534d42UL), "cifs") << "a negative 32-bit number";
  EXPECT_EQ(network_filesystem(0xef53), "") << "ext4";
  EXPECT_EQ(network_filesystem(0x01021994), "") << "tmpfs";
}

// Returns the fields that the parser takes, as its error lists them.
std::string fields_of_parser(std::string_view operation) {
  const auto refused = parse_problem(std::string(operation) + " nofield=1");
  EXPECT_FALSE(refused);
  const std::string& message = refused.error().message;
  const std::string before = "the fields are ";
  return message.substr(message.find(before) + before.size());
}

TEST(Explain, HasTheFieldsOfEveryOperation) {
  for (const OperationMeaning& operation : operation_meanings()) {
    std::string names;
    for (const FieldMeaning& field : operation.fields) {
      names.append(names.empty() ? "" : ", ").append(field.name);
      EXPECT_FALSE(field.meaning.empty()) << field.name;
    }
    EXPECT_EQ(names, fields_of_parser(operation.name)) << operation.name;
    const auto example = parse_problem(operation.example);
    ASSERT_TRUE(example) << example.error().message;
    EXPECT_EQ(to_text(*example), operation.example);
    EXPECT_TRUE(check_supported(*example));
  }
}

}  // namespace
}  // namespace octile::tools
