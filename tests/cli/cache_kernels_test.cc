// octile cache show, verify, why, export and import on real kernels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/cli/command.h"
#include "tests/support/cache_testing.h"

namespace octile::tests {
namespace {

using cache::Entry;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A cache with the kernel of one problem.
class CacheKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_compiler(shell_)) GTEST_SKIP() << "no NVRTC";
    ASSERT_EQ(shell_.run({"compile", "--quantize", "16x7168"}).exit_code, 0);
    entry_ = listing().at(0);
  }

  json listing() const { return shell_.run({"cache", "list", "--json"}).json(); }
  std::string root() const { return (shell_.folder() / "cache").string(); }
  std::string path() const { return entry_.at("path"); }

  Entry load() const {
    const std::string bytes = read_file(path());
    return *cache::deserialize({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
  }
  // Puts the entry in place of the one in the cache.
  void replace(const Entry& entry) const {
    fs::remove(path());
    ASSERT_TRUE(cache::testing::publish_in(root(), entry));
  }

  Shell shell_;
  json entry_;
};

TEST_F(CacheKernels, ShowReadsResourcesFromTheElfImage) {
  const std::string digest = entry_.at("digest");
  const json entry = shell_.run({"cache", "show", digest, "--json"}).json();
  const json& kernel = entry.at("elf").at("kernels").at(0);
  EXPECT_EQ(entry.at("elf").at("sm"), 90);
  EXPECT_EQ(kernel.at("name"), entry.at("name"));
  EXPECT_EQ(kernel.at("registers"), entry.at("registers"));
  EXPECT_EQ(kernel.at("parameters").size(), entry.at("parameter_bytes").size());
  EXPECT_THAT(shell_.run({"cache", "show", digest}).out, HasSubstr("ELF image for sm_90: octile_"));
}

TEST_F(CacheKernels, ShowDisassemblesThroughTheToolkit) {
  const std::string digest = entry_.at("digest");
  const fs::path bin = shell_.folder() / "toolkit/bin";
  fs::create_directories(bin);
  shell_.set("CUDA_HOME", (shell_.folder() / "toolkit").string());
  // Only the second program exists. It gets the option and a file with the cubin.
  std::ofstream(bin / "cuobjdump") << "#!/bin/sh\necho \"$1\"; wc -c < \"$2\"\n";
  fs::permissions(bin / "cuobjdump", fs::perms(0755));
  const Outcome sass = shell_.run({"cache", "show", digest, "--sass"});
  ASSERT_EQ(sass.exit_code, 0) << sass.err;
  EXPECT_EQ(sass.out, "--dump-sass\n" + entry_.at("cubin_bytes").dump() + "\n");
  std::ofstream(bin / "nvdisasm") << "#!/bin/sh\nexit 7\n";
  fs::permissions(bin / "nvdisasm", fs::perms(0755));
  const Outcome failed = shell_.run({"cache", "show", digest, "--sass"});
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_THAT(failed.err, HasSubstr("nvdisasm failed with status 7"));
}

// The Python package nvidia-cuda-nvdisasm has it beside NVRTC's.
TEST_F(CacheKernels, ShowDisassemblesThroughAPythonPackage) {
  const fs::path cuda = shell_.folder() / "venv/lib/python3.11/site-packages/nvidia/cu13";
  fs::create_directories(cuda / "bin");
  fs::create_directories(cuda / "lib");
  std::ofstream(cuda / "bin/nvdisasm") << "#!/bin/sh\necho listing\n";
  fs::permissions(cuda / "bin/nvdisasm", fs::perms(0755));
  shell_.set("CUDA_HOME", "/nonexistent");
  shell_.set("PATH", "/nonexistent");
  shell_.set("VIRTUAL_ENV", (shell_.folder() / "venv").string());
  const Outcome sass = shell_.run({"cache", "show", entry_.at("digest"), "--sass"});
  EXPECT_EQ(sass.exit_code, 0) << sass.err;
  // A build against a whole toolkit has that toolkit's first.
  EXPECT_FALSE(sass.out.empty());
}

TEST_F(CacheKernels, VerifyProvesThatACompileGivesTheSameBytes) {
  const Outcome good = shell_.run({"cache", "verify", "--recompile", "--json"});
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_EQ(good.json().at("same"), 1);

  // A valid entry whose machine code is not what its source compiles to.
  Entry forged = load();
  forged.cubin[forged.cubin.size() / 2] ^= 1;
  replace(forged);
  EXPECT_EQ(shell_.run({"cache", "verify"}).exit_code, 0);
  const Outcome differs = shell_.run({"cache", "verify", "--recompile", "--json"});
  EXPECT_EQ(differs.exit_code, 4);
  EXPECT_THAT(differs.json().at("findings").at(0).at("reason").get<std::string>(),
              HasSubstr("the first that differs is at " + std::to_string(forged.cubin.size() / 2)));

  Entry older = load();
  older.toolchain.compiler = "nvrtc 12.8";
  replace(older);
  const Outcome other = shell_.run({"cache", "verify", "--recompile", "--json"});
  EXPECT_EQ(other.exit_code, 0);
  EXPECT_EQ(other.json().at("other_toolchain"), 1);
}

// Exit status 4 accuses an entry. A compiler that fails, as for lack of memory, does not.
TEST_F(CacheKernels, VerifyDoesNotCallAFailedCompileOtherBytes) {
  Entry refused = load();
  refused.identity.source = "#error of this test\n";
  replace(refused);
  const Outcome outcome = shell_.run({"cache", "verify", "--recompile", "--json"});
  EXPECT_EQ(outcome.exit_code, 3);
  const json report = outcome.json();
  EXPECT_EQ(report.at("good"), 1);
  EXPECT_EQ(report.at("differs"), 0);
  EXPECT_EQ(report.at("not_compiled"), 1);
  EXPECT_EQ(report.at("findings").at(0).at("state"), "not compiled");
  EXPECT_THAT(report.at("findings").at(0).at("reason").get<std::string>(),
              HasSubstr("of this test"));
}

TEST_F(CacheKernels, WhySaysThatAKernelWouldBeFound) {
  const Outcome outcome = shell_.run({"cache", "why", "quantize", "rows=16", "cols=7168", "x=bf16",
                                      "q=e4m3:1x128:pow2", "out=row", "--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.json().at("hit"), true);
  EXPECT_EQ(outcome.json().at("path"), path());
}

TEST_F(CacheKernels, WhyNamesTheFirstFieldThatDiffers) {
  const Outcome shape = shell_.run({"cache", "why", "--gemm", "64x7168x2048", "--json"});
  EXPECT_EQ(shape.exit_code, 3);
  const json nearest = shape.json().at("nearest");
  EXPECT_EQ(nearest.at("digest"), entry_.at("digest"));
  EXPECT_EQ(nearest.at("differences").at(0).at("field"), "entry");
  EXPECT_EQ(nearest.at("differences").at(0).at("found"), entry_.at("name"));

  const std::vector<std::string> why{"cache", "why", "--quantize", "16x7168", "--json"};
  const auto only_difference = [&](const Entry& entry) {
    replace(entry);
    const Outcome outcome = shell_.run(why);
    EXPECT_EQ(outcome.exit_code, 3);
    const json differences = outcome.json().at("nearest").at("differences");
    EXPECT_EQ(differences.size(), 1);
    fs::remove_all(root() + "/v1");
    return differences.at(0);
  };
  const Entry original = load();
  Entry older = original;
  older.toolchain.compiler = "nvrtc 12.8";
  EXPECT_EQ(only_difference(older).at("field"), "toolchain");
  Entry option = original;
  option.identity.options.emplace_back("--maxrregcount=64");
  const json extra = only_difference(option);
  EXPECT_EQ(extra.at("field"), "option " + std::to_string(option.identity.options.size()));
  EXPECT_EQ(extra.at("wanted"), "(nothing)");
  EXPECT_EQ(extra.at("found"), "--maxrregcount=64");
  Entry source = original;
  source.identity.source = "// another\n" + source.identity.source;
  EXPECT_EQ(only_difference(source).at("field"), "source line 1");
}

TEST_F(CacheKernels, WhyNamesAnEntryThatCannotBeUsed) {
  fs::resize_file(path(), 100);
  const Outcome outcome = shell_.run({"cache", "why", "--quantize", "16x7168", "--json"});
  EXPECT_EQ(outcome.exit_code, 3);
  const json answer = outcome.json();
  EXPECT_EQ(answer.at("nearest"), nullptr);
  EXPECT_EQ(answer.at("refused").at(0).at("path"), path());
  EXPECT_THAT(shell_.run({"cache", "why", "--quantize", "16x7168"}).out, HasSubstr("not used"));
}

TEST_F(CacheKernels, AnArchiveOfTheSameEntriesIsTheSameBytes) {
  ASSERT_EQ(shell_.run({"compile", "--quantize", "64x512"}).exit_code, 0);
  const std::string first = (shell_.folder() / "first.tar").string();
  const std::string second = (shell_.folder() / "second.tar").string();
  ASSERT_EQ(shell_.run({"cache", "export", first}).exit_code, 0);
  // Exports from another root, which an import fills.
  shell_.set("OCTILE_CACHE_DIR", (shell_.folder() / "other").string());
  const Outcome imported = shell_.run({"cache", "import", first, "--json"});
  ASSERT_EQ(imported.exit_code, 0) << imported.err;
  const auto count = imported.json().at("entries").get<std::size_t>();
  EXPECT_EQ(imported.json().at("added"), count);
  EXPECT_EQ(shell_.run({"cache", "verify"}).exit_code, 0);
  ASSERT_EQ(shell_.run({"cache", "export", second}).exit_code, 0);
  EXPECT_EQ(read_file(first), read_file(second));
  const json again = shell_.run({"cache", "import", first, "--json"}).json();
  EXPECT_EQ(again.at("added"), 0);
  EXPECT_EQ(again.at("present"), count);
  EXPECT_EQ(shell_.run({"cache", "why", "--quantize", "16x7168"}).exit_code, 0);
}

TEST_F(CacheKernels, ExportLeavesDamagedEntriesOutAndSaysSo) {
  fs::resize_file(path(), 100);
  const std::string archive = (shell_.folder() / "some.tar").string();
  const Outcome outcome = shell_.run({"cache", "export", archive, "--json"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.json().at("damaged"), 1);
  EXPECT_EQ(outcome.json().at("entries"), 0);
  EXPECT_THAT(outcome.err, HasSubstr("1 damaged entry is left out"));
}

TEST_F(CacheKernels, ImportOfAnArchiveCutShortWritesNothing) {
  const std::string archive = (shell_.folder() / "cut.tar").string();
  ASSERT_EQ(shell_.run({"cache", "export", archive}).exit_code, 0);
  shell_.set("OCTILE_CACHE_DIR", (shell_.folder() / "other").string());
  ASSERT_EQ(shell_.run({"cache", "import", archive, "--dry-run"}).exit_code, 0);
  fs::resize_file(archive, fs::file_size(archive) - 2048);
  const Outcome outcome = shell_.run({"cache", "import", archive});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("cut.tar is not a usable archive"));
  EXPECT_FALSE(fs::exists(shell_.folder() / "other/v1"));
}

// The checksums are right. No device can launch what the metadata says.
TEST_F(CacheKernels, VerifyAndImportRefuseALaunchThatCannotBe) {
  const Entry good = load();
  EXPECT_EQ(shell_.run({"cache", "verify"}).exit_code, 0);
  const struct {
    int cache::Metadata::* field;
    int value;
    const char* reason;
  } kCases[] = {
      {&cache::Metadata::threads, 0, "the metadata has threads 0; allowed: 1 to "},
      {&cache::Metadata::threads, -1, "the metadata has threads -1; allowed: 1 to "},
      {&cache::Metadata::threads, 1025, "the metadata has threads 1025; allowed: 1 to "},
      {&cache::Metadata::cluster_size, 0, "the metadata has cluster_size 0; allowed: 1 to 16"},
      {&cache::Metadata::cluster_size, 17, "the metadata has cluster_size 17; allowed: 1 to 16"},
      {&cache::Metadata::dynamic_smem_bytes, -1, "dynamic_smem_bytes -1; allowed: 0 to "},
      {&cache::Metadata::dynamic_smem_bytes, 232449, "dynamic_smem_bytes 232449; allowed: 0 to "},
      {&cache::Metadata::static_smem_bytes, 12345, "static_smem_bytes 12345, the ELF image "},
      {&cache::Metadata::registers, 0, "the metadata has registers 0, the ELF image "},
      {&cache::Metadata::spill_load_bytes, -1, "spill_load_bytes -1; allowed: 0 to "},
      {&cache::Metadata::stack_bytes, -1, "stack_bytes -1; allowed: 0 to "},
  };
  for (const auto& c : kCases) {
    Entry forged = good;
    forged.metadata.*c.field = c.value;
    replace(forged);
    const Outcome outcome = shell_.run({"cache", "verify", "--json"});
    EXPECT_EQ(outcome.exit_code, 3) << c.reason;
    EXPECT_THAT(outcome.json().at("findings").at(0).at("reason").get<std::string>(),
                HasSubstr(c.reason));
    const std::string archive = (shell_.folder() / "forged.tar").string();
    ASSERT_EQ(shell_.run({"cache", "export", archive}).exit_code, 0);
    Shell target;
    const Outcome imported = target.run({"cache", "import", archive});
    EXPECT_EQ(imported.exit_code, 2);
    EXPECT_THAT(imported.err, HasSubstr(c.reason));
  }
}

// The entry passes the cache's reader, but no driver should get its cubin.
TEST_F(CacheKernels, ImportRefusesACubinThatIsNotTheKernel) {
  Entry hollow = load();
  hollow.cubin.assign(64, 0);
  replace(hollow);
  const std::string archive = (shell_.folder() / "hollow.tar").string();
  ASSERT_EQ(shell_.run({"cache", "export", archive}).exit_code, 0);
  shell_.set("OCTILE_CACHE_DIR", (shell_.folder() / "other").string());
  const Outcome outcome = shell_.run({"cache", "import", archive});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_FALSE(fs::exists(shell_.folder() / "other/v1"));
}

}  // namespace
}  // namespace octile::tests
