// Texts of others, as a terminal and a caller may have them.
#include "runtime/base/printable.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace octile {
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

// Marks that turn the direction of text show a name as another one.
TEST(Printable, EscapesMarksOfDirectionAndLines) {
  EXPECT_EQ(printable("a\u202eb"), "a\\xe2\\x80\\xaeb");
  for (const char* mark :
       {"\u061c", "\u200e", "\u200f", "\u2028", "\u2029", "\u202a", "\u202c", "\u2066", "\u2069"})
    EXPECT_THAT(printable(mark), ::testing::StartsWith("\\x")) << mark;
  for (const char* other : {"\u200d", "\u2027", "\u202f", "\u2065", "\u206a"})
    EXPECT_EQ(printable(other), other);
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

TEST(Printable, ACopyEndsBehindAWholeCharacter) {
  const auto copied = [](std::string_view text, std::size_t most) {
    std::string to(most, '#');
    to.resize(copy_printable(text, to));
    return to;
  };
  EXPECT_EQ(copied("", 8), "");
  EXPECT_EQ(copied("grün", 5), "grün");
  EXPECT_EQ(copied("grünlich", 8), "grü ...");
  EXPECT_EQ(copied("12345678", 8), "12345678");
  EXPECT_EQ(copied("123456789", 8), "1234 ...");
  EXPECT_EQ(copied("1234\xff", 8), "1234\\xff");
  EXPECT_EQ(copied("12345\xff", 8), "1234 ...");
  EXPECT_EQ(copied("123456789", 2), " .") << "no room for the mark";
}

}  // namespace
}  // namespace octile
