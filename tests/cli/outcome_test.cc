// The exit status and the output name everything that could not be read, written, kept or removed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/cli/command.h"
#include "tests/support/cache_disks.h"
#include "tests/support/cache_testing.h"
#include "tests/support/file_size_limit.h"

namespace octile::tests {
namespace {

using cache::Entry;
using cache::testing::make_entry;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kEntries = 8;

class HonestCache : public ::testing::Test {
 protected:
  HonestCache() {
    for (int kernel = 0; kernel < kEntries; ++kernel)
      EXPECT_TRUE(cache::testing::publish_in(root(), make_entry(kernel)));
  }
  std::string root() const { return (shell_.folder() / "cache").string(); }
  std::string path(int kernel) const { return cache::testing::path_in(root(), make_entry(kernel)); }
  std::string file(const std::string& name) const { return (shell_.folder() / name).string(); }
  // The folder of one entry can then be listed by nobody, whoever runs the test.
  void lock_folder_of(int kernel) const {
    fs::permissions(fs::path(path(kernel)).parent_path(), fs::perms(0777));
  }

  Shell shell_;
};

// --- reading ---

TEST_F(HonestCache, AnUnreadableRootIsNoSuccess) {
  fs::permissions(root(), fs::perms(0777));  // refused
  for (const char* verb : {"verify", "list"}) {
    const Outcome outcome = shell_.run({"cache", verb, "--json"});
    EXPECT_EQ(outcome.exit_code, 3) << verb;
    EXPECT_THAT(outcome.out, HasSubstr("its mode is 0777")) << verb;
  }
  const json report = shell_.run({"cache", "verify", "--json"}).json();
  EXPECT_EQ(report.at("entries"), 0);
  EXPECT_EQ(report.at("unread").size(), 1);
  EXPECT_THAT(shell_.run({"cache", "verify"}).out, HasSubstr("not checked: "));
}

TEST_F(HonestCache, ShowSaysThatItsEntryIsDamaged) {
  const std::string digest = cache::testing::stem_of(make_entry(3)).identity;
  fs::resize_file(path(3), 100);
  for (const auto& options : {std::vector<std::string>{}, {"--json"}}) {
    std::vector<std::string> arguments{"cache", "show", digest};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = shell_.run(arguments);
    EXPECT_EQ(outcome.exit_code, 3);
    EXPECT_THAT(outcome.out, HasSubstr("damaged"));
  }
}

// The digest may well be right.
TEST_F(HonestCache, ShowDoesNotBlameTheDigestForAFolderThatIsNotRead) {
  lock_folder_of(3);
  const Outcome outcome =
      shell_.run({"cache", "show", cache::testing::stem_of(make_entry(3)).identity});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("that could be read begins with"));
  EXPECT_THAT(outcome.err, HasSubstr("its mode is 0777"));
}

TEST_F(HonestCache, WhySaysWhatItCouldNotRead) {
  lock_folder_of(3);
  const std::vector<std::string> why{"cache", "why", "--quantize", "16x7168"};
  const Outcome text = shell_.run(why);
  EXPECT_EQ(text.exit_code, 3);
  EXPECT_THAT(text.out, HasSubstr("not read     " + fs::path(path(3)).parent_path().string()));
  std::vector<std::string> json_too = why;
  json_too.push_back("--json");
  const json report = shell_.run(json_too).json();
  ASSERT_EQ(report.at("unread").size(), 1);
  EXPECT_THAT(report.at("unread").at(0).get<std::string>(), HasSubstr("its mode is 0777"));
}

TEST_F(HonestCache, DoctorLooksBelowTheRoot) {
  fs::permissions(root() + "/v1", fs::perms(0777));
  const Outcome outcome = shell_.run({"doctor"});
  EXPECT_THAT(outcome.out, HasSubstr("no cache: " + root() + "/v1: its mode is 0777"));
}

TEST_F(HonestCache, ARootThatIsMissingIsNoSuccessIfItWasNamed) {
  shell_.set("OCTILE_CACHE_ROOTS", file("nowhere"));
  EXPECT_EQ(shell_.run({"cache", "list"}).exit_code, 3);
  shell_.set("OCTILE_CACHE_ROOTS", "");
  shell_.set("OCTILE_CACHE_DIR", file("not yet"));
  EXPECT_EQ(shell_.run({"cache", "list"}).exit_code, 0) << "the first compile creates it";
  EXPECT_EQ(shell_.run({"cache", "verify"}).exit_code, 0);
}

TEST_F(HonestCache, ExportSaysThatAnEntryIsMissing) {
  lock_folder_of(3);
  const Outcome outcome = shell_.run({"cache", "export", file("a.tar"), "--json"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_LT(outcome.json().at("entries"), kEntries);
  ASSERT_EQ(outcome.json().at("unread").size(), 1);
  EXPECT_THAT(outcome.json().at("unread").at(0).get<std::string>(), HasSubstr("its mode is 0777"));
  EXPECT_THAT(outcome.err, HasSubstr("not in the archive, because it could not be read"));
}

TEST_F(HonestCache, ExportNamesTheDamagedEntriesThatItLeavesOut) {
  fs::resize_file(path(5), 100);
  const Outcome outcome = shell_.run({"cache", "export", file("a.tar"), "--json"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.json().at("entries"), kEntries - 1);
  EXPECT_EQ(outcome.json().at("damaged"), 1);
  EXPECT_THAT(outcome.json().at("left_out").at(0).get<std::string>(), HasSubstr(path(5)));
}

// Nobody may call an entry damaged that they may not read.
TEST_F(HonestCache, AnEntryThatIsNotReadIsNotCalledDamaged) {
  // Root may read anything.
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make entries that the user may not read";
  fs::permissions(shell_.folder(), fs::perms(0777));
  // The build may be in a folder that others cannot enter.
  const fs::path program = shell_.folder() / "octile";
  fs::copy_file(OCTILE_COMMAND, program);
  shell_.use(program);
  for (const auto& item : fs::recursive_directory_iterator(root()))
    fs::permissions(item.path(), fs::perms(item.is_directory() ? 0755 : 0600));
  fs::permissions(root(), fs::perms(0755));
  const std::string digest = cache::testing::stem_of(make_entry(3)).identity;
  const std::string report = cache::testing::without_rights([&]() -> std::string {
    for (const auto& verb : {std::vector<std::string>{"list"},
                             {"verify"},
                             {"show", digest},
                             {"export", file("a.tar")}}) {
      std::vector<std::string> arguments{"cache"};
      arguments.insert(arguments.end(), verb.begin(), verb.end());
      for (const bool as_json : {false, true}) {
        if (as_json) arguments.push_back("--json");
        const Outcome outcome = shell_.run(arguments);
        const std::string all = outcome.out + outcome.err;
        if (outcome.exit_code != 3)
          return verb[0] + ": exit status " + std::to_string(outcome.exit_code) + ": " + all;
        const std::string said = as_json ? "cannot open " + path(3) : "Permission denied";
        if (all.find(said) == std::string::npos) return verb[0] + ": " + all;
        if (all.find("damaged: ") != std::string::npos) return verb[0] + ": " + all;
        if (!as_json) continue;
        const json result = outcome.json();
        if (verb[0] == "verify" && (result.at("damaged") != 0 || result.at("good") != 0 ||
                                    result.at("unread").size() != kEntries))
          return all;
        if (verb[0] == "export" && (result.at("damaged") != 0 || result.at("entries") != 0 ||
                                    result.at("unread").size() != kEntries))
          return all;
      }
    }
    return "";
  });
  EXPECT_EQ(report, "");
}

// A damaged entry does not say whether the filter means it.
TEST_F(HonestCache, AFilterDoesNotHideWhatItCannotJudge) {
  fs::resize_file(path(5), 100);
  const std::vector<std::string> filter{"--problem", "gemm"};
  Outcome outcome = shell_.run({"cache", "export", file("a.tar"), "--problem", "gemm", "--json"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.json().at("entries"), kEntries - 1);
  EXPECT_THAT(outcome.json().at("unread").at(0).get<std::string>(), HasSubstr(path(5)));
  outcome = shell_.run({"cache", "verify", "--problem", "no such problem"});
  EXPECT_EQ(outcome.exit_code, 3);
}

// --- removing ---

TEST_F(HonestCache, PruneSaysThatAFolderIsPassedOver) {
  lock_folder_of(3);
  const Outcome outcome = shell_.run({"cache", "prune", "--unused", "0s", "--json"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.json().at("unread").size(), 1);
  EXPECT_GT(outcome.json().at("removed").size(), 0);
  EXPECT_TRUE(fs::exists(path(3)));
  EXPECT_THAT(outcome.err, HasSubstr("not every entry could be looked at"));
}

TEST_F(HonestCache, PruneSaysThatNothingCouldBeRemoved) {
  // Root may remove anything; nobody may not remove what is in root's folder.
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make entries that the user may not remove";
  fs::permissions(shell_.folder(), fs::perms(0777));
  // The build may be in a folder that others cannot enter.
  const fs::path program = shell_.folder() / "octile";
  fs::copy_file(OCTILE_COMMAND, program);
  shell_.use(program);
  for (const auto& item : fs::recursive_directory_iterator(root()))
    fs::permissions(item.path(), fs::perms(item.is_directory() ? 0755 : 0644));
  fs::permissions(root(), fs::perms(0755));
  const std::string report = cache::testing::without_rights([&]() -> std::string {
    const Outcome outcome = shell_.run({"cache", "prune", "--unused", "0s", "--json"});
    if (outcome.exit_code != 1) return "exit status " + std::to_string(outcome.exit_code);
    const json result = outcome.json();
    if (result.at("failed").size() != kEntries) return outcome.out;
    if (result.at("kept") != kEntries || !result.at("removed").empty()) return outcome.out;
    return outcome.err.find("8 of 8 entries cannot be removed") != std::string::npos ? ""
                                                                                     : outcome.err;
  });
  EXPECT_EQ(report, "");
}

// --- writing ---

TEST_F(HonestCache, OutputThatDoesNotArriveIsAFailure) {
  Shell shell;
  shell.set("OCTILE_CACHE_DIR", root());
  for (const char* target : {"/dev/full", ""}) {
    shell.redirect(1, target);
    for (const std::vector<std::string>& arguments : {std::vector<std::string>{"help"},
                                                      {"help", "cache"},
                                                      {"--help"},
                                                      {"--version"},
                                                      {"cache", "list", "--help"},
                                                      {"cache", "list"},
                                                      {"cache", "list", "--json"},
                                                      {"cache", "verify", "--json"},
                                                      {"cache", "path"},
                                                      {"doctor"},
                                                      {"emit", "--quantize", "16x7168"},
                                                      {"cache", "export", "-"}}) {
      const Outcome outcome = shell.run(arguments);
      EXPECT_EQ(outcome.exit_code, 1) << target << ::testing::PrintToString(arguments);
      EXPECT_THAT(outcome.err, HasSubstr("cannot be written: ")) << target;
    }
  }
}

// Progress, warnings and errors go to stderr. Whether they arrive changes nothing else.
TEST_F(HonestCache, StderrMayBeClosedOrFull) {
  fs::permissions(root(), fs::perms(0777));  // a warning
  for (const char* target : {"/dev/full", ""}) {
    Shell shell;
    shell.set("OCTILE_CACHE_DIR", root());
    shell.redirect(2, target);
    Outcome outcome = shell.run({"cache", "list"});
    EXPECT_EQ(outcome.exit_code, 3) << target;
    EXPECT_THAT(outcome.out, HasSubstr("0 entries"));
    EXPECT_EQ(shell.run({"no such subcommand"}).exit_code, 2);
    EXPECT_EQ(shell.run({"cache", "verify", "--progress"}).exit_code, 3);
    EXPECT_EQ(shell.run({"cache", "show", "ff"}).exit_code, 1) << "the entry may be in the root";
  }
}

// A file of the cache would otherwise get the number of the closed descriptor, and the output.
TEST_F(HonestCache, ClosedDescriptorsBecomeNoFileOfTheCache) {
  if (!has_compiler(shell_)) GTEST_SKIP() << "no NVRTC";
  for (const int fd : {1, 2}) shell_.redirect(fd, "");
  shell_.run({"compile", "--quantize", "16x7168", "--progress"});
  Shell after;
  after.set("OCTILE_CACHE_DIR", root());
  const Outcome list = after.run({"cache", "list", "--json"});
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_EQ(list.json().size(), kEntries + 1);
  for (const json& entry : list.json()) EXPECT_FALSE(entry.contains("damaged")) << entry;
}

TEST_F(HonestCache, ExportToStdoutIsTheArchive) {
  ASSERT_EQ(shell_.run({"cache", "export", file("a.tar")}).exit_code, 0);
  const Outcome outcome = shell_.run({"cache", "export", "-"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto bytes = cache::testing::read_bytes(file("a.tar"));
  EXPECT_EQ(outcome.out, std::string(bytes.begin(), bytes.end()));
  EXPECT_THAT(outcome.err, IsEmpty());
  const Outcome both = shell_.run({"cache", "export", "-", "--json"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, HasSubstr("allowed: one of the two"));
}

// Runs the command with a bound on the size of files, which is this program's own meanwhile.
Outcome run_with_short_files(const Shell& shell, const std::vector<std::string>& arguments) {
  const test::FileSizeLimit limit(4096);
  return shell.run(arguments);
}

// The kernel sends SIGXFSZ with that error.
TEST_F(HonestCache, ALimitOfAFilesSizeIsAFailureAndNoSignal) {
  const Outcome exported = run_with_short_files(shell_, {"cache", "export", file("x.tar")});
  EXPECT_EQ(exported.exit_code, 1);
  EXPECT_THAT(exported.err, HasSubstr("File too large"));
  const Outcome printed = run_with_short_files(shell_, {"emit", "--gemm", "64x7168x2048"});
  EXPECT_EQ(printed.exit_code, 1);
  EXPECT_THAT(printed.err, HasSubstr("stdout cannot be written: File too large"));
  for (const auto& item : fs::directory_iterator(shell_.folder()))
    EXPECT_FALSE(item.path().filename().string().starts_with(".octile-output")) << item.path();
}

// A file of the user's is whole, or as it was.
TEST_F(HonestCache, EmitReplacesAFileWholeOrNotAtAll) {
  const auto emit_to = [&](const std::string& name) {
    return std::vector<std::string>{"emit", "--gemm", "64x7168x2048", "-o", file(name)};
  };
  std::ofstream(file("kernel.cu")) << "before";
  EXPECT_EQ(run_with_short_files(shell_, emit_to("kernel.cu")).exit_code, 1);
  EXPECT_EQ(fs::file_size(file("kernel.cu")), 6);
  EXPECT_EQ(shell_.run(emit_to("kernel.cu")).exit_code, 0);
  EXPECT_GT(fs::file_size(file("kernel.cu")), 10'000);
  ASSERT_EQ(::mkfifo(file("fifo").c_str(), 0600), 0);
  const Outcome refused = shell_.run(emit_to("fifo"));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("is a FIFO"));
  EXPECT_THAT(shell_.run({"emit", "--gemm", "64x7168x2048", "-o", "-"}).out,
              HasSubstr("#define OCTILE_EMITTED 1"));
}

TEST_F(HonestCache, ExportReplacesNoFifo) {
  ASSERT_EQ(::mkfifo(file("fifo").c_str(), 0600), 0);
  const Outcome outcome = shell_.run({"cache", "export", file("fifo")});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("is a FIFO; allowed: a regular file"));
  EXPECT_TRUE(fs::is_fifo(file("fifo")));
}

TEST_F(HonestCache, TwoExportsToOnePathBothSucceed) {
  std::vector<std::thread> exports;
  std::vector<int> exit_codes(4, -1);
  for (int& code : exit_codes) {
    exports.emplace_back([&code, root = root(), target = file("a.tar")] {
      Shell shell;
      shell.set("OCTILE_CACHE_DIR", root);
      code = shell.run({"cache", "export", target}).exit_code;
    });
  }
  for (std::thread& one : exports) one.join();
  EXPECT_EQ(exit_codes, std::vector<int>(4, 0));
  EXPECT_EQ(cache::testing::files_ending(shell_.folder(), ".tmp").size(), 0U);
  Shell target;
  // The entries hold no ELF image, which import reports only after the archive's own checks.
  EXPECT_THAT(target.run({"cache", "import", file("a.tar"), "--dry-run"}).err, HasSubstr("ELF"));
}

// --- what is read has bounds, and so have sentences about it ---

TEST_F(HonestCache, AnEndlessFileIsRefused) {
  Outcome outcome = shell_.run({"compile", "--problem-file", "/dev/zero"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("/dev/zero:1: more than 65536 bytes"));
  outcome = shell_.run({"compile", "--model", "/dev/zero"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("more than 16777216 bytes"));
}

TEST_F(HonestCache, ALineAtTheBoundIsRead) {
  const std::string problem = "quantize rows=16 cols=7168 x=bf16 q=e4m3:1x128 out=row";
  std::ofstream(file("at")) << problem << std::string(65536 - problem.size(), ' ') << "\n";
  std::ofstream(file("beyond")) << problem << std::string(65537 - problem.size(), ' ') << "\n";
  std::ofstream(file("no newline")) << "# one problem\n" << problem;
  std::ofstream(file("zero")) << problem << std::string(1, '\0') << "junk\n";
  const auto tasks = [&](const std::string& name) {
    return shell_.run({"tune", "--explain", "--problem-file", file(name), "--device", "h200"});
  };
  EXPECT_EQ(tasks("at").exit_code, 0) << tasks("at").err;
  EXPECT_EQ(tasks("no newline").exit_code, 0) << tasks("no newline").err;
  EXPECT_THAT(tasks("beyond").err, HasSubstr("beyond:1: more than 65536 bytes"));
  EXPECT_EQ(tasks("zero").exit_code, 2) << "what follows a zero byte counts";
}

TEST_F(HonestCache, ASentenceQuotesNoMoreThanAPersonReads) {
  const Outcome outcome = shell_.run({"emit", "--problem", std::string(100'000, 'x')});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_LT(outcome.err.size(), 66'000U);
  EXPECT_GT(outcome.err.size(), 1'000U);
}

// --- printing ---

TEST_F(HonestCache, ControlCharactersOfMetadataDoNotReachTheTerminal) {
  Entry hostile = make_entry(99);
  const std::string escape =
      "\x1b]0;owned\x07\x1b[2J\xc2\x9b"
      "31m\r\n  forged";
  hostile.metadata.problem = "gemm " + escape;
  hostile.metadata.config = escape;
  hostile.identity.source += "// " + escape + "\n";
  hostile.toolchain.compiler = "nvrtc" + escape;
  ASSERT_TRUE(cache::testing::publish_in(root(), hostile));
  const std::string digest = cache::testing::stem_of(hostile).identity;
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"list"},
                                                    {"list", "--columns", "config,toolchain"},
                                                    {"list", "--json"},
                                                    {"show", digest},
                                                    {"show", digest, "--source"},
                                                    {"show", digest, "--json"},
                                                    {"verify"},
                                                    {"verify", "--json"},
                                                    {"why", "--quantize", "16x7168"}}) {
    std::vector<std::string> all{"cache"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Outcome outcome = shell_.run(all);
    for (const std::string& text : {outcome.out, outcome.err}) {
      for (const char* control : {"\x1b", "\x07", "\r", "\xc2\x9b"})
        EXPECT_THAT(text, Not(HasSubstr(control))) << ::testing::PrintToString(arguments);
    }
  }
  EXPECT_THAT(shell_.run({"cache", "list", "--wide"}).out, HasSubstr("gemm \\x1b]0;owned"));
  EXPECT_THAT(shell_.run({"cache", "list", "--wide"}).out, Not(HasSubstr("\n  forged")));
}

}  // namespace
}  // namespace octile::tests
