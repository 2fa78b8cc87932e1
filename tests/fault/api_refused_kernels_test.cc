// Kernels of the cache that the driver refuses: made by a newer toolchain, damaged before their
// digest was taken, or of another architecture than they say.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/compiler/nvrtc.h"
#include "tests/support/api_handles.h"
#include "tests/support/fake_device.h"

namespace octile::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RefusedKernel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Nvrtc::open()) GTEST_SKIP() << "no NVRTC";
    const LibraryHandle library(root_.path());
    ASSERT_EQ(prepare(library), OCTILE_OK) << octile_last_error();
  }
  // Prepares a plan of its own.
  octile_status prepare(const LibraryHandle& library) {
    const PlanHandle plan = make_plan(library, "cuda:0", kQuantizeText);
    const octile_status status = octile_plan_prepare(plan.get(), 1, 1, OCTILE_PREPARE_DEFAULT);
    if (status == OCTILE_OK) origin_ = describe(plan.get()).at("kernels").at(0).at("cache");
    return status;
  }
  void refuse_next(CUresult result = CUDA_ERROR_INVALID_IMAGE) {
    device_.fake.fail("cuLibraryLoadData", result, 1);
  }
  auto names_entry_of(const TempFolder& root) {
    return AllOf(HasSubstr(root.path()), HasSubstr(".octile is not used: "),
                 HasSubstr("CUDA_ERROR_INVALID_IMAGE"));
  }

  FakeDevice device_;
  TempFolder root_, own_;
  std::string origin_;
};

TEST_F(RefusedKernel, OfAnotherRootIsCompiledAnewAndNamedOnce) {
  {
    const LibraryHandle library(own_.path(), false, 2, root_.path());
    refuse_next();
    ASSERT_EQ(prepare(library), OCTILE_OK) << octile_last_error();
    EXPECT_EQ(origin_, "miss");
    EXPECT_THAT(library.log.of(OCTILE_LOG_WARNING), ElementsAre(names_entry_of(root_)));
    ASSERT_EQ(prepare(library), OCTILE_OK) << octile_last_error();
    EXPECT_EQ(library.log.of(OCTILE_LOG_WARNING).size(), 1U);
  }
  // The next process finds the kernel in its own root.
  const LibraryHandle next(own_.path(), false, 2, root_.path());
  refuse_next();
  ASSERT_EQ(prepare(next), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(origin_, "hit");
}

TEST_F(RefusedKernel, OfTheOwnRootIsReplaced) {
  {
    const LibraryHandle library(root_.path());
    refuse_next();
    ASSERT_EQ(prepare(library), OCTILE_OK) << octile_last_error();
    EXPECT_EQ(origin_, "miss");
  }
  const LibraryHandle next(root_.path());
  ASSERT_EQ(prepare(next), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(origin_, "hit");
  EXPECT_THAT(next.log.of(OCTILE_LOG_WARNING), IsEmpty());
}

TEST_F(RefusedKernel, OfWhichNoneCanBeCompiledIsASentence) {
  const LibraryHandle library(own_.path(), true, 2, root_.path());
  refuse_next();
  expect_refused(prepare(library), OCTILE_OFFLINE,
                 {"the kernel at " + root_.path(), "cannot be loaded (", "CUDA_ERROR_INVALID_IMAGE",
                  "offline forbids compiling it"});
}

// Another driver may load it.
TEST_F(RefusedKernel, StaysInItsRoot) {
  {
    const LibraryHandle library(root_.path(), true);
    refuse_next();
    expect_refused(prepare(library), OCTILE_OFFLINE, {});
  }
  const LibraryHandle next(root_.path(), true);
  EXPECT_EQ(prepare(next), OCTILE_OK) << octile_last_error();
}

TEST_F(RefusedKernel, IsNotBlamedForTheDevice) {
  for (const CUresult result : {CUDA_ERROR_UNKNOWN, CUDA_ERROR_OUT_OF_MEMORY}) {
    const LibraryHandle library(root_.path());
    refuse_next(result);
    EXPECT_NE(prepare(library), OCTILE_OK);
    EXPECT_THAT(library.log.of(OCTILE_LOG_WARNING), IsEmpty());
    EXPECT_EQ(prepare(library), OCTILE_OK) << octile_last_error();
    EXPECT_EQ(origin_, "hit") << "the entry serves";
  }
}

}  // namespace
}  // namespace octile::test
