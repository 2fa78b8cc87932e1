// Calls of the C API that are refused: the rows of tests/cells/refusals.txt. Each changes one valid
// call, is refused with its status and sentence, and leaves every byte of memory as it was.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/api_calls.h"

namespace octile::test {
namespace {

std::vector<std::string> names_of_calls() {
  std::vector<std::string> names;
  for (const auto& [name, maker] : Calls::makers()) names.push_back(name);
  return names;
}

RefusalTable shipped_table() {
  return tests::read_cells("refusals.txt").and_then(parse_refusals).value();
}

class Refusals : public ::testing::TestWithParam<std::string> {};

// A base's call without a change is accepted, or a row would be refused for another reason than its
// change. Rows that change nothing are of bases with which the call cannot be made.
TEST_P(Refusals, NameWhatIsWrongAndWriteNothing) {
  const RefusalTable table = shipped_table();
  Calls calls(table);
  Texts texts;
  std::set<std::string> accepted;
  int rows = 0;
  for (const Refusal& row : table.rows) {
    if (row.call.text != GetParam()) continue;
    ++rows;
    SCOPED_TRACE(row.text);
    if (!row.changes.empty() && accepted.insert(row.base).second) {
      const Result<ApiCall> call = calls.make(row.call.text, row.base);
      ASSERT_TRUE(call.has_value()) << call.error().message;
      const octile_status status = call->run();
      EXPECT_EQ(status, OCTILE_OK) << "without a change: " << octile_last_error();
      if (status == OCTILE_OK) call->destroy();
    }
    const Result<ApiCall> call = calls.make(row.call.text, row.base);
    ASSERT_TRUE(call.has_value()) << call.error().message;
    for (const Change& change : row.changes) {
      const Status made = apply(change, call->fields, texts);
      ASSERT_TRUE(made.has_value()) << made.error().message;
    }
    const std::vector<unsigned char> before = calls.contents();
    const octile_status status = call->run();
    EXPECT_STREQ(octile_status_name(status), octile_status_name(row.status));
    const std::string sentence = octile_last_error();
    for (const std::string& part : row.parts) {
      if (part.starts_with("= ")) {
        EXPECT_EQ(sentence, part.substr(2));
      } else {
        EXPECT_THAT(sentence, ::testing::HasSubstr(part));
      }
    }
    EXPECT_TRUE(calls.contents() == before) << "memory was written";
  }
  EXPECT_GT(rows, 0) << "no row has this call";
}
INSTANTIATE_TEST_SUITE_P(Calls, Refusals, ::testing::ValuesIn(names_of_calls()),
                         [](const auto& call) { return call.param; });

TEST(RefusalTable, EveryRowHasACall) {
  for (const Refusal& row : shipped_table().rows)
    EXPECT_TRUE(Calls::makers().contains(row.call.text)) << row.text;
}

// Returns why a table is refused, or why its last row cannot be made.
std::string objection_to(const std::string& text) {
  const Result<RefusalTable> table = parse_refusals(text);
  if (!table) return table.error().message;
  Calls calls(*table);
  const Refusal& row = table->rows.back();
  const Result<ApiCall> call = calls.make(row.call.text, row.base);
  if (!call) return call.error().message;
  Texts texts;
  for (const Change& change : row.changes)
    if (const Status made = apply(change, call->fields, texts); !made) return made.error().message;
  return "";
}

TEST(RefusalTable, ErrorsNameLineAndColumn) {
  const std::string base = "# a comment\ndense | plan_create | -\n";
  for (const auto& [row, says] : {
           std::pair("plan_wait | dense", "refusals.txt:3:13: a row of 2 cells"),
           std::pair("plan_wait | dens | plan=null | INTERNAL | x", "3:13: no row above makes"),
           std::pair("plan_wait | dense | plan | INTERNAL | x", "3:25: a change is a name, then"),
           std::pair("plan_wait | dense | plan= | INTERNAL | x", "3:26: a change has no value"),
           std::pair("plan_create | - | device=\"x | INTERNAL | x", "3:28: a text in quotes does"),
           std::pair("plan_wait | dense | plan=null | NONE | x", "3:33: the status is 'NONE'"),
           std::pair("plan_wait | dense | plan=null | INTERNAL |", "the sentence has no part"),
           std::pair("dense | plan_create | -", "3:1: the base dense is there twice"),
           std::pair("plan_wait | dense | plan=null, n=1 | INTERNAL | x",
                     "3:32: the call has no 'n'"),
           std::pair("plan_wait | dense | plan=1 | INTERNAL | x", "3:21: 'plan' cannot become 1"),
           std::pair("plan_prepare | dense | flags=-1 | INTERNAL | x", "'flags' cannot become -1"),
           std::pair("plan_prepare | dense | lo=plan | INTERNAL | x", "'lo' cannot become plan"),
       }) {
    EXPECT_THAT(objection_to(base + row), ::testing::HasSubstr(says));
  }
  EXPECT_EQ(objection_to(base + "plan_prepare | dense | lo=hi, hi+2, plan=null | INTERNAL | x"),
            "");
}

}  // namespace
}  // namespace octile::test
