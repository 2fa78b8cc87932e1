// octile_soak: processes that share one cache, break it, kill each other and are started again, for
// some minutes. Ends with a verification and a count of everything that could have been lost.
//   octile_soak [--seconds N] [--workers N] [--seed N]
// NVRTC is a fake (tests/fake_nvrtc): the surroundings of a compile are tested. The exit status
// is 1 after a violation.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <new>
#include <set>
#include <string_view>
#include <thread>

#include "runtime/compiler/messages.h"
#include "runtime/process/find_program.h"
#include "tests/soak/tally.h"
#include "tests/soak/upgrades.h"
#include "tests/soak/worker.h"
#include "tests/support/cache_testing.h"

namespace octile::soak {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

// The environment of every process of this soak, its compilers included, has it.
constexpr const char* kMark = "OCTILE_SOAK";

struct Options {
  std::int64_t seconds = 20;
  std::int64_t workers = 4;
  std::int64_t seed = 1;
};

std::optional<Options> parse(std::span<char*> arguments) {
  Options options;
  for (std::size_t i = 1; i < arguments.size(); i += 2) {
    const std::string_view name = arguments[i];
    std::int64_t* const value = name == "--seconds"   ? &options.seconds
                                : name == "--workers" ? &options.workers
                                : name == "--seed"    ? &options.seed
                                                      : nullptr;
    if (value == nullptr || i + 1 == arguments.size()) return std::nullopt;
    const std::string_view text = arguments[i + 1];
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
    if (error != std::errc() || end != text.data() + text.size() || *value < 1) return std::nullopt;
  }
  if (options.workers > std::int64_t{kMostWorkers}) return std::nullopt;
  return options;
}

// Runs `work` in a process of its own and returns its exit status, or -1 if a signal ended it.
template <typename Work>
pid_t start(const Work& work) {
  const pid_t process = ::fork();
  if (process == 0) ::_exit(work());
  return process;
}

class Soak {
 public:
  explicit Soak(const Options& options)
      : options_(options),
        upgrades_(find_program(kCompilerName).value(), folder_ / "octile-compiler") {
    void* shared =
        ::mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) throw std::bad_alloc();
    tally_ = new (shared) Tally();
    setup_.root = folder_ / "root";
    setup_.problems = soak_problems();
    setup_.workers = static_cast<std::size_t>(options.workers);
  }

  bool run() {
    ::setenv("OCTILE_LIBNVRTC", OCTILE_FAKE_NVRTC_PATH, 1);
    ::setenv("OCTILE_COMPILER", (folder_ / "octile-compiler").c_str(), 1);
    ::setenv(kMark, (folder_ / "").c_str(), 1);
    int status = 0;
    setup_.quantised = quantise_on_the_host(&status);
    if (setup_.quantised.empty()) {
      tally_->violation("the host device does not quantise");
      return false;
    }
    work();
    end_workers();
    count_kernels();
    verify();
    look_for_processes();
    return tally_->violations() == 0;
  }

  void report() const;

 private:
  void start_worker(std::size_t slot) {
    const auto seed = static_cast<std::uint64_t>(options_.seed * 1'000'003 + tally_->starts++);
    tally_->workers[slot].process = start([&] { return run_worker(setup_, *tally_, slot, seed); });
    seen_[slot] = {tally_->workers[slot].rounds, Clock::now()};
  }

  // Returns false if the worker still runs.
  bool reap(std::size_t slot, int flags) {
    const pid_t process = tally_->workers[slot].process;
    int status = 0;
    if (process <= 0 || ::waitpid(process, &status, flags) != process) return false;
    tally_->workers[slot].process = 0;
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (status != 0 && !killed)
      tally_->violation(fmt::format("a worker ended with status {:#x}", status));
    return true;
  }

  void work() {
    constexpr milliseconds kBetweenUpgrades{300};
    const auto end = Clock::now() + seconds(options_.seconds);
    auto next_upgrade = Clock::now() + kBetweenUpgrades;
    for (std::size_t slot = 0; slot < setup_.workers; ++slot) start_worker(slot);
    while (Clock::now() < end) {
      for (std::size_t slot = 0; slot < setup_.workers; ++slot) {
        if (reap(slot, WNOHANG)) start_worker(slot);
        expect_progress(slot);
      }
      if (Clock::now() >= next_upgrade) {
        upgrades_.replace();
        next_upgrade = Clock::now() + kBetweenUpgrades;
      }
      std::this_thread::sleep_for(milliseconds(20));
    }
  }

