// Where NVRTC is looked for, in which order, and what is left out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/compiler/nvrtc_search.h"
#include "tests/support/api_handles.h"

namespace octile {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class NvrtcSearch : public ::testing::Test {
 protected:
  // Makes an empty file, with its folders, and returns the path of the folder.
  std::string put(const std::string& folder, const std::string& name = "libnvrtc.so.13") {
    fs::create_directories(at(folder));
    std::ofstream(at(folder) + "/" + name).put(' ');
    return at(folder);
  }
  std::string at(const std::string& name) const { return temporary.path() + "/" + name; }

  std::vector<NvrtcPlace> places() {
    cache::FileOps ops;
    return nvrtc_places(hints, ops);
  }
  // Returns the libraries of all places in the order in which they are opened.
  std::vector<std::string> libraries() {
    std::vector<std::string> all;
    for (const NvrtcPlace& place : places())
      all.insert(all.end(), place.libraries.begin(), place.libraries.end());
    return all;
  }

  test::TempFolder temporary;
  NvrtcHints hints;
};

TEST_F(NvrtcSearch, TheLoaderIsAlwaysAsked) {
  EXPECT_THAT(libraries(), ElementsAre("libnvrtc.so.13", "libnvrtc.so.12"));
}

TEST_F(NvrtcSearch, ThePlacesComeInTheirOrder) {
  hints = {.own_folder = at("own"),
           .recorded = at("recorded"),
           .virtual_env = at("venv"),
           .search_path = at("nowhere") + ":" + at("python/bin"),
           .home = at("home"),
           .cuda_home = at("cuda_home"),
           .cuda_path = at("cuda_path"),
           .usual_toolkit = at("usual")};
  put("python/bin", "python3");
  const std::vector<std::string> folders{
      put("own"),
      put("recorded"),
      put("venv/lib/python3.12/site-packages/nvidia/cu13/lib"),
      put("venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib"),
      put("venv/lib/python3.11/site-packages/nvidia/cu13/lib"),
      put("python/lib/python3/dist-packages/nvidia/cu13/lib"),
      put("home/.local/lib/python3.11/site-packages/nvidia/cu13/lib"),
      put("cuda_home/lib64"),
      put("cuda_home/lib"),
      put("cuda_path/lib64"),
      "",
      put("usual/lib64")};
  std::vector<std::string> expected;
  for (const std::string& folder : folders) {
    if (folder.empty()) {
      expected.insert(expected.end(), {"libnvrtc.so.13", "libnvrtc.so.12"});
    } else {
      expected.push_back(folder + "/libnvrtc.so.13");
    }
  }
  EXPECT_EQ(libraries(), expected);
}

TEST_F(NvrtcSearch, TheNewestReleaseOfAFolderComesFirst) {
  hints.recorded = put("recorded", "libnvrtc.so.12");
  put("recorded");
  EXPECT_EQ(libraries().at(0), hints.recorded + "/libnvrtc.so.13");
  EXPECT_EQ(libraries().at(1), hints.recorded + "/libnvrtc.so.12");
}

// A wheel of Octile and one of NVRTC lie in one folder of packages, for every Python that imports
// them.
TEST_F(NvrtcSearch, PackagesAroundTheLibraryCount) {
  const std::string wheel = put("any/site-packages/nvidia/cu13/lib");
  hints.own_folder = at("any/site-packages/octile/lib");
  EXPECT_EQ(libraries().at(0), wheel + "/libnvrtc.so.13");
}

// The command in <prefix>/bin takes the NVRTC in <prefix>/lib, as the library beside it does.
TEST_F(NvrtcSearch, TheLibraryFolderOfAnInstallationCounts) {
  const std::string library = put(fs::path("prefix/bin") / OCTILE_PROGRAMS_TO_LIBRARY);
  fs::create_directories(at("prefix/bin"));
  hints.own_folder = at("prefix/bin");
  EXPECT_EQ(libraries().at(0), fs::canonical(library).string() + "/libnvrtc.so.13");
}

// The python3 of a virtual environment is a link to an installation: both have packages.
TEST_F(NvrtcSearch, ALinkedPythonHasThePackagesOfBothEnds) {
  put("real/bin", "python3.11");
  fs::create_directories(at("linked/bin"));
  fs::create_symlink(at("real/bin/python3.11"), at("linked/bin/python3"));
  const std::string of_link = put("linked/lib/python3.11/site-packages/nvidia/cu13/lib");
  const std::string of_real = put("real/lib/python3.11/site-packages/nvidia/cu13/lib");
  put("later/bin", "python3");
  put("later/lib/python3.11/site-packages/nvidia/cu13/lib");
  hints.search_path = at("linked/bin") + ":" + at("later/bin");
  EXPECT_THAT(libraries(), ElementsAre(of_link + "/libnvrtc.so.13", of_real + "/libnvrtc.so.13",
                                       "libnvrtc.so.13", "libnvrtc.so.12"));
}

// nvidia-cuda-nvdisasm installs into the same folder, so it is named even without an NVRTC.
TEST_F(NvrtcSearch, AFolderOfPackagesIsNamedIfItHasAnyOfCuda) {
  put("venv/lib/python3.11/site-packages/nvidia/cu13/bin", "nvdisasm");
  hints.virtual_env = at("venv");
  ASSERT_EQ(places().size(), 2U);
  EXPECT_EQ(places()[0].folder, at("venv/lib/python3.11/site-packages/nvidia/cu13/lib"));
  EXPECT_THAT(places()[0].libraries, IsEmpty());
}

TEST_F(NvrtcSearch, EmptyAndRelativePartsOfPathAreLeftOut) {
  put("bin", "python3");
  put("lib/python3.11/site-packages/nvidia/cu13/lib");
  const fs::path before = fs::current_path();
  fs::current_path(temporary.path());
  hints.search_path = ":bin:./bin:";
  EXPECT_THAT(libraries(), ElementsAre("libnvrtc.so.13", "libnvrtc.so.12"));
  fs::current_path(before);
}

TEST_F(NvrtcSearch, AFolderIsNamedOnce) {
  hints.recorded = put("cuda/lib64");
  hints.cuda_home = hints.cuda_path = hints.usual_toolkit = at("cuda");
  EXPECT_THAT(libraries(),
              ElementsAre(at("cuda/lib64/libnvrtc.so.13"), "libnvrtc.so.13", "libnvrtc.so.12"));
}

// A folder beside Octile's may be anybody's, as one in /tmp, and so may HOME of a root shell.
TEST_F(NvrtcSearch, AFolderThatOthersMayWriteIsNotUsedUnlessItIsNamed) {
  put("any/site-packages/octile/bin", "octile");
  put("python/bin", "python3");
  hints = {.own_folder = at("any/site-packages/octile/bin"),
           .recorded = at("recorded"),
           .virtual_env = at("venv"),
           .search_path = at("python/bin"),
           .home = at("home"),
           .cuda_home = at("cuda_home"),
           .cuda_path = at("cuda_path"),
           .usual_toolkit = at("usual")};
  const std::vector<std::string> found{
      put("any/site-packages/octile/bin"),
      put(fs::path("any/site-packages/octile/bin") / OCTILE_PROGRAMS_TO_LIBRARY),
      put("recorded"),
      put("any/site-packages/nvidia/cu13/lib"),
      put("home/.local/lib/python3.11/site-packages/nvidia/cu13/lib"),
      put("usual/lib64")};
  const std::vector<std::string> named{put("venv/lib/python3.12/site-packages/nvidia/cu13/lib"),
                                       put("python/lib/python3/dist-packages/nvidia/cu13/lib"),
                                       put("cuda_home/lib64"), put("cuda_path/lib")};
  const std::size_t all = libraries().size();
  for (const std::vector<std::string>& folders : {found, named})
    for (const std::string& folder : folders) fs::permissions(folder, fs::perms(0777));
  std::vector<std::string> expected;
  for (const std::string& folder : named) expected.push_back(folder + "/libnvrtc.so.13");
  expected.insert(expected.end(), {"libnvrtc.so.13", "libnvrtc.so.12"});
  EXPECT_EQ(libraries(), expected);
  EXPECT_EQ(all, expected.size() + found.size()) << "each was found before";
  int refused = 0;
  for (const NvrtcPlace& place : places()) {
    if (place.refused.empty()) continue;
    ++refused;
    EXPECT_FALSE(place.is_named);
    EXPECT_THAT(place.refused, ::testing::HasSubstr("libnvrtc.so.13\" is not opened: "));
    EXPECT_THAT(place.refused, ::testing::HasSubstr("its mode is 0777"));
  }
  EXPECT_EQ(refused, 6);
}

// The files that a memo compares change with every library that comes or goes.
TEST_F(NvrtcSearch, TheTextNamesEveryLibrary) {
  hints.recorded = at("recorded");
  EXPECT_EQ(nvrtc_places_text(places()), "candidate libnvrtc.so.13\ncandidate libnvrtc.so.12\n");
  put("recorded");
  EXPECT_EQ(nvrtc_places_text(places()), "candidate " + at("recorded/libnvrtc.so.13") +
                                             "\ncandidate libnvrtc.so.13\n"
                                             "candidate libnvrtc.so.12\n");
}

}  // namespace
}  // namespace octile
