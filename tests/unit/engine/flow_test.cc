// The engine's path from problem to cubin: where a kernel comes from, and what happens if the cache
// or the compiler fails. NVRTC is real; without it these tests skip.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/engine/cache_entry.h"
#include "runtime/engine/engine.h"
#include "tests/support/api_handles.h"

namespace octile {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;

struct Handle {
  explicit Handle(EngineOptions options)
      : logger(
            [this](LogLevel level, const std::string& message) {
              if (level == LogLevel::kWarning) warnings.push_back(message);
            },
            LogLevel::kDebug),
        engine(std::move(options), logger) {}

  std::vector<std::string> warnings;
  Logger logger;
  Engine engine;
};

class EngineFlow : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Nvrtc::open()) GTEST_SKIP() << "no NVRTC";
  }
  EngineOptions options(bool offline = false) const { return {cache.path(), {}, offline}; }
  Result<Built> build(Handle& handle) { return handle.engine.kernel_for(problem, 1, *device); }

  test::TempFolder cache;
  const DeviceSpec* device = find_device("h200");
  Problem problem = *parse_problem(test::kQuantizeText);
};

TEST_F(EngineFlow, MissThenMemoryThenHit) {
  Handle first(options());
  const auto miss = build(first);
  ASSERT_TRUE(miss) << miss.error().message;
  EXPECT_EQ(miss->state, CacheState::kMiss);
  EXPECT_GT(miss->kernel->registers, 0);
  EXPECT_EQ(miss->kernel->spill_store_bytes, 0);
  const auto memory = build(first);
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->state, CacheState::kMemory);
  EXPECT_EQ(memory->kernel, miss->kernel);
  Handle second(options());
  const auto hit = build(second);
  ASSERT_TRUE(hit);
  EXPECT_EQ(hit->state, CacheState::kHit);
  EXPECT_EQ(hit->kernel->cubin, miss->kernel->cubin);
  EXPECT_EQ(hit->kernel->registers, miss->kernel->registers);
  EXPECT_EQ(hit->kernel->compile_ms, miss->kernel->compile_ms);
  EXPECT_EQ(hit->kernel->toolchain, miss->kernel->toolchain);
  EXPECT_EQ(hit->kernel->source_digest, miss->kernel->source_digest);
  EXPECT_TRUE(second.warnings.empty());
}

TEST_F(EngineFlow, WithoutAFolderEveryHandleCompiles) {
  for (int i = 0; i < 2; ++i) {
    Handle handle(EngineOptions{});
    const auto built = build(handle);
    ASSERT_TRUE(built) << built.error().message;
    EXPECT_EQ(built->state, CacheState::kMiss);
  }
}

TEST_F(EngineFlow, ACubinThatIsNotTheKernelIsAMiss) {
  {
    Handle handle(options());
    auto built = build(handle);
    ASSERT_TRUE(built) << built.error().message;
    // The same identity holds another kernel's binary, with valid checksums.
    auto stranger = handle.engine.kernel_for(
        *parse_problem("quantize rows=? cols=384 x=bf16 q=e4m3:128x128 out=row"), 1, *device);
    ASSERT_TRUE(stranger) << stranger.error().message;
    KernelBuild forged = *built->kernel;
    forged.cubin = stranger->kernel->cubin;
    fs::remove_all(cache.path());
    ASSERT_TRUE(handle.engine.store().publish(
        entry_of_build(forged, identity_of(forged.emitted, *device), test::kQuantizeText)));
  }
  Handle handle(options());
  const auto built = build(handle);
  ASSERT_TRUE(built) << built.error().message;
  EXPECT_EQ(built->state, CacheState::kMiss);
  EXPECT_THAT(handle.warnings, Contains(HasSubstr("is not used")));
  Handle after(options());
  EXPECT_EQ(build(after)->state, CacheState::kHit) << "the good kernel replaced it";
}

TEST_F(EngineFlow, OfflineTakesWhatIsThereAndNamesWhatIsNot) {
  Handle offline(options(true));
  const auto missing = build(offline);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kOffline);
  EXPECT_THAT(missing.error().message, HasSubstr(test::kQuantizeText));
  Handle online(options());
  ASSERT_TRUE(build(online));
  const auto found = build(offline);
  ASSERT_TRUE(found) << "a failure is not remembered: " << found.error().message;
  EXPECT_EQ(found->state, CacheState::kHit);
}

TEST_F(EngineFlow, WithoutACompilerTheCacheStillServes) {
  Handle maker(options());
  ASSERT_TRUE(build(maker));
  setenv("OCTILE_LIBNVRTC", "/nonexistent/libnvrtc.so", 1);
  Handle handle(options());
  const auto found = build(handle);
  const auto missing = handle.engine.kernel_for(
      *parse_problem("quantize rows=? cols=384 x=bf16 q=e5m2:1x128 out=row"), 1, *device);
  unsetenv("OCTILE_LIBNVRTC");
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->state, CacheState::kHit);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNoCompiler);
  EXPECT_THAT(missing.error().message, HasSubstr("e5m2"));
  EXPECT_THAT(missing.error().message, HasSubstr("/nonexistent/libnvrtc.so"));
}

