// A command with more rights than its caller does not let the caller choose libraries and folders.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/cli/command.h"
#include "tests/support/cache_disks.h"

namespace octile::tests {
namespace {

namespace fs = std::filesystem;

TEST(Setuid, TheEnvironmentIsNotRead) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make a program setuid for another user";
  Shell shell;
  const fs::path program = shell.folder() / "octile";
  struct statvfs filesystem = {};
  ASSERT_EQ(::statvfs(shell.folder().c_str(), &filesystem), 0);
  if ((filesystem.f_flag & ST_NOSUID) != 0) GTEST_SKIP() << "setuid has no effect here";
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

}  // namespace
}  // namespace octile::tests
