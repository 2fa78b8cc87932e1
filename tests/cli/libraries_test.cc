// Shipped programs start on a bare Debian 12, Ubuntu 22.04 and RHEL 9. Without libarchive, only the
// verbs that read and write archives fail.
#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <utility>

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

// The libraries and versions that the loader has to find for a program or library.
struct Needs {
  std::vector<std::string> libraries;  // DT_NEEDED of the dynamic section
  // Each library with a version of its symbols: "libc.so.6 GLIBC_2.34".
  std::vector<std::string> versions;
};

class ElfFile {
 public:
  explicit ElfFile(const char* path) : bytes_(read_file(path)) {}

  Needs needs() const {
    Needs needs;
    const auto header = load<Elf64_Ehdr>(bytes_, 0);
    for (std::size_t i = 0; i < header.e_shnum; ++i) {
      const Elf64_Shdr one = section(i);
      if (one.sh_type == SHT_DYNAMIC) add_libraries(one, needs);
      if (one.sh_type == SHT_GNU_verneed) add_versions(one, needs);
    }
    return needs;
  }

 private:
  Elf64_Shdr section(std::size_t i) const {
    const auto header = load<Elf64_Ehdr>(bytes_, 0);
    return load<Elf64_Shdr>(bytes_, header.e_shoff + i * sizeof(Elf64_Shdr));
  }
  std::string string_of(const Elf64_Shdr& user, std::size_t at) const {
    return &bytes_[section(user.sh_link).sh_offset + at];
  }
  void add_libraries(const Elf64_Shdr& dynamic, Needs& needs) const {
    for (std::size_t at = 0; at < dynamic.sh_size; at += sizeof(Elf64_Dyn)) {
      const auto entry = load<Elf64_Dyn>(bytes_, dynamic.sh_offset + at);
      if (entry.d_tag == DT_NEEDED) needs.libraries.push_back(string_of(dynamic, entry.d_un.d_val));
    }
  }
  void add_versions(const Elf64_Shdr& table, Needs& needs) const {
    std::size_t at = table.sh_offset;
    for (std::size_t i = 0; i < table.sh_info; ++i) {
      const auto library = load<Elf64_Verneed>(bytes_, at);
      std::size_t version_at = at + library.vn_aux;
      for (std::size_t j = 0; j < library.vn_cnt; ++j) {
        const auto version = load<Elf64_Vernaux>(bytes_, version_at);
        needs.versions.push_back(string_of(table, library.vn_file) + " " +
                                 string_of(table, version.vna_name));
        version_at += version.vna_next;
      }
      at += library.vn_next;
    }
  }

  std::string bytes_;
};

class Shipped : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a build with a sanitizer needs its library and is not shipped";
#endif
  }
};

// These are part of every system that has apt or rpm: Debian 12, Ubuntu 22.04 and 24.04, RHEL 9.
TEST_P(Shipped, NeedsOnlyLibrariesOfABareSystem) {
  const Needs needs = ElfFile(GetParam()).needs();
  EXPECT_THAT(needs.libraries, ::testing::Contains("libc.so.6"));
  EXPECT_THAT(needs.libraries, IsSubsetOf({"libzstd.so.1", "libm.so.6", "libgcc_s.so.1",
                                           "libc.so.6", "ld-linux-x86-64.so.2"}));
}

// RHEL 9 has glibc 2.34 and the libgcc of GCC 11, the oldest of those systems. `objdump -T` names
// the symbol of a version that is too new.
TEST_P(Shipped, NeedsNoNewerLibrariesThanTheOldestSystemHas) {
  const Needs needs = ElfFile(GetParam()).needs();
  const std::regex pattern("\\S+ (GLIBC|GCC)_([0-9]+)\\.([0-9]+).*");
  const std::map<std::string, std::pair<int, int>> newest{{"GLIBC", {2, 34}}, {"GCC", {7, 0}}};
  EXPECT_GT(needs.versions.size(), 3U);
  for (const std::string& version : needs.versions) {
    std::smatch parts;
    ASSERT_TRUE(std::regex_match(version, parts, pattern)) << version;
    const std::pair found{std::stoi(parts[2]), std::stoi(parts[3])};
    EXPECT_LE(found, newest.at(parts[1])) << version;
  }
}

std::string shipped_name(const ::testing::TestParamInfo<const char*>& test) {
  constexpr std::array kShipped{"Command", "Compiler", "Library"};
  return kShipped.at(test.index);
}

INSTANTIATE_TEST_SUITE_P(Libraries, Shipped,
                         ::testing::Values(OCTILE_COMMAND, OCTILE_COMPILER_PROGRAM,
                                           OCTILE_SHARED_LIBRARY),
                         shipped_name);

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
  const fs::path archive = shell.folder() / "a.tar", given = shell.folder() / "given.tar";
  std::ofstream(given) << "an archive";
  for (const auto& [verb, file] : {std::pair{"export", archive}, std::pair{"import", given}}) {
    const Outcome outcome = shell.run({"cache", verb, file.string()});
    EXPECT_EQ(outcome.exit_code, 1) << verb;
    EXPECT_EQ(outcome.out, "") << verb;
    EXPECT_THAT(outcome.err, HasSubstr("\"/nonexistent/libarchive.so.13\" cannot be opened"));
    EXPECT_THAT(outcome.err, HasSubstr("install the package libarchive13"));
  }
  EXPECT_FALSE(fs::exists(archive));
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