  void expect_progress(std::size_t slot) {
    constexpr seconds kLongest{120};
    Seen& seen = seen_[slot];
    const std::int64_t rounds = tally_->workers[slot].rounds;
    if (rounds != seen.rounds) seen = {rounds, Clock::now()};
    if (Clock::now() - seen.since < kLongest) return;
    tally_->violation("a worker hangs");
    ::kill(tally_->workers[slot].process, SIGKILL);
    seen.since = Clock::now();
  }

  void end_workers() {
    tally_->stop = true;
    const auto latest = Clock::now() + seconds(120);
    for (std::size_t slot = 0; slot < setup_.workers; ++slot) {
      while (tally_->workers[slot].process > 0 && !reap(slot, WNOHANG)) {
        if (Clock::now() > latest) {
          tally_->violation("a worker does not end");
          ::kill(tally_->workers[slot].process, SIGKILL);
          reap(slot, 0);
        }
        std::this_thread::sleep_for(milliseconds(5));
      }
    }
  }

  // Two processes fill the emptied cache at once, and compile each kernel once between them. A
  // third finds them all.
  void count_kernels() {
    cache::PruneOptions all;
    all.unwanted = [](const cache::StoredEntry&) { return true; };
    if (!cache::prune(setup_.root, all)) tally_->violation("the cache cannot be emptied");
    const std::int64_t before = compiled_;
    std::array<pid_t, 2> both{};
    for (pid_t& process : both)
      process = start([&] { return prepare_all(setup_, *tally_) & 0xff; });
    for (const pid_t process : both) compiled_ += exit_of(process);
    const auto kernels = std::ssize(setup_.problems);
    if (compiled_ - before != kernels)
      tally_->violation(fmt::format("two processes compiled {} kernels of {}", compiled_, kernels));
    const int again = exit_of(start([&] { return prepare_all(setup_, *tally_) & 0xff; }));
    if (again != 0) tally_->violation(fmt::format("a warm cache compiled {} kernels", again));
  }