TEST_F(EngineFlow, ThreadsCompileOnce) {
  Handle handle(options());
  std::atomic<int> compiled = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      const auto built = build(handle);
      if (built && built->state == CacheState::kMiss) ++compiled;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(compiled, 1);
}

TEST_F(EngineFlow, AnUnwritableFolderCostsOnlyTheCache) {
  std::ofstream(cache.path() + "/file") << "in the way";
  Handle handle({cache.path() + "/file/cache", {}, false});
  const auto built = build(handle);
  ASSERT_TRUE(built) << built.error().message;
  EXPECT_EQ(built->state, CacheState::kMiss);
  EXPECT_FALSE(handle.warnings.empty());
}

TEST_F(EngineFlow, AConfigurationOfAnotherFamilyIsADefect) {
  Handle handle(options());
  const auto built = handle.engine.build(problem, GemmConfig{}, *device);
  ASSERT_FALSE(built);
  EXPECT_EQ(built.error().code, ErrorCode::kInternal);
}

// ---- the toolchain's memo

class ToolchainMemo : public EngineFlow {
 protected:
  std::string memo() const { return cache.path() + "/toolchain.memo"; }
  cache::Toolchain remembered() {
    Compiler fresh(cache.path());
    return *fresh.toolchain();
  }
  void edit(const std::string& from, const std::string& to) {
    std::stringstream text;
    text << std::ifstream(memo()).rdbuf();
    std::string all = text.str();
    ASSERT_NE(all.find(from), std::string::npos) << all;
    all.replace(all.find(from), from.size(), to);
    std::ofstream(memo()) << all;
  }
};

TEST_F(ToolchainMemo, HoldsWhereNothingChanged) {
  Compiler compiler(cache.path());
  const auto opened = compiler.open();
  ASSERT_TRUE(opened);
  ASSERT_TRUE(fs::exists(memo()));
  EXPECT_EQ(remembered(), opened->toolchain);
}

// The memo is used only if all of it is valid. A forged name shows whether it was used.
TEST_F(ToolchainMemo, IsIgnoredWhereAnythingChanged) {
  Compiler compiler(cache.path());
  const auto opened = compiler.open();
  ASSERT_TRUE(opened);
  for (const auto& [from, to] : {std::pair("size ", "size 1"), std::pair("inode ", "inode 1"),
                                 std::pair("mtime ", "mtime 1"), std::pair("ctime ", "ctime 1"),
                                 std::pair("nvrtc /", "nvrtc //x"), std::pair("build ", "build 0"),
                                 std::pair("memo 3", "memo 2")}) {
    edit(from, to);
    EXPECT_EQ(remembered(), opened->toolchain) << from;  // opening rewrites the memo
    EXPECT_EQ(remembered(), opened->toolchain) << from;
  }
  std::ofstream(memo()) << "";
  EXPECT_EQ(remembered(), opened->toolchain);
}

// A forged memo with a right digest shows which roots and files are believed.
TEST_F(ToolchainMemo, IsBelievedOnlyIfNobodyElseMayWriteIt) {
  const auto real = Compiler(cache.path()).open();
  ASSERT_TRUE(real);
  std::stringstream text;
  text << std::ifstream(memo()).rdbuf();
  std::string forged = text.str();
  forged.replace(forged.find("build ") + 6, 32, std::string(32, 'f'));
  forged.resize(forged.rfind("digest "));
  forged += "digest " + cache::digest_hex(forged) + "\n";
  std::ofstream(memo()) << forged;
  EXPECT_EQ(remembered().build, std::string(32, 'f')) << "the forgery is believed as it stands";
  fs::permissions(memo(), fs::perms(0666));
  EXPECT_EQ(remembered(), real->toolchain);
  std::ofstream(memo()) << forged;
  fs::permissions(cache.path(), fs::perms(0777));
  EXPECT_EQ(remembered(), real->toolchain);
  fs::permissions(cache.path(), fs::perms(0700));
}

// In a folder that others may write, a link could lead a write to any file of this user's.
TEST_F(ToolchainMemo, NothingIsWrittenToARefusedRoot) {
  const std::string victim = cache.path() + "/victim";
  std::ofstream(victim) << "keep";
  for (const char* name : {"/toolchain.memo", "/nvrtc-digest.memo"})
    fs::create_symlink(victim, cache.path() + name);
  for (const int mode : {0777, 0700}) {
    fs::permissions(cache.path(), fs::perms(mode));
    ASSERT_TRUE(Compiler(cache.path()).open());
    std::stringstream text;
    text << std::ifstream(victim).rdbuf();
    EXPECT_EQ(text.str(), "keep");
    EXPECT_EQ(fs::is_symlink(memo()), mode == 0777) << "only a root of one's own is written";
  }
}

