#!/usr/bin/env python3
"""Tests of compile_together.py."""

import unittest

from compile_together import MOST, defined_in, groups_of

PLAIN = (
    "namespace octile {\nnamespace {\n\nTEST(A, B) { EXPECT_EQ(1, 1); }\n\n}  // namespace\n}  // namespace octile\n"
)


class Names(unittest.TestCase):
    def test_lines_at_the_margin_define(self):
        for line, name in {
            "constexpr std::size_t kMost = 3;": "kMost",
            'const std::vector<std::string> kOptions{"a(b)"};': "kOptions",
            "thread_local int g_calls = count(3);": "g_calls",
            "constexpr int kSizes[] = {1, 2};": "kSizes",
            "struct Case {": "Case",
            "class Fixture : public ::testing::Test {": "Fixture",
            "using Clock = std::chrono::steady_clock;": "Clock",
            'MATCHER_P(IsAbove, bound, "") { return arg > bound; }': "IsAbove",
            "std::pair<int, int> both(const char* text) {": "both",
            "const DeviceSpec& h200() {": "h200",
            "std::string error_of(": "error_of",
        }.items():
            self.assertEqual(defined_in(line), {name})

    def test_others_do_not(self):
        for line in (
            "  int inside = 1;",
            "TEST_F(Fixture, Passes) {",
            "namespace fs = std::filesystem;",
            "using testing::HasSubstr;",
            "using namespace testing;",
            "}  // namespace",
            "template <typename T>",
            "INSTANTIATE_TEST_SUITE_P(All, Fixture, values());",
            "// int kMost = 3;",
            "#include <map>",
        ):
            self.assertEqual(defined_in(line), set(), line)


class Groups(unittest.TestCase):
    def test_files_meet_unless_one_mentions_what_another_defines(self):
        helper = "int helper() {\n  return 1;\n}\n"
        texts = {
            "a": helper,
            "b": helper,
            "c": "int x() {\n  return helper();\n}\n",
            "d": PLAIN,
            "e": '// helper\nTEST(A, C) { EXPECT_EQ("helper", ""); }\n',
            "f": "#define HELP\n" + PLAIN,
        }
        self.assertEqual(groups_of(texts), [["a", "d", "e"]])
        self.assertEqual(groups_of(dict(reversed(texts.items()))), [["e", "d", "c"]])

    def test_groups_are_small(self):
        self.assertEqual(
            [len(files) for files in groups_of(dict.fromkeys(map(str, range(MOST + 3)), PLAIN))], [MOST, 3]
        )


if __name__ == "__main__":
    unittest.main()
