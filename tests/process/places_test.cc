// Where the library finds code to run: a place that somebody else could have filled is not used,
// and a chdir() changes no place.
#include <dlfcn.h>
#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "runtime/compiler/messages.h"
#include "runtime/process/find_program.h"
#include "runtime/process/own_folder.h"
#include "tests/support/api_handles.h"

namespace octile::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr uid_t kSomebody = 12345;

// Prepares a plan with the library at `path`, in the folder `after` from the time on that the
// library is open. Returns the warnings of its log.
std::string prepare_with(const std::string& path, const std::string& after) {
  void* const opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) return dlerror();
#define OCTILE_FIND(name) \
  const auto name = reinterpret_cast<decltype(&::octile_##name)>(dlsym(opened, "octile_" #name))
  OCTILE_FIND(library_create);
  OCTILE_FIND(plan_create);
  OCTILE_FIND(plan_prepare);
#undef OCTILE_FIND
  fs::current_path(after);
  std::string warnings;
  octile_library_options options = {};
  options.struct_size = sizeof(options);
  options.disable_cache = 1;
  options.log = [](octile_log_level, const char* text, void* to) {
    *static_cast<std::string*>(to) += std::string(text) + "\n";
  };
  options.log_user = &warnings;
  octile_library* library = nullptr;
  octile_plan* plan = nullptr;
  library_create(&options, &library);
  plan_create(library, "h200", kQuantizeText.c_str(), &plan);
  const octile_status status = plan_prepare(plan, 8, 8, OCTILE_PREPARE_DEFAULT);
  return warnings + (status == OCTILE_OK ? "prepared" : octile_status_name(status));
}

// A library that lies in a folder of its own, in a process of its own.
class Places : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("OCTILE_LIBNVRTC", OCTILE_FAKE_NVRTC_PATH, 1); }
  void TearDown() override {
    ::unsetenv("OCTILE_LIBNVRTC");
    ::unsetenv("OCTILE_COMPILER");
  }

  std::string at(const std::string& name) const { return folder_.path() + "/" + name; }
  void put_library(const std::string& folder) const {
    fs::create_directories(at(folder));
    fs::copy_file(OCTILE_LIBRARY_PATH, at(folder) + "/liboctile.so.0");
  }
  // Makes an octile-compiler that notes its start in the file `ran`.
  void put_compiler(const std::string& folder) const {
    fs::create_directories(at(folder));
    const std::string program = at(folder) + "/octile-compiler";
    std::ofstream(program) << "#!/bin/sh\n: >" << at("ran") << "\n";
    fs::permissions(program, fs::perms(0755));
  }
  bool ran() const { return fs::remove(at("ran")); }

  // Opens the library by `path` in the folder `first` and works in `second`.
  std::string prepare(const std::string& first, const std::string& path,
                      const std::string& second) const {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      fs::current_path(at(first));
      std::ofstream(at("said")) << prepare_with(path, at(second));
      ::_exit(0);
    }
    ::waitpid(child, nullptr, 0);
    std::ifstream said(at("said"));
    return {std::istreambuf_iterator<char>(said), {}};
  }

  TempFolder folder_;
};

TEST_F(Places, TheProgramBesideTheLibraryIsStarted) {
  put_library("lib");
  put_compiler("lib");
  EXPECT_THAT(prepare("lib", at("lib/liboctile.so.0"), "lib"), HasSubstr("prepared"));
  EXPECT_TRUE(ran());
}

TEST_F(Places, ARelativePathIsThatOfTheLoad) {
  put_library("first");
  put_library("second");
  put_compiler("second");
  const std::string said = prepare("first", "./liboctile.so.0", "second");
  EXPECT_THAT(said, HasSubstr("octile-compiler is neither at \"" + at("first/octile-compiler")));
  EXPECT_FALSE(ran());
}

TEST_F(Places, ARelativeVariableIsThatOfTheLoad) {
  put_library("first");
  put_compiler("second");
  ::setenv("OCTILE_COMPILER", "./octile-compiler", 1);
  const std::string said = prepare("first", "./liboctile.so.0", "second");
  EXPECT_THAT(said, HasSubstr(at("first/./octile-compiler") + "\" cannot be started"));
  EXPECT_FALSE(ran());
}

TEST_F(Places, AFolderBesideThatOthersMayWriteIsNotUsed) {
  put_library("lib");
  put_compiler("bin");
  EXPECT_THAT(prepare("lib", at("lib/liboctile.so.0"), "lib"), HasSubstr("prepared"));
  EXPECT_TRUE(ran()) << "nobody else may write it";
  fs::permissions(at("bin"), fs::perms(0777));
  const std::string said = prepare("lib", at("lib/liboctile.so.0"), "lib");
  EXPECT_THAT(said, HasSubstr("bin/octile-compiler\" is not started: " + at("bin") +
                              ": its mode is 0777; allowed: not writable by others"));
  EXPECT_THAT(said, HasSubstr("prepared"));
  EXPECT_FALSE(ran());
}

