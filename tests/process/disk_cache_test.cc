// prepare with a cache on disk, with memory refused at every request of it: the call succeeds or
// says OUT_OF_MEMORY, no block is lost, and the cache serves the next caller. Readers and writers
// of metadata and tuning records must not meet destructors that allocate.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>

#include "cache/store.h"
#include "cache/tuning_file.h"
#include "tests/process/faults.h"
#include "tests/support/api_handles.h"
#include "tests/support/cache_testing.h"
#include "tests/support/coverage.h"
#include "tests/support/tuning_testing.h"

namespace octile::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDevice = "h200";

struct Prepared {
  octile_status status = OCTILE_OK;
  char sentence[160] = {};

  bool is(octile_status got) {
    if (status != OCTILE_OK) return false;
    status = got;
    if (got != OCTILE_OK) std::snprintf(sentence, sizeof(sentence), "%s", octile_last_error());
    return got == OCTILE_OK;
  }
};

class DiskCache : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("OCTILE_LIBNVRTC", OCTILE_FAKE_NVRTC_PATH, 1); }
  void TearDown() override {
    ::unsetenv("OCTILE_LIBNVRTC");
    ::unsetenv("OCTILE_COMPILER");
  }

  // Makes a library with this cache, prepares a plan and asks what came of it.
  Prepared prepare() {
    Prepared result;
    octile_library_options options = {};
    options.struct_size = sizeof(options);
    options.cache_dir = root_.c_str();
    options.cache_roots = "";
    options.log = [](octile_log_level, const char*, void*) {};
    options.log_level = OCTILE_LOG_DEBUG;
    options.compile_threads = 1;
    octile_library* library = nullptr;
    octile_plan* plan = nullptr;
    if (!result.is(octile_library_create(&options, &library))) return result;
    if (result.is(octile_plan_create(library, kDevice, kQuantizeText.c_str(), &plan))) {
      if (result.is(octile_plan_prepare(plan, 1, 1, OCTILE_PREPARE_DEFAULT))) {
        char text[8192];
        std::size_t bytes = sizeof(text);
        result.is(octile_plan_describe(plan, text, &bytes));
      }
      octile_plan_destroy(plan);
    }
    octile_library_destroy(library);
    return result;
  }

  // Writes records as a search does, so that prepare has some to read.
  void write_records() {
    const cache::TuningFile file(root_, true);
    cache::TuningRecord record = cache::testing::make_full_record();
    ASSERT_TRUE(file.append(record));
    record.problem = kQuantizeText;
    ASSERT_TRUE(file.append(record));
  }

  // Prepares with the n-th request refused, for every `step`-th n that there is.
  void every_refusal(Extent extent, std::int64_t step, const std::function<void()>& before) {
    before();
    ASSERT_EQ(prepare().status, OCTILE_OK);
    before();
    ASSERT_EQ(prepare().status, OCTILE_OK);  // what is allocated once in a process is there now
    octile_plan_destroy(reinterpret_cast<octile_plan*>(this));  // the same for a thread's sentence
    const std::int64_t blocks = live_blocks();
    std::int64_t refused = 0;
    std::int64_t failed = 0;
    for (std::int64_t n = 1;; n += step) {
      before();
      Refusal refusal(Refuse::kMemory, n, extent);
      const Prepared got = prepare();
      refusal.end();
      if (refusal.refused() == 0) break;
      ++refused;
      failed += got.status == OCTILE_OK ? 0 : 1;
      ASSERT_TRUE(got.status == OCTILE_OK || got.status == OCTILE_OUT_OF_MEMORY)
          << "request " << n << ": " << octile_status_name(got.status) << ": " << got.sentence;
      const Prepared next = prepare();
      ASSERT_EQ(next.status, OCTILE_OK) << "after request " << n << ": " << next.sentence;
    }
    EXPECT_EQ(live_blocks(), blocks) << "blocks lost in " << refused << " passes";
    EXPECT_GT(refused, 10);
    EXPECT_GT(failed, 0);
    verify();
    RecordProperty("refusals", static_cast<int>(refused));
  }

  void verify() {
    cache::StoreOptions options;
    options.writable_root = root_;
    cache::Store store(options);
    std::vector<cache::UnreadPart> unread;
    const auto listed = store.list(&unread);
    EXPECT_TRUE(unread.empty());
    EXPECT_EQ(listed.size(), 1U);
    for (const cache::Listing& listing : listed) EXPECT_TRUE(store.read(listing)) << listing.path;
    EXPECT_TRUE(cache::testing::files_ending(root_, ".damaged").empty());
  }

  void empty_cache() { fs::remove_all(root_); }

  const TempFolder folder_;
  const std::string root_ = folder_.path() + "/root";  // made before memory is refused
};

// A covering run tries every `covering`-th request; a prime, so that requests which repeat in
// another rhythm all occur. A run of all cases tries some twelve times as many.
std::int64_t step_of(std::int64_t covering) {
  constexpr std::int64_t kDenser = 12;
  return tests::sweeps_densely() ? covering / kDenser + 1 : covering;
}

TEST_F(DiskCache, WarmSurvivesEveryRefusedBlock) {
  write_records();
  every_refusal(Extent::kOnce, step_of(23), [] {});
}
TEST_F(DiskCache, WarmSurvivesTheEndOfMemory) {
  write_records();
  every_refusal(Extent::kOn, step_of(23), [] {});
}
TEST_F(DiskCache, ColdSurvivesEveryRefusedBlock) {
  ::setenv("OCTILE_COMPILER", "in-process", 1);
  every_refusal(Extent::kOnce, step_of(97), [this] { empty_cache(); });
}
TEST_F(DiskCache, ColdSurvivesTheEndOfMemory) {
  ::setenv("OCTILE_COMPILER", "in-process", 1);
  every_refusal(Extent::kOn, step_of(97), [this] { empty_cache(); });
}
TEST_F(DiskCache, ColdWithACompilerSurvivesRefusedBlocks) {
  // Without memory for a process of the compiler this one compiles, by NVRTC, which stays open.
  ::setenv("OCTILE_COMPILER", "in-process", 1);
  ASSERT_EQ(prepare().status, OCTILE_OK);
  ::unsetenv("OCTILE_COMPILER");
  every_refusal(Extent::kOnce, step_of(97), [this] { empty_cache(); });
}

}  // namespace
}  // namespace octile::test
