// What the command prints of texts that others wrote.
#include "tools/common/output.h"

#include <gtest/gtest.h>

#include "tools/common/text_table.h"

namespace octile::tools {
namespace {

TEST(Printable, EscapesWhatATerminalObeys) {
  EXPECT_EQ(printable("\x1b]0;title\x07"), "\\x1b]0;title\\x07");
  EXPECT_EQ(printable("one\ttwo\nthree\r"), "one\ttwo\nthree\\x0d");
  EXPECT_EQ(printable_line("one\ttwo\nthree"), "one\\x09two\\x0athree");
  EXPECT_EQ(printable(std::string_view("a\0b\x7f", 4)), "a\\x00b\\x7f");
  // C1 as UTF-8 and as a byte: both begin a control sequence on some terminals.
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\xc2\\x9b2J");
  EXPECT_EQ(printable("\x9b"
                      "2J"),
            "\\x9b2J");
}

TEST(Printable, KeepsUtf8AndEscapesWhatIsNone) {
  for (const char* text : {"", "plain ~", "grün", "\xc2\xa0", "\xe2\x82\xac", "\xf0\x9f\x8e\x89",
                           "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"})
    EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable("\xc0\x80"), "\\xc0\\x80");           // an overlong zero
  EXPECT_EQ(printable("\xe0\x80\x9b"), "\\xe0\\x80\\x9b");  // overlong
  EXPECT_EQ(printable("\xf0\x80\x80\x9b"), "\\xf0\\x80\\x80\\x9b");
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // above U+10FFFF
  EXPECT_EQ(printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(printable("cut \xe2\x82"), "cut \\xe2\\x82");
}

TEST(Printable, ACellOfATableStaysInItsRow) {
  TextTable table({"<name", "number"});
  table.add_row({"a\n  forged  1\x1b[2J", "2"});
  EXPECT_EQ(table.render(),
            "  name                     number\n"
            "  a\\x0a  forged  1\\x1b[2J       2\n");
}

}  // namespace
}  // namespace octile::tools
