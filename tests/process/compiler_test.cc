// Compiles in processes of octile-compiler: what NVRTC does there does not reach this process.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "octile/octile.h"
#include "runtime/base/thread.h"
#include "runtime/compiler/compiler_pool.h"
#include "runtime/compiler/messages.h"
#include "runtime/process/find_program.h"
#include "tests/process/faults.h"
#include "tests/process/sanitized.h"
#include "tests/support/api_handles.h"
#include "tests/support/cache_testing.h"

namespace octile::test {
namespace {

using std::chrono::milliseconds;

const std::vector<std::string> kOptions{"--gpu-architecture=sm_90a"};
constexpr const char* kKernel = "extern \"C\" __global__ void k(float* x) { x[0] = 1; }";

std::string asks_for(const std::string& what) { return "// fake: " + what + "\n"; }

bool is_running(int process) { return ::kill(process, 0) == 0; }

// Waits until a process has a state of proc(5), or has ended.
bool has_state_within(const std::string& wanted, int process, milliseconds time) {
  for (const auto end = std::chrono::steady_clock::now() + time;
       std::chrono::steady_clock::now() < end;) {
    if (!is_running(process)) return true;
    std::ifstream stat("/proc/" + std::to_string(process) + "/stat");
    std::string id, name, state;
    if (stat >> id >> name >> state && state == wanted) return true;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return false;
}

// Waits for a process that init reaps.
bool ends_within(int process, milliseconds time) { return has_state_within("Z", process, time); }

// A pool whose NVRTC is the fake one.
class FakeCompiler : public ::testing::Test {
 protected:
  // In this process the fake NVRTC would do to the test what it is to do to the program.
  void SetUp() override {
    ASSERT_TRUE(find_program(kCompilerName)) << find_program(kCompilerName).error();
    ::setenv("OCTILE_LIBNVRTC", OCTILE_FAKE_NVRTC_PATH, 1);
  }
  void TearDown() override {
    ::unsetenv("OCTILE_LIBNVRTC");
    ::unsetenv("OCTILE_COMPILER");
  }

  CompilerPool pool(CompileLimits limits = {}) {
    return CompilerPool([this](const std::string& text) { warnings_.push_back(text); }, limits);
  }
  Error error_of(CompilerPool& pool, const std::string& what) {
    const auto output = pool.compile("k.cu", asks_for(what), kOptions);
    return output ? Error{ErrorCode::kInternal, "no error"} : output.error();
  }
  void expect_failure(CompilerPool& pool, const std::string& what, const std::string& part) {
    const Error error = error_of(pool, what);
    EXPECT_EQ(error.code, ErrorCode::kCompileFailed) << what << ": " << error.message;
    EXPECT_THAT(error.message, ::testing::HasSubstr(part)) << what;
    EXPECT_THAT(error.message, ::testing::HasSubstr("k.cu")) << what;
  }
  // The fake NVRTC ends, and its answer to such a source is not a cubin.
  void expect_answer_to_deep(CompilerPool& pool) {
    const Error error = error_of(pool, "deep");
    EXPECT_EQ(error.code, ErrorCode::kCompileFailed) << error.message;
    EXPECT_THAT(error.message, ::testing::HasSubstr("is not a usable cubin"));
  }
  int process_of(CompilerPool& pool) {
    const std::string message = error_of(pool, "pid").message;
    const std::size_t at = message.find("pid ");
    int process = 0;
    if (at != std::string::npos)
      std::from_chars(message.data() + at + 4, message.data() + message.size(), process);
    EXPECT_GT(process, 0) << message;
    return process;
  }

  std::vector<std::string> warnings_;
};

TEST_F(FakeCompiler, RunsInAnotherProcessThatIsKept) {
  CompilerPool compilers = pool();
  const int first = process_of(compilers);
  EXPECT_NE(first, ::getpid());
  EXPECT_EQ(process_of(compilers), first);
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(FakeCompiler, ACrashIsASentence) {
  CompilerPool compilers = pool();
  expect_failure(compilers, "crash", "signal 11");
  expect_failure(compilers, "overflow", "signal 11");
  expect_failure(compilers, "abort", "signal 6");
  expect_failure(compilers, "exit", "exit()");
  expect_failure(compilers, "killed", "killed");
  EXPECT_GT(process_of(compilers), 0) << "the next compile has a new process";
}

TEST_F(FakeCompiler, AnErrorKeepsItsLogAndItsProcess) {
  CompilerPool compilers = pool();
  const int process = process_of(compilers);
  expect_failure(compilers, "refuse", "line 1: error: refused");
  EXPECT_EQ(process_of(compilers), process);
}

TEST_F(FakeCompiler, AnEndlessCompileIsStopped) {
  CompilerPool compilers = pool({.time = milliseconds(200), .memory_bytes = 0});
  const int process = process_of(compilers);
  expect_failure(compilers, "endless", "did not end within 0.2 s");
  EXPECT_TRUE(ends_within(process, milliseconds(20'000)));
  EXPECT_NE(process_of(compilers), process);
}

// It says that it works, so that the bound on silence does not meet it.
TEST_F(FakeCompiler, ALongCompileIsNotSilent) {
  CompilerPool compilers =
      pool({.time = milliseconds(2000), .memory_bytes = 0, .time_of_silence = milliseconds(1500)});
  expect_failure(compilers, "endless", "did not end within 2 s");
}

// Takes the stack that this thread may need while it has a small limit.
int keep_stack() {
  volatile char bytes[std::size_t{1} << 20];
  for (std::size_t i = 0; i < sizeof(bytes); i += 4096) bytes[i] = 1;
  return bytes[4096];
}

class SmallStack {
 public:
  SmallStack() {
    keep_stack();
    ::getrlimit(RLIMIT_STACK, &before_);
    const rlimit small{std::size_t{64} << 10, before_.rlim_max};
    ::setrlimit(RLIMIT_STACK, &small);
  }
  ~SmallStack() { ::setrlimit(RLIMIT_STACK, &before_); }

 private:
  rlimit before_{};
};

// `ulimit -s 64` in a service's unit file.
TEST_F(FakeCompiler, ASmallStackOfTheHostIsNoBound) {
  CompilerPool compilers = pool();
  {
    const SmallStack small;
    ASSERT_TRUE(compilers.open());
  }
  expect_answer_to_deep(compilers);
}

TEST_F(FakeCompiler, NorIsThatOfTheThreadIfItCompilesHere) {
  ::setenv("OCTILE_COMPILER", "in-process", 1);
  CompilerPool compilers = pool();
  Thread([&] { expect_answer_to_deep(compilers); }, std::size_t{256} << 10).join();
}

TEST_F(FakeCompiler, MemoryHasABound) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer maps more than any bound";
#endif
  CompilerPool compilers =
      pool({.time = std::chrono::minutes(1), .memory_bytes = std::int64_t{256} << 20});
  expect_failure(compilers, "memory", "of the 256 MiB allowed");
}

TEST_F(FakeCompiler, AnAnswerThatIsNoCubinIsRefused) {
  CompilerPool compilers = pool();
  const Error error = error_of(compilers, "nothing");
  EXPECT_EQ(error.code, ErrorCode::kCompileFailed);
  EXPECT_THAT(error.message, ::testing::HasSubstr("the compiler's answer is not a usable cubin"));
}

// Neither the options nor the source of a request may exceed a message.
TEST_F(FakeCompiler, ARequestHasABound) {
  CompilerPool compilers = pool();
  const std::vector<std::string> many(kMostFields, "--option");
  const auto output = compilers.compile("k.cu", kKernel, many);
  ASSERT_FALSE(output);
  EXPECT_THAT(output.error().message, ::testing::HasSubstr("options; allowed"));
}

TEST_F(FakeCompiler, EachCompileAtATimeHasAProcess) {
  CompilerPool compilers = pool();
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back([&] { error_of(compilers, "slow"); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(process_of(compilers), 0);
}

TEST_F(FakeCompiler, ItsProcessEndsWithThePool) {
  int process = 0;
  {
    CompilerPool compilers = pool();
    process = process_of(compilers);
    EXPECT_TRUE(is_running(process));
  }
  EXPECT_TRUE(ends_within(process, milliseconds(20'000)));
}

// Also in the middle of a compile, and although nobody tells it.
TEST_F(FakeCompiler, ItsProcessEndsWithTheHost) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t host = ::fork();
  if (host == 0) {
    CompilerPool compilers = pool();
    const int process = process_of(compilers);
    if (::write(ends[1], &process, sizeof(process)) != sizeof(process)) ::_exit(1);
    error_of(compilers, "endless");
    ::_exit(0);
  }
  int process = 0;
  ASSERT_EQ(::read(ends[0], &process, sizeof(process)), static_cast<ssize_t>(sizeof(process)));
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_TRUE(is_running(process));
  ::kill(host, SIGKILL);
  ::waitpid(host, nullptr, 0);
  EXPECT_TRUE(ends_within(process, milliseconds(20'000)));
  ::close(ends[0]);
  ::close(ends[1]);
}

// A process that was killed while it waited is replaced without a word.
TEST_F(FakeCompiler, AKilledIdleProcessIsReplaced) {
  CompilerPool compilers = pool();
  const int process = process_of(compilers);
  ::kill(process, SIGKILL);
  EXPECT_NE(process_of(compilers), process);
}

// A stopped process costs as much as it may take to answer, and not a compile's time.
TEST_F(FakeCompiler, AStoppedIdleProcessIsReplaced) {
  CompilerPool compilers = pool({.time_to_answer = milliseconds(100)});
  const int process = process_of(compilers);
  ::kill(process, SIGSTOP);
  ASSERT_TRUE(has_state_within("T", process, milliseconds(20'000)));  // the signal may come late
  EXPECT_NE(process_of(compilers), process);
  ::kill(process, SIGCONT);
  EXPECT_TRUE(ends_within(process, milliseconds(20'000)));
}

TEST_F(FakeCompiler, AnIdleProcessThatAnswersIsKept) {
  CompilerPool compilers = pool();
  const int process = process_of(compilers);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(process_of(compilers), process);
}

// All kernels of a handle name one toolchain. Other bytes at the same path are another one.
TEST_F(FakeCompiler, AReplacedNvrtcIsNotUsed) {
  const cache::testing::TempDir folder;
  const std::string library = folder / "libnvrtc.so.13";
  std::filesystem::copy_file(OCTILE_FAKE_NVRTC_PATH, library);
  ::setenv("OCTILE_LIBNVRTC", library.c_str(), 1);
  CompilerPool compilers = pool();
  const auto identity = compilers.open();
  ASSERT_TRUE(identity);
  compilers.set_build(identity->build_digest().value());
  const auto replace = [&](const std::string& by_adding) {
    std::filesystem::copy_file(OCTILE_FAKE_NVRTC_PATH, library + ".new");
    std::ofstream(library + ".new", std::ios::app) << by_adding;
    std::filesystem::rename(library + ".new", library);
  };
  const int first = process_of(compilers);
  replace("");
  EXPECT_EQ(process_of(compilers), first) << "what runs has the file that it opened";
  ::kill(first, SIGKILL);
  const int second = process_of(compilers);
  EXPECT_NE(second, first) << "the same bytes are the same NVRTC";
  replace(" ");
  CompilerPool later = pool();
  EXPECT_NE(identity->build_digest().value(), later.open()->build_digest().value())
      << "the library that was opened first does not take the name of the one there now";
  ::kill(second, SIGKILL);
  const Error error = error_of(compilers, "pid");
  EXPECT_EQ(error.code, ErrorCode::kNoCompiler);
  EXPECT_THAT(error.message, ::testing::HasSubstr("\"" + library + "\" was replaced since"));
}

TEST_F(FakeCompiler, SignalsToTheProcessGroupDoNotReachIt) {
  const pid_t host = ::fork();
  if (host == 0) {
    ::alarm(60);
    ::setpgid(0, 0);
    (void)std::signal(SIGINT, SIG_IGN);
    (void)std::signal(SIGTERM, SIG_IGN);
    CompilerPool compilers = pool();
    const int process = process_of(compilers);
    std::thread interrupts([] {
      std::this_thread::sleep_for(milliseconds(100));
      ::kill(0, SIGINT);
      ::kill(0, SIGTERM);
    });
    const Error slow = error_of(compilers, "slow");
    interrupts.join();
    ::_exit(slow.message.find("not a usable cubin") != std::string::npos &&
                    process_of(compilers) == process
                ? 0
                : 1);
  }
  int status = 0;
  ::waitpid(host, &status, 0);
  EXPECT_EQ(status, 0);
}

// The host has no child that it did not start, hears of none, and has no descriptor of one.
TEST_F(FakeCompiler, TheHostHasNoChildByIt) {
  static std::atomic<int> heard = 0;
  struct sigaction action = {}, before = {};
  action.sa_handler = [](int) { ++heard; };
  sigaction(SIGCHLD, &action, &before);
  {
    CompilerPool compilers = pool();
    process_of(compilers);
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
    expect_failure(compilers, "crash", "signal 11");
  }
  EXPECT_EQ(heard, 0);
  sigaction(SIGCHLD, &before, nullptr);
}

// A host that adopts orphans, as process 1 of a container does, sees none and is left with none.
TEST_F(FakeCompiler, AHostThatAdoptsOrphansKeepsNone) {
  const pid_t host = ::fork();
  if (host == 0) {
    ::alarm(60);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    {
      CompilerPool compilers = pool();
      process_of(compilers);
      if (::waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD) ::_exit(2);
    }
    ::_exit(::waitpid(-1, nullptr, WNOHANG | __WALL) == -1 && errno == ECHILD ? 0 : 1);
  }
  int status = 0;
  ::waitpid(host, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(FakeCompiler, ItHasNoDescriptorOfTheHost) {
  const int open = ::open("/dev/null", O_RDONLY);  // not close-on-exec
  CompilerPool compilers = pool();
  const int process = process_of(compilers);
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/fd"))
    EXPECT_LE(std::stoi(entry.path().filename()), STDERR_FILENO) << entry.path();
  ::close(open);
}

// A child of the host's fork closes its copy, so that the process still ends with the host.
TEST_F(FakeCompiler, AForkedChildHasNoHoldOnIt) {
  int process = 0;
  pid_t child = 0;
  {
    CompilerPool compilers = pool();
    process = process_of(compilers);
    child = ::fork();
    if (child == 0) {
      ::alarm(60);
      ::pause();
      ::_exit(0);
    }
    EXPECT_EQ(process_of(compilers), process) << "the fork changes nothing for the parent";
  }
  EXPECT_TRUE(ends_within(process, milliseconds(20'000)));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_F(FakeCompiler, InThisProcessIfAskedFor) {
  ::setenv("OCTILE_COMPILER", "in-process", 1);
  CompilerPool compilers = pool();
  EXPECT_EQ(process_of(compilers), ::getpid());
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(FakeCompiler, InThisProcessIfNoneCanBeStarted) {
  for (const char* program : {"/nowhere/octile-compiler", "/bin/true", "/dev/null"}) {
    ::setenv("OCTILE_COMPILER", program, 1);
    warnings_.clear();
    CompilerPool compilers = pool();
    EXPECT_EQ(process_of(compilers), ::getpid());
    process_of(compilers);
    ASSERT_EQ(warnings_.size(), 1U) << "said once";
    EXPECT_THAT(warnings_[0], ::testing::HasSubstr(program));
  }
}

TEST_F(FakeCompiler, AMissingNvrtcIsNamed) {
  ::setenv("OCTILE_LIBNVRTC", "/nowhere/libnvrtc.so", 1);
  CompilerPool compilers = pool();
  const auto opened = compilers.open();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::kNoCompiler);
  EXPECT_THAT(opened.error().message, ::testing::HasSubstr("/nowhere/libnvrtc.so"));
}

TEST_F(FakeCompiler, StartsWithoutThreadsAndSaysWhatIsRefused) {
  const Refusal refusal(Refuse::kThreads, 1, Extent::kOn);
  CompilerPool compilers = pool();
  EXPECT_NE(process_of(compilers), ::getpid());
}

// Stands for octile-compiler: a script of these lines, with the program's argument as $1.
class ScriptedCompiler : public FakeCompiler {
 protected:
  void expect_warning(const std::string& lines, const std::string& part) {
    const cache::testing::TempDir folder;
    const std::string script = folder / "compiler";
    std::ofstream(script) << "#!/bin/sh\n" << lines << "\n";
    std::filesystem::permissions(script, std::filesystem::perms(0755));
    ::setenv("OCTILE_COMPILER", script.c_str(), 1);
    CompilerPool compilers = pool();
    EXPECT_EQ(process_of(compilers), ::getpid());
    ASSERT_EQ(warnings_.size(), 1U);
    EXPECT_THAT(warnings_[0], ::testing::HasSubstr(script + "\" " + part));
  }
};

TEST_F(ScriptedCompiler, ThatIsRefusedItsThreadSaysSo) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs more address space than this test allows";
#endif
  // The stack of its thread does not fit.
  const auto program = find_program(kCompilerName);
  ASSERT_TRUE(program);
  expect_warning(
      fmt::format("ulimit -v {} && exec '{}' \"$1\"", kStackBytesOfNvrtc >> 10, *program),
      "cannot start a thread: ");
}

TEST_F(ScriptedCompiler, ThatEndsEarlySaysSo) {
  // u32 22; u32 5 "ended"; u32 1 "0"; u32 4 "1000"
  expect_warning(R"(printf '\026\0\0\0\005\0\0\0ended\001\0\0\0000\004\0\0\0001000' >&0)",
                 "ended before it said that it runs");
}

// It costs its time once, and not with every kernel.
TEST_F(ScriptedCompiler, ThatSaysNothingIsWaitedForOnce) {
  const cache::testing::TempDir folder;
  const std::string started = folder / "started";
  const std::string script = folder / "compiler";
  std::ofstream(script) << "#!/bin/sh\necho >>" << started << "\nexec head -c 1 >/dev/null\n";
  std::filesystem::permissions(script, std::filesystem::perms(0755));
  ::setenv("OCTILE_COMPILER", script.c_str(), 1);
  CompilerPool compilers = pool({.time_to_start = milliseconds(200)});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(process_of(compilers), ::getpid());
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_THAT(warnings_[0], ::testing::HasSubstr("does not say within 0.2 s that it runs"));
  EXPECT_EQ(std::filesystem::file_size(started), 1U) << "one line a start";
}

// A size in a shell's printf.
std::string word(std::size_t value) {
  return fmt::format("\\{:03o}\\{:03o}\\000\\000", value & 255U, value >> 8);
}

// Returns the command by which a script says hello, with this NVRTC.
std::string says_hello(const NvrtcIdentity& nvrtc) {
  const std::string version =
      fmt::format("{}.{}.{}", OCTILE_VERSION_MAJOR, OCTILE_VERSION_MINOR, OCTILE_VERSION_PATCH);
  std::string hello;
  std::size_t bytes = 0;
  for (const std::string& field :
       {std::string("octile-compiler"), version, nvrtc.path, nvrtc.builtins_path,
        std::to_string(nvrtc.major), std::to_string(nvrtc.minor), nvrtc.files}) {
    hello += word(field.size()) + field;
    bytes += 4 + field.size();
  }
  return "printf '" + word(bytes) + hello + "' >&0\n";
}

TEST_F(ScriptedCompiler, ThatSaysHelloAndNothingElseIsLeft) {
  const auto nvrtc = Nvrtc::open();
  ASSERT_TRUE(nvrtc);
  const cache::testing::TempDir folder;
  const std::string started = folder / "started";
  const std::string script = folder / "compiler";
  std::ofstream(script) << "#!/bin/sh\necho >>" << started << "\n"
                        << says_hello((*nvrtc)->identity()) << "exec cat >/dev/null\n";
  std::filesystem::permissions(script, std::filesystem::perms(0755));
  ::setenv("OCTILE_COMPILER", script.c_str(), 1);
  CompilerPool compilers = pool({.time_of_silence = milliseconds(200)});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(process_of(compilers), ::getpid());
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_THAT(warnings_[0], ::testing::HasSubstr("said nothing for 0.2 s while it compiled k.cu"));
  EXPECT_EQ(std::filesystem::file_size(started), 2U) << "one line a start";
}

// A hello, and then bytes that are not an answer.
TEST_F(ScriptedCompiler, ThatAnswersNonsenseSaysSo) {
  for (const std::string& answer : {word(6) + word(9) + "ab", word(6) + word(2) + "ab"}) {
    const cache::testing::TempDir folder;
    const std::string script = folder / "compiler";
    std::ofstream(script) << "#!/bin/sh\n"
                          << says_hello({"/x", "", 13, 0, ""}) << "head -c 1 >/dev/null\nprintf '"
                          << answer << "' >&0\nsleep 1\n";
    std::filesystem::permissions(script, std::filesystem::perms(0755));
    ::setenv("OCTILE_COMPILER", script.c_str(), 1);
    CompilerPool compilers = pool();
    expect_failure(compilers, "pid", "octile-compiler sent bytes that are not an answer");
  }
}

// A refused block must not leave the socket of a program that runs.
TEST_F(FakeCompiler, RefusedMemoryLosesNoDescriptor) {
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  ::setenv("OCTILE_COMPILER", "in-process", 1);
  {
    CompilerPool compilers = pool();
    ASSERT_TRUE(compilers.open()) << "the library is loaded once and stays";
  }
  ::unsetenv("OCTILE_COMPILER");
  const auto before = descriptors();
  bool refused = true;
  for (int nth = 1; refused && nth < 1000; ++nth) {
    {
      CompilerPool compilers = pool();
      const Refusal refusal(Refuse::kMemory, nth, Extent::kOnce);
      try {
        static_cast<void>(compilers.open());
      } catch (const std::bad_alloc&) {  // the C boundary turns it into OUT_OF_MEMORY
      }
      refused = refusal.refused() > 0;
    }
    EXPECT_EQ(descriptors(), before) << "block " << nth;
  }
  EXPECT_FALSE(refused);
}

// A person who runs the program learns what it is for.
TEST(CompilerProgram, SaysWhatItIsForByHand) {
  const auto program = find_program(kCompilerName);
  ASSERT_TRUE(program) << program.error();
  for (const char* argument : {"", " --version", " 0:"}) {
    FILE* const said = ::popen((*program + argument + " 2>&1 </dev/null").c_str(), "r");
    ASSERT_NE(said, nullptr);
    char text[256] = {};
    static_cast<void>(std::fread(text, 1, sizeof(text) - 1, said));
    EXPECT_EQ(WEXITSTATUS(::pclose(said)), 2) << argument;
    EXPECT_THAT(text, ::testing::HasSubstr("octile-compiler: the Octile library starts"));
  }
}

// ---- messages

TEST(Channel, BoundsWhatItReceives) {
  const auto refused = [](const std::string& bytes) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
    EXPECT_EQ(::write(ends[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    ::close(ends[1]);
    Channel channel{cache::Descriptor(ends[0])};
    Channel::Message message;
    return channel.receive(message, Channel::Clock::now() + std::chrono::seconds(20));
  };
  const auto word = [](std::uint32_t value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  using Trouble = Channel::Trouble;
  EXPECT_EQ(refused(word(6) + word(2) + "ab"), std::nullopt);
  EXPECT_EQ(refused(word(0)), std::nullopt);
  EXPECT_EQ(refused(""), Trouble::kClosed);
  EXPECT_EQ(refused(word(6) + word(2)), Trouble::kClosed);
  EXPECT_EQ(refused(word(6) + word(3) + "ab"), Trouble::kNonsense);
  EXPECT_EQ(refused(word(6) + word(~0U) + "ab"), Trouble::kNonsense);
  EXPECT_EQ(refused(word(5) + word(0) + "a"), Trouble::kNonsense);
  EXPECT_EQ(refused(word(~0U)), Trouble::kNonsense);
  std::string many;
  for (std::size_t i = 0; i <= kMostFields; ++i) many += word(0);
  EXPECT_EQ(refused(word(static_cast<std::uint32_t>(many.size())) + many), Trouble::kNonsense);
}

TEST(Channel, ADeadlinePasses) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  Channel channel{cache::Descriptor(ends[0])};
  Channel::Message message;
  EXPECT_EQ(channel.receive(message, Channel::Clock::now() + milliseconds(10)),
            Channel::Trouble::kTooLate);
  // The other end reads nothing, so that the socket is full at some time.
  const Channel::Message large{std::string(std::size_t{32} << 20, 'x')};
  EXPECT_EQ(channel.send(large, Channel::Clock::now() + milliseconds(10)),
            Channel::Trouble::kTooLate);
  ::close(ends[1]);
}

// ---- with the real NVRTC

class Signals : public ::testing::Test {
 protected:
  static inline std::atomic<int> heard = 0;
  static void hear(int) { ++heard; }
};

// NVRTC in this process replaces these handlers while it compiles, and exits on the signals.
TEST_F(Signals, BelongToTheHostWhileKernelsCompile) {
  struct sigaction action = {}, int_before = {}, term_before = {};
  action.sa_handler = hear;
  sigaction(SIGINT, &action, &int_before);
  sigaction(SIGTERM, &action, &term_before);
  heard = 0;
  {
    const LibraryHandle library("", false, 2);
    const PlanHandle plan = make_plan(library, "h200", kQuantizeText);
    std::atomic<bool> done = false;
    std::atomic<int> sent = 0;
    std::thread sender([&] {
      while (!done) {
        ::kill(::getpid(), sent % 2 == 0 ? SIGINT : SIGTERM);
        ++sent;
        std::this_thread::sleep_for(milliseconds(1));
      }
    });
    EXPECT_EQ(octile_plan_prepare(plan.get(), 1, 8192, OCTILE_PREPARE_DEFAULT), OCTILE_OK)
        << octile_last_error();
    done = true;
    sender.join();
    EXPECT_GT(heard, sent / 4) << "signals of one kind that wait at once are one signal";
  }
  struct sigaction after = {};
  sigaction(SIGINT, nullptr, &after);
  EXPECT_EQ(after.sa_handler, hear);
  sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(after.sa_handler, hear);
  sigaction(SIGINT, &int_before, nullptr);
  sigaction(SIGTERM, &term_before, nullptr);
}

// The child may compile although the parent was compiling when it forked.
TEST(ForkWhileCompiling, BothCompile) {
  OCTILE_SKIP_THREADS_IN_A_FORKED_CHILD();
  const LibraryHandle library("", false, 2);
  const PlanHandle plan = make_plan(library, "h200", kQuantizeText);
  std::thread parent([&] {
    EXPECT_EQ(octile_plan_prepare(plan.get(), 1, 8192, OCTILE_PREPARE_DEFAULT), OCTILE_OK);
  });
  std::this_thread::sleep_for(milliseconds(30));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(120);
    octile_library_options options = {};
    options.struct_size = sizeof(options);
    options.disable_cache = 1;
    octile_library* own = nullptr;
    octile_plan* own_plan = nullptr;
    const bool done =
        octile_library_create(&options, &own) == OCTILE_OK &&
        octile_plan_create(own, "h200", kQuantizeText.c_str(), &own_plan) == OCTILE_OK &&
        octile_plan_prepare(own_plan, 1, 1, OCTILE_PREPARE_DEFAULT) == OCTILE_OK &&
        octile_plan_destroy(own_plan) == OCTILE_OK && octile_library_destroy(own) == OCTILE_OK;
    ::_exit(done ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  parent.join();
}

}  // namespace
}  // namespace octile::test
