// The command starts on a bare Debian 12 or Ubuntu 24.04. Without libarchive, only the verbs that
// read and write archives fail.
#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/cli/command.h"
#include "tests/support/cache_testing.h"

namespace octile::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSubsetOf;

template <typename Value>
Value load(const std::string& bytes, std::size_t at) {
  Value value;
  std::memcpy(&value, bytes.substr(at, sizeof value).data(), sizeof value);
  return value;
}

// Returns the libraries that the loader opens before main(): DT_NEEDED of the dynamic section.
std::vector<std::string> needed_libraries(const char* path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  const std::string bytes = std::move(text).str();
  const auto header = load<Elf64_Ehdr>(bytes, 0);
  const auto section = [&](std::size_t i) {
    return load<Elf64_Shdr>(bytes, header.e_shoff + i * sizeof(Elf64_Shdr));
  };
  std::vector<std::string> names;
  for (std::size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr dynamic = section(i);
    if (dynamic.sh_type != SHT_DYNAMIC) continue;
    const std::size_t strings = section(dynamic.sh_link).sh_offset;
    for (std::size_t at = 0; at < dynamic.sh_size; at += sizeof(Elf64_Dyn)) {
      const auto entry = load<Elf64_Dyn>(bytes, dynamic.sh_offset + at);
      if (entry.d_tag == DT_NEEDED) names.emplace_back(&bytes[strings + entry.d_un.d_val]);
    }
  }
  return names;
}

// All of these come with apt and dpkg on both systems.
TEST(Libraries, TheCommandStartsOnABareSystem) {
  const std::vector<std::string> needed = needed_libraries(OCTILE_COMMAND);
  EXPECT_THAT(needed, ::testing::Contains("libc.so.6"));
  EXPECT_THAT(needed, IsSubsetOf({"libzstd.so.1", "libstdc++.so.6", "libm.so.6", "libgcc_s.so.1",
                                  "libc.so.6", "ld-linux-x86-64.so.2"}));
}

class WithoutLibarchive : public ::testing::Test {
 protected:
  WithoutLibarchive() {
    shell.set("OCTILE_LIBARCHIVE", "/nonexistent/libarchive.so.13");
    EXPECT_TRUE(cache::testing::publish_in((shell.folder() / "cache").string(),
                                           cache::testing::make_entry(1)));
  }
  Shell shell;
};

TEST_F(WithoutLibarchive, ExportAndImportSayWhatToInstall) {
  const std::string archive = (shell.folder() / "a.tar").string();
  for (const char* verb : {"export", "import"}) {
    const Outcome outcome = shell.run({"cache", verb, archive});
    EXPECT_EQ(outcome.exit_code, 1) << verb;
    EXPECT_EQ(outcome.out, "") << verb;
    EXPECT_THAT(outcome.err, HasSubstr("\"/nonexistent/libarchive.so.13\" cannot be opened"));
    EXPECT_THAT(outcome.err, HasSubstr("install the package libarchive13"));
    EXPECT_FALSE(std::filesystem::exists(archive)) << verb;
  }
}

TEST_F(WithoutLibarchive, DoctorSaysWhatThatCosts) {
  const nlohmann::json missing = shell.run({"doctor", "--json"}).json().at("missing");
  const auto libarchive = std::find_if(missing.begin(), missing.end(), [](const auto& item) {
    return item.at("what") == "libarchive";
  });
  ASSERT_NE(libarchive, missing.end());
  EXPECT_THAT(libarchive->at("cost"), HasSubstr("neither written nor read"));
}

TEST_F(WithoutLibarchive, EverythingElseWorks) {
  using Arguments = std::vector<std::string>;
  for (const Arguments& arguments :
       {Arguments{"--version"},
        {"help"},
        {"doctor"},
        {"emit", "--gemm", "64x7168x2048"},
        {"tune", "--gemm", "64x7168x2048", "--device", "h200", "--explain"},
        {"cache", "path"},
        {"cache", "config"},
        {"cache", "list"},
        {"cache", "stats"},
        {"cache", "prune", "--unused", "0s"}}) {
    const Outcome outcome = shell.run(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << arguments.back() << ": " << outcome.err;
  }
  if (has_compiler(shell)) {
    EXPECT_EQ(shell.run({"compile", "--quantize", "16x7168"}).exit_code, 0);
    EXPECT_EQ(shell.run({"cache", "verify"}).exit_code, 0);
    EXPECT_EQ(shell.run({"cache", "why", "--quantize", "16x7168"}).exit_code, 0);
  }
}

}  // namespace
}  // namespace octile::tests
