// A command with more rights than its caller does not let the caller choose libraries and folders.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/cli/command.h"
#include "tests/support/cache_disks.h"

namespace octile::tests {
namespace {

// Returns why no program can be run setuid from the shell's folder, or nothing.
std::string why_untested(const Shell& shell) {
#if defined(__SANITIZE_ADDRESS__)
  return "LeakSanitizer ends a process that it may not trace";
#endif
  if (::geteuid() != 0) return "only root can make a program setuid for another user";
  struct statvfs filesystem = {};
  if (::statvfs(shell.folder().c_str(), &filesystem) != 0) return "statvfs failed";
  return (filesystem.f_flag & ST_NOSUID) != 0 ? "setuid has no effect here" : "";
}

TEST(Setuid, TheEnvironmentIsNotRead) {
  Shell shell;
  if (const std::string why = why_untested(shell); !why.empty()) GTEST_SKIP() << why;
  const fs::path program = shell.folder() / "octile";
  fs::copy_file(OCTILE_COMMAND, program);
  fs::permissions(shell.folder(), fs::perms(0777));
  shell.set("OCTILE_CACHE_DIR", (shell.folder() / "callers").string());
  shell.set("OCTILE_CACHE_ROOTS", (shell.folder() / "callers too").string());
  shell.set("HOME", shell.folder().string());
  shell.use(program);

  const Outcome plain = shell.run({"cache", "path", "--json"});
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_EQ(plain.json().at("root"), (shell.folder() / "callers").string());

  constexpr uid_t kSomebody = 12345;
  ASSERT_EQ(::chown(program.c_str(), kSomebody, kSomebody), 0);
  ASSERT_EQ(::chmod(program.c_str(), 04755), 0);
  const Outcome with_rights = shell.run({"cache", "path", "--json"});
  ASSERT_EQ(with_rights.exit_code, 0) << with_rights.err;
  EXPECT_EQ(with_rights.out.find("callers"), std::string::npos) << with_rights.out;
  EXPECT_EQ(with_rights.out.find(shell.folder().string()), std::string::npos);

  // The folder that the program lies in is the caller's choice too: it may be a link.
  const Outcome doctor = shell.run({"doctor", "--json"});
  ASSERT_EQ(doctor.exit_code, 0) << doctor.err;
  const nlohmann::json searched = doctor.json().at("nvrtc").at("searched");
  ASSERT_FALSE(searched.empty());
  for (const nlohmann::json& place : searched) {
    EXPECT_THAT(place.at("why").get<std::string>(),
                ::testing::AnyOf("the loader's search", "the usual toolkit"));
  }
}

// A caller may put a hard link to the command into a folder of the caller's, and another
// octile-compiler beside it. That program would run with the command's rights.
TEST(Setuid, AnotherFolderDoesNotGiveTheCompiler) {
  Shell shell;
  if (const std::string why = why_untested(shell); !why.empty()) GTEST_SKIP() << why;
  const fs::path installed = shell.folder() / "installed";
  const fs::path callers = shell.folder() / "callers";
  const fs::path started = callers / "started";
  for (const fs::path& folder : {installed, callers}) fs::create_directory(folder);
  fs::permissions(shell.folder(), fs::perms(0777));
  fs::copy_file(OCTILE_COMMAND, installed / "octile");
  fs::create_hard_link(installed / "octile", callers / "octile");
  std::ofstream(callers / "octile-compiler") << "#!/bin/sh\n: >" << started << "\n";
  fs::permissions(callers / "octile-compiler", fs::perms(0755));
  shell.use(callers / "octile");
  const auto compile = [&shell] {
    return shell.run({"emit", "--quantize", "16x7168", "--device", "h200", "--dump",
                      (shell.folder() / "dumped").string()});
  };

  compile();
  EXPECT_TRUE(fs::exists(started)) << "without more rights the program beside the command is it";
  fs::remove(started);

  fs::permissions(callers, fs::perms(0777));  // it is another user's
  constexpr uid_t kSomebody = 12345;
  ASSERT_EQ(::chown((installed / "octile").c_str(), kSomebody, kSomebody), 0);
  ASSERT_EQ(::chmod((installed / "octile").c_str(), 04755), 0);
  const Outcome with_rights = compile();
  EXPECT_FALSE(fs::exists(started)) << with_rights.err;
  // The second sentence is of a machine without a CUDA toolkit: with more rights, NVRTC is looked
  // for in the system's folders alone.
  EXPECT_EQ(with_rights.exit_code, 1);
  EXPECT_THAT(with_rights.err, ::testing::AnyOf(::testing::HasSubstr("is not started by a process"),
                                                ::testing::HasSubstr("NVRTC 12.8 or newer was")));
}

// Nor does PATH, which the caller sets, give the disassembler.
TEST(Setuid, PathDoesNotGiveTheDisassembler) {
  Shell shell;
  if (const std::string why = why_untested(shell); !why.empty()) GTEST_SKIP() << why;
  const fs::path program = shell.folder() / "octile";
  const fs::path callers = shell.folder() / "callers";
  const fs::path started = callers / "started";
  fs::create_directory(callers);
  for (const fs::path& folder : {shell.folder(), callers}) fs::permissions(folder, fs::perms(0777));
  for (const char* name : {"nvdisasm", "cuobjdump"}) {
    std::ofstream(callers / name) << "#!/bin/sh\n: >" << started << "\n";
    fs::permissions(callers / name, fs::perms(0755));
  }
  fs::copy_file(OCTILE_COMMAND, program);
  shell.set("PATH", callers.string() + ":/usr/bin:/bin");
  shell.set("CUDA_HOME", "/nonexistent");
  shell.use(program);
  const auto dump = [&shell](const char* folder) {
    return shell.run({"emit", "--quantize", "128x7168", "--device", "h200", "--dump",
                      (shell.folder() / folder).string()});
  };

  const Outcome plain = dump("plain");
  EXPECT_TRUE(fs::exists(started)) << plain.err;
  fs::remove(started);

  constexpr uid_t kSomebody = 12345;
  ASSERT_EQ(::chown(program.c_str(), kSomebody, kSomebody), 0);
  ASSERT_EQ(::chmod(program.c_str(), 04755), 0);
  const Outcome with_rights = dump("with rights");
  EXPECT_FALSE(fs::exists(started)) << with_rights.err;
}

// Doctor lists the place, so that nobody wonders why another NVRTC is taken.
TEST(PlacesOfNvrtc, DoctorSaysWhyOneIsNotUsed) {
  Shell shell;
  const fs::path mine = shell.folder() / "mine";
  fs::create_directory(mine);
  fs::copy_file(OCTILE_COMMAND, mine / "octile");
  std::ofstream(mine / "libnvrtc.so.13").put(' ');
  fs::permissions(mine, fs::perms(0777));
  shell.use(mine / "octile");
  const Outcome doctor = shell.run({"doctor", "--json"});
  const nlohmann::json first = doctor.json().at("nvrtc").at("searched").at(0);
  EXPECT_EQ(first.at("why"), "beside Octile");
  EXPECT_THAT(first.at("outcome").get<std::string>(),
              ::testing::HasSubstr("libnvrtc.so.13\" is not opened: "));
}

// Octile may lie in a folder of its own below one that everybody may write.
TEST(Disassembler, AFolderBesideThatOthersMayWriteIsNotUsed) {
  Shell shell;
  const fs::path mine = shell.folder() / "mine";
  const fs::path beside = shell.folder() / "bin";
  const fs::path started = shell.folder() / "started";
  for (const fs::path& folder : {mine, beside}) fs::create_directory(folder);
  fs::copy_file(OCTILE_COMMAND, mine / "octile");
  std::ofstream(beside / "nvdisasm") << "#!/bin/sh\n: >" << started << "\n";
  fs::permissions(beside / "nvdisasm", fs::perms(0755));
  shell.set("PATH", (shell.folder() / "nothing").string());
  shell.set("CUDA_HOME", "/nonexistent");
  shell.use(mine / "octile");
  const auto dump = [&shell](const char* folder) {
    return shell.run({"emit", "--quantize", "128x7168", "--device", "h200", "--dump",
                      (shell.folder() / folder).string()});
  };
  const Outcome trusted = dump("trusted");
  EXPECT_TRUE(fs::exists(started)) << trusted.err;
  fs::remove(started);
  fs::permissions(beside, fs::perms(0777));
  const Outcome refused = dump("refused");
  EXPECT_FALSE(fs::exists(started)) << refused.err;
}

}  // namespace
}  // namespace octile::tests
