// The report of `octile tune` at its end.
#include "tools/tune/report.h"

#include <gtest/gtest.h>

namespace octile::tools {
namespace {

TEST(TuneReport, SpilledCandidatesAreCountedOverTheRun) {
  std::vector<tuner::Decision> decisions(4);
  EXPECT_EQ(spilled_text(decisions), "");
  decisions[1].spilled = 1;
  EXPECT_EQ(spilled_text(decisions),
            "1 candidate of 1 question spilled registers and was left out");
  decisions[3].spilled = 6;
  EXPECT_EQ(spilled_text(decisions),
            "7 candidates of 2 questions spilled registers and were left out");
}

}  // namespace
}  // namespace octile::tools