TEST_F(ToolchainMemo, AFifoOfItsNameIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo(memo().c_str(), 0600), 0);
  ASSERT_TRUE(Compiler(cache.path()).toolchain());
  EXPECT_TRUE(fs::is_regular_file(memo()));
}

// An installation whose builtins were changed in place, with size, modification time and inode
// kept, compiles other code.
TEST_F(ToolchainMemo, SeesBuiltinsThatWereChangedInPlace) {
  const auto real = Nvrtc::open();
  ASSERT_TRUE(real);
  const test::TempFolder copy;
  const fs::path folder = fs::path((*real)->identity().path).parent_path();
  for (const auto& file : fs::directory_iterator(folder)) {
    const std::string name = file.path().filename();
    if (name.starts_with("libnvrtc-builtins") && !name.ends_with(".a") &&
        name.find(".alt.") == std::string::npos)
      fs::copy_file(file.path(), copy.path() + "/" + name);
  }
  const std::string library = copy.path() + "/libnvrtc.so.13";
  fs::copy_file((*real)->identity().path, library);
  const std::string builtins = copy.path() + "/" +
                               fmt::format("libnvrtc-builtins.so.{}.{}", (*real)->identity().major,
                                           (*real)->identity().minor);
  ASSERT_TRUE(fs::exists(builtins));
  setenv("OCTILE_LIBNVRTC", library.c_str(), 1);
  const cache::Toolchain before = remembered();
  EXPECT_EQ(remembered(), before);
  struct stat status = {};
  ASSERT_EQ(::stat(builtins.c_str(), &status), 0);
  {
    std::fstream file(builtins, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('!');  // the end of a library is its section headers, which a loader does not read
  }
  const timespec times[] = {status.st_atim, status.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, builtins.c_str(), times, 0), 0);
  const cache::Toolchain after = remembered();
  unsetenv("OCTILE_LIBNVRTC");
  EXPECT_EQ(after.compiler, before.compiler);
  EXPECT_NE(after.build, before.build);
}

// ---- other processes

constexpr const char* kChildCache = "OCTILE_TEST_CHILD_CACHE";

// Runs `copies` of one of the children below at once and returns the shell's exit status. A child
// is of no shard (`make check-fast` runs shards).
int run_children(const std::string& cache, const std::string& name, int copies) {
  setenv(kChildCache, cache.c_str(), 1);
  const std::string self = fs::read_symlink("/proc/self/exe");
  const std::string child = "env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX " + self +
                            " --gtest_also_run_disabled_tests --gtest_filter=Child.DISABLED_" +
                            name;
  std::string command = child;
  for (int i = 1; i < copies; ++i) command = child + " & " + command;
  const int status = std::system((command + "; result=$?; wait; exit $result").c_str());
  unsetenv(kChildCache);
  return status;
}

TEST_F(ToolchainMemo, SparesAFreshProcessTheCompiler) {
  Handle handle(options());
  ASSERT_TRUE(build(handle));
  EXPECT_EQ(run_children(cache.path(), "HitsWithoutOpeningNvrtc", 1), 0);
}

TEST(Child, DISABLED_HitsWithoutOpeningNvrtc) {
  Handle handle({getenv(kChildCache), {}, false});
  const auto built =
      handle.engine.kernel_for(*parse_problem(test::kQuantizeText), 1, *find_device("h200"));
  ASSERT_TRUE(built) << built.error().message;
  EXPECT_EQ(built->state, CacheState::kHit);
  std::stringstream maps;
  maps << std::ifstream("/proc/self/maps").rdbuf();
  EXPECT_EQ(maps.str().find("nvrtc"), std::string::npos) << "NVRTC was opened";
}

TEST_F(EngineFlow, ProcessesCompileOnceBetweenThem) {
  constexpr int kProcesses = 6;
  EXPECT_EQ(run_children(cache.path(), "BuildsAndReports", kProcesses), 0);
  int reports = 0;
  int compiled = 0;
  for (const auto& entry : fs::directory_iterator(cache.path())) {
    if (!entry.path().filename().string().starts_with("report.")) continue;
    std::string state;
    std::ifstream(entry.path()) >> state;
    ++reports;
    if (state == "miss") ++compiled;
  }
  EXPECT_EQ(reports, kProcesses);
  EXPECT_EQ(compiled, 1);
}

TEST(Child, DISABLED_BuildsAndReports) {
  const std::string folder = getenv(kChildCache);
  Handle handle({folder, {}, false});
  const auto built =
      handle.engine.kernel_for(*parse_problem(test::kQuantizeText), 1, *find_device("h200"));
  ASSERT_TRUE(built) << built.error().message;
  std::ofstream(folder + "/report." + std::to_string(::getpid())) << name_of(built->state);
}

}  // namespace
}  // namespace octile
