// Claims that say nothing of their owner.
#include "cache/claims.h"

#include <gtest/gtest.h>

#include "tests/support/cache_testing.h"

namespace octile::cache {
namespace {

using testing::TempDir;
namespace fs = std::filesystem;

TEST(Claims, WithoutAnOwnerAreSoonNobodys) {
  const TempDir dir;
  const std::string root = dir / "root";
  FileOps ops;
  Claims first(root, "a", this_process(ops)), second(root, "b", this_process(ops));
  ASSERT_EQ(first.claim("question", 1), ClaimState::kMine);
  EXPECT_EQ(second.claim("question", 1), ClaimState::kTaken);
  // Its maker was killed before it could say who it is.
  const std::string path = root + "/claims/question.1";
  fs::resize_file(path, 0);
  EXPECT_EQ(second.claim("question", 1), ClaimState::kTaken) << "it may be at work on it";
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::seconds(30));
  EXPECT_EQ(second.claim("question", 1), ClaimState::kGone);
}

}  // namespace
}  // namespace octile::cache
