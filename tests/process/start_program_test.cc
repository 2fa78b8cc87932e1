// A program that the library starts ends if it is stopped, and where the system has no handles of
// processes.
#include "runtime/process/start_program.h"

#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <thread>

#include "tests/support/api_handles.h"

namespace octile::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

constexpr int kPassed = 42, kSkipped = 77;

bool becomes_true(const std::function<bool()>& condition) {
  const auto deadline = Clock::now() + seconds(30);
  while (!condition() && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(2));
  return condition();
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns the letter of a process's state; 'Z' also if there is none. One that has ended may stay a
// zombie where process 1 waits for none.
char state_of(const std::string& process) {
  const std::string text = text_of("/proc/" + process + "/stat");
  const std::size_t name_end = text.rfind(") ");
  return name_end == std::string::npos ? 'Z' : text[name_end + 2];
}

// A shell that says something and then does what it is told.
class Shell {
 public:
  explicit Shell(const std::string& command) {
    std::ofstream(folder_.path() + "/script")
        << "printf hello >&0\necho $$ >" << folder_.path() << "/new\nmv " << folder_.path()
        << "/new " << folder_.path() << "/process\n"
        << command << "\n";
    auto started = start_program("/bin/sh", folder_.path() + "/script");
    if (!started || !becomes_true([&] { return !process().empty(); })) return;
    started_.emplace(std::move(*started));
  }
  bool runs() const { return started_.has_value(); }
  void destroy() { started_.reset(); }
  // Returns the first bytes that come through the socket.
  std::string said() const {
    std::array<char, 5> bytes{};
    std::size_t got = 0;
    while (got < bytes.size()) {
      const ssize_t one = ::read(started_->socket.get(), bytes.data() + got, bytes.size() - got);
      if (one <= 0) break;
      got += static_cast<std::size_t>(one);
    }
    return {bytes.data(), got};
  }
  char state() const { return state_of(process()); }

 private:
  std::string process() const {
    std::string number = text_of(folder_.path() + "/process");
    return number.substr(0, number.find('\n'));
  }
  TempFolder folder_;
  std::optional<StartedProgram> started_;
};

// In the second case this process waits for the programs' ends, by a process in between, which has
// all of this process's memory.
class StoppedProgram : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { ::prctl(PR_SET_CHILD_SUBREAPER, GetParam() ? 1 : 0, 0, 0, 0); }
  void TearDown() override { ::prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); }
};

TEST_P(StoppedProgram, EndsWithItsObject) {
  Shell shell("kill -STOP $$");
  ASSERT_TRUE(shell.runs());
  EXPECT_EQ(shell.said(), "hello");
  ASSERT_TRUE(becomes_true([&] { return shell.state() == 'T'; }));
  const auto begin = Clock::now();
  shell.destroy();
  EXPECT_LT(Clock::now() - begin, milliseconds(900)) << "nobody was waited for in vain";
  EXPECT_TRUE(becomes_true([&] { return shell.state() == 'Z'; }));
}

// The parent's program stays if a child of fork destroys its copy of the object.
TEST_P(StoppedProgram, IsNotAChildsToEnd) {
  Shell shell("while read -r line; do :; done <&0");
  ASSERT_TRUE(shell.runs());
  EXPECT_EQ(shell.said(), "hello");
  const pid_t child = ::fork();
  if (child == 0) {
    shell.destroy();
    ::_exit(kPassed);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), kPassed);
  EXPECT_NE(shell.state(), 'Z');
  shell.destroy();
  EXPECT_TRUE(becomes_true([&] { return shell.state() == 'Z'; }));
}

INSTANTIATE_TEST_SUITE_P(Of, StoppedProgram, ::testing::Bool(), [](const auto& one) {
  return std::string(one.param ? "AHostThatAdopts" : "AHostThatDoesNot");
});

// As an old kernel, or a container's profile, does.
bool refuse_handles() {
  std::array filter{sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                    sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
                    sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
                    sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// The program runs, nothing precedes its messages, and the end of the socket ends it.
TEST(StartProgram, WorksWithoutHandles) {
  const pid_t host = ::fork();
  if (host == 0) {
    ::alarm(60);
    if (!refuse_handles()) ::_exit(kSkipped);
    Shell shell("while read -r line; do :; done <&0");
    if (!shell.runs() || shell.said() != "hello" || shell.state() == 'Z') ::_exit(1);
    shell.destroy();
    ::_exit(becomes_true([&] { return shell.state() == 'Z'; }) ? kPassed : 2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(host, &status, 0), host);
  if (WEXITSTATUS(status) == kSkipped) GTEST_SKIP() << "no filter of system calls here";
  EXPECT_EQ(WEXITSTATUS(status), kPassed) << status;
}

}  // namespace
}  // namespace octile::test
