// Texts that others wrote, as the command prints them.
#include "tools/common/output.h"

#include <gtest/gtest.h>

#include "tools/common/text_table.h"

namespace octile::tools {
namespace {

TEST(Printable, ACellOfATableStaysInItsRow) {
  TextTable table({"<name", "number"});
  table.add_row({"a\n  forged  1\x1b[2J", "2"});
  EXPECT_EQ(table.render(),
            "  name                     number\n"
            "  a\\x0a  forged  1\\x1b[2J       2\n");
}

}  // namespace
}  // namespace octile::tools
