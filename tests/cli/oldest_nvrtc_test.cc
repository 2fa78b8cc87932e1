// Kernels compile with NVRTC 12.8, the oldest that README promises. tools/setup.sh installs it from
// tools/requirements/oldest_nvrtc.txt.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "generator/core/cuda_release.h"
#include "generator/core/device_spec.h"
#include "tests/cli/command.h"

namespace octile::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kVersion = "12.8";

// Returns the path of the library in the Python environment of tools/setup.sh, or nothing.
std::string oldest_nvrtc() {
  for (const auto& python : fs::directory_iterator(fs::path(OCTILE_VENV) / "lib")) {
    const fs::path library = python.path() / "site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12";
    if (fs::exists(library)) return library.string();
  }
  return {};
}

class OldestNvrtc : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(fs::path(OCTILE_VENV) / "oldest_nvrtc.txt"))
      GTEST_SKIP() << "tools/setup.sh test has not installed NVRTC " << kVersion;
    const std::string library = oldest_nvrtc();
    ASSERT_NE(library, "") << "below " << OCTILE_VENV;
    shell_.set("OCTILE_LIBNVRTC", library);
    ASSERT_EQ(shell_.run({"doctor", "--json"}).json().at("nvrtc").at("version"), kVersion);
  }

  Shell shell_;
};

TEST_F(OldestNvrtc, CompilesKernelsOfEveryFamily) {
  for (const std::vector<std::string>& problem :
       std::vector<std::vector<std::string>>{{"--quantize", "16x7168"}, {"--gemm", "64x512x512"}}) {
    std::vector<std::string> arguments{"compile", "--device", "h200"};
    arguments.insert(arguments.end(), problem.begin(), problem.end());
    const Outcome outcome = shell_.run(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  }
  const json entries = shell_.run({"cache", "list", "--json"}).json();
  ASSERT_EQ(entries.size(), 2U);
  for (const json& entry : entries) {
    EXPECT_THAT(entry.at("toolchain").dump(), HasSubstr(kVersion));
    const json shown = shell_.run({"cache", "show", entry.at("digest"), "--json"}).json();
    EXPECT_EQ(shown.at("elf").at("sm"), 90);
    EXPECT_EQ(shown.at("elf").at("kernels").at(0).at("name"), entry.at("name"));
  }
  EXPECT_EQ(shell_.run({"cache", "verify"}).exit_code, 0);
}

// Whatever device is named, its kernel compiles or the sentence says which NVRTC does.
TEST_F(OldestNvrtc, SaysWhichNvrtcADeviceNeeds) {
  int older = 0;
  for (const DeviceSpec& device : known_devices()) {
    const CudaRelease first = first_nvrtc(device.arch());
    ASSERT_GT(first.major, 0) << device.name;
    const Outcome outcome =
        shell_.run({"compile", "--device", device.name, "--quantize", "16x7168"});
    if (first <= CudaRelease{12, 8}) {
      EXPECT_EQ(outcome.exit_code, 0) << device.name << ": " << outcome.err;
      continue;
    }
    ++older;
    EXPECT_EQ(outcome.exit_code, 1) << device.name;
    EXPECT_THAT(outcome.err, HasSubstr(fmt::format("for {} needs NVRTC {}.{} or newer, and \"",
                                                   device.arch(), first.major, first.minor)));
    EXPECT_THAT(outcome.err, Not(HasSubstr("invalid value")));
  }
  EXPECT_GT(older, 0);
}

}  // namespace
}  // namespace octile::tests
