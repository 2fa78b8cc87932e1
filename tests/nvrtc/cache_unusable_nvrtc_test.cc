// Whatever happens to the cache, a call gets its kernel: it is compiled, with one warning.
#include <unistd.h>

#include "runtime/compiler/nvrtc.h"
#include "runtime/engine/engine.h"
#include "tests/support/api_handles.h"
#include "tests/support/cache_disks.h"
#include "tests/support/cache_testing.h"

namespace octile {
namespace {

using namespace cache::testing;

struct Call {
  Result<Built> built;
  std::vector<std::string> warnings;
};

Call call(const std::string& root, const std::shared_ptr<cache::FileOps>& ops = nullptr) {
  std::vector<std::string> warnings;
  Logger logger(
      [&](LogLevel level, const std::string& message) {
        if (level == LogLevel::kWarning) warnings.push_back(message);
      },
      LogLevel::kWarning);
  EngineOptions options;
  options.writable_root = root;
  options.file_ops = ops;
  Engine engine(options, logger);
  auto built = engine.kernel_for(*parse_problem(test::kQuantizeText), 1, *find_device("h200"));
  return {std::move(built), std::move(warnings)};
}

// Returns "" if the kernel was compiled and exactly one warning says so.
std::string compiled_with_one_warning(const Call& call) {
  if (!call.built) return "failed: " + call.built.error().message;
  if (call.built->state != CacheState::kMiss) return "no miss";
  if (call.built->kernel->cubin.empty()) return "no cubin";
  if (call.warnings.size() != 1) return ::testing::PrintToString(call.warnings);
  return "";
}

class CacheUnusable : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Nvrtc::open()) GTEST_SKIP() << "no NVRTC";
  }
  TempDir dir_;
};

TEST_F(CacheUnusable, WithoutAnyFolder) {
  const Call made = call(cache::default_root("", "", ""));  // HOME unset
  ASSERT_TRUE(made.built) << made.built.error().message;
  EXPECT_EQ(made.built->state, CacheState::kMiss);
  EXPECT_TRUE(made.warnings.empty());
}

TEST_F(CacheUnusable, OnAFullDisk) {
  const std::string report = Child([&]() -> std::string {
                               if (auto no = mount_tmpfs(dir_ / "m", 0, "size=8k"); !no.empty())
                                 return no;
                               write_bytes(dir_ / "m/filler", std::vector<std::uint8_t>(8192, 1));
                               return compiled_with_one_warning(call(dir_ / "m/root"));
                             }).wait();
  if (report == "no right to mount") GTEST_SKIP() << report;
  EXPECT_EQ(report, "");
}

TEST_F(CacheUnusable, OnAReadOnlyFilesystem) {
  const std::string report = Child([&]() -> std::string {
                               if (auto no = mount_tmpfs(dir_ / "m", MS_RDONLY, ""); !no.empty())
                                 return no;
                               return compiled_with_one_warning(call(dir_ / "m/root"));
                             }).wait();
  if (report == "no right to mount") GTEST_SKIP() << report;
  EXPECT_EQ(report, "");
}

TEST_F(CacheUnusable, WithoutPermission) {
  fs::create_directory(dir_ / "root");
  fs::permissions(dir_ / "root", fs::perms(0555));
  // Other users cannot read root's own folders, in which a fresh clone may have put NVRTC.
  const std::string report = without_rights([&]() -> std::string {
    const auto nvrtc = Nvrtc::open();
    if (!nvrtc || ::access((*nvrtc)->identity().path.c_str(), R_OK) != 0)
      return "no NVRTC others may read";
    return compiled_with_one_warning(call(dir_ / "root"));
  });
  if (report == "no NVRTC others may read") GTEST_SKIP() << report;
  EXPECT_EQ(report, "");
}

TEST_F(CacheUnusable, WhereOthersMayWrite) {
  ASSERT_TRUE(call(dir_ / "root").built);
  EXPECT_EQ(call(dir_ / "root").built->state, CacheState::kHit);
  fs::permissions(dir_ / "root/v1", fs::perms(0777));
  EXPECT_EQ(compiled_with_one_warning(call(dir_ / "root")), "");
}

// Every call of a kind fails, from the first on.
TEST_F(CacheUnusable, WhereAnOperationFails) {
  for (const Op op : {Op::kOpen, Op::kRead, Op::kWrite, Op::kRename, Op::kFsync}) {
    for (const int code : {ESTALE, EIO, EINTR}) {
      SCOPED_TRACE(std::string(name_of(op)) + " fails with " + std::to_string(code));
      const std::string root = dir_ / (name_of(op) + std::to_string(code));
      // A read fails only if there is something to read.
      if (op == Op::kRead) {
        ASSERT_TRUE(call(root).built);
      }
      const auto ops = std::make_shared<HookedOps>(
          [=](Op now) { return now == op ? std::optional(code) : std::nullopt; });
      EXPECT_EQ(compiled_with_one_warning(call(root, ops)), "");
    }
  }
}

// The root is gone when the kernel is published. The cache is created again without a warning.
TEST_F(CacheUnusable, WhereTheRootVanishesMidRun) {
  bool gone = false;
  const auto ops = std::make_shared<HookedOps>([&](Op op) -> std::optional<int> {
    if (op == Op::kWrite && !gone) {
      gone = true;
      fs::remove_all(dir_ / "root");
    }
    return std::nullopt;
  });
  const Call made = call(dir_ / "root", ops);
  EXPECT_TRUE(gone);
  ASSERT_TRUE(made.built) << made.built.error().message;
  EXPECT_FALSE(made.built->kernel->cubin.empty());
  EXPECT_LE(made.warnings.size(), 1U) << ::testing::PrintToString(made.warnings);
}

// An entry of another format version is neither used nor called damaged.
TEST_F(CacheUnusable, WhereAnEntryIsOfAnotherVersion) {
  ASSERT_TRUE(call(dir_ / "root").built);
  const auto files = files_ending(dir_ / "root", ".octile");
  ASSERT_EQ(files.size(), 1U);
  constexpr std::size_t kVersionAt = 8;
  for (const int version : {0, 2}) {
    std::vector<std::uint8_t> bytes = read_bytes(files[0]);
    bytes[kVersionAt] = static_cast<std::uint8_t>(version);
    write_bytes(files[0], bytes);
    const Call made = call(dir_ / "root");
    ASSERT_TRUE(made.built) << made.built.error().message;
    EXPECT_EQ(made.built->state, CacheState::kMiss);
    EXPECT_TRUE(made.warnings.empty()) << made.warnings[0];
    EXPECT_EQ(call(dir_ / "root").built->state, CacheState::kHit);
  }
}

}  // namespace
}  // namespace octile