TEST_F(Places, AFolderBesideOfAnotherUserIsNotUsed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  put_library("lib");
  put_compiler("bin");
  ASSERT_EQ(::chown(at("bin").c_str(), kSomebody, kSomebody), 0);
  const std::string said = prepare("lib", at("lib/liboctile.so.0"), "lib");
  EXPECT_THAT(said, HasSubstr(at("bin") + ": it belongs to user 12345; allowed: this user (0)"));
  EXPECT_FALSE(ran());
}

// The log says so, and NVRTC is looked for elsewhere.
TEST_F(Places, AnNvrtcBesideThatOthersMayWriteIsNotUsed) {
  ::unsetenv("OCTILE_LIBNVRTC");
  put_library("app");
  fs::create_directory(at("lib"));
  fs::copy_file(OCTILE_FAKE_NVRTC_PATH, at("lib/libnvrtc.so.13"));
  const auto refusal = HasSubstr("lib/libnvrtc.so.13\" is not opened: " + at("lib"));
  EXPECT_THAT(prepare("app", at("app/liboctile.so.0"), "app"),
              ::testing::AllOf(HasSubstr("prepared"), ::testing::Not(refusal)));
  fs::permissions(at("lib"), fs::perms(0777));
  EXPECT_THAT(prepare("app", at("app/liboctile.so.0"), "app"), refusal);
}

// The library's own user decides anyway what runs in this process.
TEST_F(Places, TheOwnerOfTheLibraryIsTrusted) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  put_library("lib");
  put_compiler("bin");
  for (const char* path : {"lib/liboctile.so.0", "bin", "bin/octile-compiler"})
    ASSERT_EQ(::chown(at(path).c_str(), kSomebody, kSomebody), 0);
  EXPECT_THAT(prepare("lib", at("lib/liboctile.so.0"), "lib"), HasSubstr("prepared"));
  EXPECT_TRUE(ran());
}

// ---- the check itself

TEST_F(Places, CodeOfOthersIsRefused) {
  cache::FileOps ops;
  fs::create_directory(at("folder"));
  const std::string file = at("folder/code");
  std::ofstream(file).put(' ');
  const auto refusal = [&] {
    const auto checked = check_code(ops, file);
    return checked ? std::string() : checked.error().sentence;
  };
  fs::permissions(file, fs::perms(0644));
  fs::permissions(at("folder"), fs::perms(0755));
  EXPECT_EQ(refusal(), "");
  fs::permissions(at("folder"), fs::perms(01777));
  EXPECT_THAT(refusal(), HasSubstr(at("folder") + ": its mode is 1777"));
  fs::permissions(at("folder"), fs::perms(0755));
  fs::permissions(file, fs::perms(0666));
  EXPECT_THAT(refusal(), HasSubstr(file + ": its mode is 0666"));
  fs::permissions(file, fs::perms(0644));
  fs::create_symlink(file, at("link"));
  const auto linked = check_code(ops, at("link"));
  ASSERT_TRUE(linked) << "the link's own folder does not matter";
  EXPECT_EQ(*linked, fs::canonical(file));
  EXPECT_FALSE(check_code(ops, at("nothing")));
}

// Many systems give each user a group of the same number, and files that it may write.
TEST_F(Places, AGroupOfTheOwnersIsNoOther) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder to a group";
  cache::FileOps ops;
  const std::string file = at("code");
  std::ofstream(file).put(' ');
  fs::permissions(file, fs::perms(0664));
  ASSERT_EQ(::chown(file.c_str(), 0, 0), 0);
  EXPECT_TRUE(check_code(ops, file));
  ASSERT_EQ(::chown(file.c_str(), 0, kSomebody), 0);
  EXPECT_FALSE(check_code(ops, file));
}

// ---- the files themselves

// Returns what a 64-bit ELF file's dynamic section has for a tag, or 0.
std::uint64_t dynamic_value(const std::string& bytes, std::int64_t tag) {
  const auto at = [&]<typename T>(T, std::size_t offset) {
    T value{};
    if (offset + sizeof(T) <= bytes.size()) std::memcpy(&value, bytes.data() + offset, sizeof(T));
    return value;
  };
  const auto header = at(Elf64_Ehdr{}, 0);
  for (int i = 0; i < header.e_phnum; ++i) {
    const auto segment =
        at(Elf64_Phdr{}, header.e_phoff + static_cast<std::size_t>(i) * sizeof(Elf64_Phdr));
    if (segment.p_type != PT_DYNAMIC) continue;
    for (std::size_t offset = 0; offset < segment.p_filesz; offset += sizeof(Elf64_Dyn)) {
      const auto entry = at(Elf64_Dyn{}, segment.p_offset + offset);
      if (entry.d_tag == tag) return entry.d_un.d_val;
    }
  }
  return 0;
}

// A table of symbols that is filled lazily stays writable.
TEST(Files, HaveTheirSymbolsResolvedAtTheLoad) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "files with a sanitizer are not shipped";
#endif
  const auto program = find_program(kCompilerName);
  ASSERT_TRUE(program) << program.error();
  for (const std::string& path : {std::string(OCTILE_LIBRARY_PATH), *program}) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_NE(dynamic_value(bytes, DT_FLAGS) & DF_BIND_NOW, 0U) << path;
    EXPECT_NE(dynamic_value(bytes, DT_FLAGS_1) & DF_1_NOW, 0U) << path;
  }
}

}  // namespace
}  // namespace octile::test