  static int exit_of(pid_t process) {
    int status = 0;
    ::waitpid(process, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0xff;
  }

  // Every entry is whole and the kernel of its source, and what dead writers left can be removed.
  void verify() {
    left_ = count_ending({".tmp", ".lock"});
    cache::StoreOptions options;
    options.writable_root = setup_.root;
    cache::Store store(options);
    std::vector<cache::UnreadPart> unread;
    for (const cache::Listing& listing : store.list(&unread)) {
      const auto entry = store.read(listing);
      ++entries_;
      if (!entry || !is_cubin_of(entry->cubin, entry->identity))
        tally_->violation(listing.path + ": " +
                          (entry ? "a wrong kernel" : entry.error().sentence));
    }
    for (const auto& part : unread) tally_->violation(part.sentence);
    if (entries_ != std::ssize(setup_.problems)) tally_->violation("entries are missing");
    const std::vector<std::string> set_aside =
        cache::testing::files_ending(setup_.root, ".damaged");
    damaged_ = std::ssize(set_aside);
    for (const std::string& path : set_aside) keep(path);
    const timespec then{std::time(nullptr) - 7200, 0};
    const timespec times[] = {then, then};
    for (const char* suffix : {".tmp", ".lock"}) {
      for (const std::string& path : cache::testing::files_ending(setup_.root, suffix))
        ::utimensat(AT_FDCWD, path.c_str(), times, 0);
    }
    cache::prune(setup_.root, {});
    if (cache::testing::files_ending(setup_.root + "/v1", ".tmp").size() +
            cache::testing::files_ending(setup_.root + "/v1", ".lock").size() !=
        0)
      tally_->violation("what dead writers left is not removed");
  }

  // Says of an entry that was set aside what a reader finds in it now, and copies it to a folder
  // that outlives the soak. Why it was set aside is the violation that its reader noted, unless the
  // reader was killed first.
  void keep(const std::string& path) {
    const auto bytes = cache::testing::read_bytes(path);
    const auto entry = cache::deserialize(bytes);
    std::error_code failed;
    if (kept_.empty()) {
      std::string pattern = fs::temp_directory_path(failed) / "octile-soak-XXXXXX";
      if (::mkdtemp(pattern.data()) != nullptr) kept_ = pattern;
    }
    const std::string copy = kept_ + "/" + fs::path(path).filename().string();
    fs::copy_file(path, copy, fs::copy_options::overwrite_existing, failed);
    tally_->violation(fmt::format("set aside: {}, {} bytes; read again: {}; {} {}", path,
                                  bytes.size(), entry ? "it is whole" : entry.error(),
                                  failed ? "cannot be copied to" : "copied to", copy));
  }

  std::int64_t count_ending(std::initializer_list<const char*> suffixes) const {
    std::int64_t count = 0;
    for (const char* suffix : suffixes)
      count += std::ssize(cache::testing::files_ending(setup_.root, suffix));
    return count;
  }

  // No compiler has outlived the workers.
  void look_for_processes() {
    const auto latest = Clock::now() + seconds(20);
    for (processes_ = count_processes(); processes_ != 0 && Clock::now() < latest;
         processes_ = count_processes())
      std::this_thread::sleep_for(milliseconds(50));
    if (processes_ != 0) tally_->violation(fmt::format("{} processes are left", processes_));
  }

  std::int64_t count_processes() const {
    const std::string mark = std::string(kMark) + "=" + (folder_ / "");
    std::int64_t count = 0;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      if (name == std::to_string(::getpid())) continue;
      std::ifstream file(entry.path() / "environ", std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      count += text.find(mark) != std::string::npos ? 1 : 0;
    }
    return count;
  }

  struct Seen {
    std::int64_t rounds = 0;
    Clock::time_point since;
  };

  const Options options_;
  const cache::testing::TempDir folder_;
  Upgrades upgrades_;
  Setup setup_;
  Tally* tally_ = nullptr;
  std::array<Seen, kMostWorkers> seen_{};
  std::int64_t compiled_ = 0;  // by the last two processes
  std::int64_t entries_ = 0;
  std::int64_t left_ = 0;
  std::int64_t damaged_ = 0;
  std::int64_t processes_ = 0;
  std::string kept_;  // the folder of copies; empty if there are none
};

void Soak::report() const {
  const std::pair<const char*, std::int64_t> lines[] = {
      {"workers at a time", options_.workers},
      {"workers started", tally_->starts},
      {"workers killed", tally_->kills},
      {"rounds", tally_->rounds},
      {"prepares that succeeded", tally_->prepares},
      {"kernels compiled", tally_->compiles},
      {"kernels read from disk", tally_->hits},
      {"entries evicted", tally_->evicted},
      {"runs on the host device", tally_->host_runs},
      {"forks", tally_->forks},
      {"file operations failed", tally_->file_faults},
      {"blocks of memory refused", tally_->memory_faults},
      {"threads refused", tally_->thread_faults},
      {"octile-compiler replaced", upgrades_.count()},
      {"libraries that compiled by themselves", tally_->own_process},
      {"calls that said OUT_OF_MEMORY", tally_->out_of_memory},
      {"kernels of the soak", std::ssize(setup_.problems)},
      {"compiled by two processes at the end", compiled_},
      {"entries verified", entries_},
      {"entries set aside", damaged_},
      {"temporary and lock files left by kills", left_},
      {"processes left", processes_},
      {"violations", tally_->violations()},
  };
  fmt::print("soak of {} s, seed {}\n", options_.seconds, options_.seed);
  for (const auto& [name, value] : lines) fmt::print("  {:<40} {:>10}\n", name, value);
  fmt::print("{}", tally_->sentences());
}

// The C library keeps a block of memory with each stack that it keeps for the next thread. How many
// stacks that are depends on how threads overlap, so that no count of blocks could be compared.
// Starts the program again if it keeps any; it reads this variable only at the start.
void keep_no_stacks(char** argv) {
  constexpr const char* kVariable = "GLIBC_TUNABLES";
  if (::getenv(kVariable) != nullptr) return;
  ::setenv(kVariable, "glibc.pthread.stack_cache_size=0", 1);
  ::execv("/proc/self/exe", argv);
}

}  // namespace
}  // namespace octile::soak

int main(int argc, char** argv) {
  octile::soak::keep_no_stacks(argv);
  const auto options = octile::soak::parse({argv, static_cast<std::size_t>(argc)});
  if (!options) {
    fmt::print(stderr, "octile_soak: allowed: --seconds N, --workers N (1 to {}), --seed N\n",
               octile::soak::kMostWorkers);
    return 2;
  }
  octile::soak::Soak soak(*options);
  const bool passed = soak.run();
  soak.report();
  return passed ? 0 : 1;
}
