#include "tests/soak/worker.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <random>
#include <thread>

#include "runtime/api/boundary.h"
#include "tests/fake_nvrtc/cubin.h"
#include "tests/process/faults.h"
#include "tests/support/api_handles.h"
#include "tests/support/cache_testing.h"

namespace octile::soak {
namespace {

using cache::testing::HookedOps;
using cache::testing::Op;
using test::Extent;
using test::Refusal;
using test::Refuse;

constexpr const char* kDevice = "h200";
constexpr std::int64_t kRows = 64;

enum class Faults { kNone, kFiles, kMemory, kThreads };
const char* name_of(Faults faults) {
  constexpr const char* kNames[] = {"no faults", "failing file operations", "refused memory",
                                    "refused threads"};
  return kNames[static_cast<int>(faults)];
}

// Fails one call of about forty, from any thread.
std::shared_ptr<cache::FileOps> failing_files(std::uint64_t seed, Tally& tally) {
  auto calls = std::make_shared<std::atomic<std::uint64_t>>(seed);
  return std::make_shared<HookedOps>([calls, &tally](Op) -> std::optional<int> {
    constexpr int kErrors[] = {ENOSPC, EIO, ESTALE, EACCES, EMFILE, EINTR};
    std::minstd_rand random(static_cast<std::uint32_t>(calls->fetch_add(0x9e3779b9)));
    random.discard(3);
    if (random() % 40 != 0) return std::nullopt;
    ++tally.file_faults;
    return kErrors[random() % std::size(kErrors)];
  });
}

// Notes that a library refused an entry, because no fault damages one. Allocates nothing, because
// memory may be refused.
void note_refused_entry(Tally& tally, Faults faults, const std::string& message) {
  if (!message.starts_with("kernel cache entry ")) return;
  std::array<char, Tally::kSentenceBytes> sentence{};
  const auto end =
      fmt::format_to_n(sentence.data(), sentence.size(), "with {}: {}", name_of(faults), message);
  tally.violation({sentence.data(), std::min(end.size, sentence.size())});
}

// As octile_library_create() makes one, with file operations of the caller.
octile_library* make_library(const std::string& root, Tally& tally, Faults faults,
                             std::shared_ptr<cache::FileOps> ops) {
  EngineOptions engine;
  engine.writable_root = root;
  engine.file_ops = std::move(ops);
  const auto log = [&tally, faults](LogLevel, const std::string& message) {
    if (message.starts_with("kernels are compiled in this process")) ++tally.own_process;
    note_refused_entry(tally, faults, message);
  };
  std::unique_ptr<octile_library> handle(
      new octile_library{Library(LibraryOptions{std::move(engine), log, LogLevel::kWarning, 2})});
  api::note_handle(handle.get());
  return handle.release();
}

struct Usage {
  std::int64_t blocks = 0;
  std::int64_t descriptors = 0;
  std::int64_t threads = 0;

  static Usage now() {
    const auto count = [](const char* folder) {
      return static_cast<std::int64_t>(
          std::distance(std::filesystem::directory_iterator(folder), {}));
    };
    return {test::live_blocks(), count("/proc/self/fd"), count("/proc/self/task")};
  }
  // Returns the usage now. A thread that was joined stays in /proc until the kernel has ended it,
  // so more threads than `before` are looked at again for up to five seconds.
  static Usage settled(const Usage& before) {
    Usage usage = now();
    for (int i = 0; i < 500 && usage.threads > before.threads; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      usage = now();
    }
    return usage;
  }
  friend bool operator==(const Usage&, const Usage&) = default;
};

class Worker {
 public:
  Worker(const Setup& setup, Tally& tally, std::size_t slot, std::uint64_t seed)
      : setup_(setup), tally_(tally), slot_(slot), random_(seed) {}

  int run() {
    warm_up();
    const Usage before = Usage::settled({0, 0, 1});  // warm_up() joined its threads
    const std::int64_t share = 20 + pick(40);
    for (std::int64_t i = 0; i < share && !tally_.stop; ++i) {
      round();
      const Usage after = Usage::settled(before);
      if (after != before) {
        tally_.violation(
            fmt::format("after a round: {} blocks, {} descriptors, {} threads; before: {}, {}, {}",
                        after.blocks, after.descriptors, after.threads, before.blocks,
                        before.descriptors, before.threads));
        return 1;
      }
      ++tally_.rounds;
      ++tally_.workers[slot_].rounds;
    }
    return 0;
  }

 private:
  std::int64_t pick(std::int64_t below) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(below));
  }
  bool one_of(std::int64_t count) { return pick(count) == 0; }

  // Memory that a process allocates once is allocated now.
  void warm_up() {
    octile_library* library = make_library(setup_.root, tally_, Faults::kNone, nullptr);
    for (std::size_t i = 0; i < setup_.problems.size(); ++i) prepare(library, i, Faults::kNone);
    check("octile_library_destroy", octile_library_destroy(library), Faults::kNone);
    // Without a memo of the compiler, its files are read and their digest is kept.
    // NVRTC is loaded into this process, as it will be if octile-compiler is being replaced.
    const std::string program = ::getenv("OCTILE_COMPILER");
    for (const char* compiler : {program.c_str(), "in-process"}) {
      ::setenv("OCTILE_COMPILER", compiler, 1);
      library = make_library(setup_.root, tally_, Faults::kFiles,
                             std::make_shared<HookedOps>([](Op) { return EIO; }));
      prepare(library, 0, Faults::kFiles);
      check("octile_library_destroy", octile_library_destroy(library), Faults::kNone);
    }
    ::setenv("OCTILE_COMPILER", program.c_str(), 1);
    quantise(Faults::kNone);
    octile_plan_destroy(reinterpret_cast<octile_plan*>(this));  // a thread's sentence
  }

  void round() {
    constexpr Faults kKinds[] = {Faults::kNone,  Faults::kNone,   Faults::kFiles,
                                 Faults::kFiles, Faults::kMemory, Faults::kThreads};
    const Faults faults = kKinds[pick(std::size(kKinds))];
    octile_library* library =
        make_library(setup_.root, tally_, faults,
                     faults == Faults::kFiles ? failing_files(random_(), tally_) : nullptr);
    {
      const Refuse what = faults == Faults::kMemory    ? Refuse::kMemory
                          : faults == Faults::kThreads ? Refuse::kThreads
                                                       : Refuse::kNothing;
      const std::int64_t nth = 1 + pick(what == Refuse::kThreads ? 4 : 20000);
      const Refusal refusal(what, nth, one_of(2) ? Extent::kOnce : Extent::kOn);
      for (std::int64_t i = 1 + pick(3); i > 0; --i)
        prepare(library, static_cast<std::size_t>(pick(std::ssize(setup_.problems))), faults);
      quantise(faults);
      (faults == Faults::kThreads ? tally_.thread_faults : tally_.memory_faults) +=
          refusal.refused();
    }
    check("octile_library_destroy", octile_library_destroy(library), faults);
    if (one_of(6)) evict();
    if (one_of(12)) fork_and_quantise();
    if (one_of(20)) kill_another();
  }

  // Memory may be refused, and nothing else may go wrong: the cache is advisory, and a caller does
  // the work of threads that there are not.
  bool check(const char* call, octile_status status, Faults faults) {
    if (status == OCTILE_OK) return true;
    if (faults == Faults::kMemory && status == OCTILE_OUT_OF_MEMORY) {
      ++tally_.out_of_memory;
      return false;
    }
    tally_.violation(fmt::format("{} with {}: {}: {}", call, name_of(faults),
                                 octile_status_name(status), octile_last_error()));
    return false;
  }

  void prepare(octile_library* library, std::size_t problem, Faults faults) {
    octile_plan* plan = nullptr;
    if (!check("octile_plan_create",
               octile_plan_create(library, kDevice, setup_.problems[problem].c_str(), &plan),
               faults))
      return;
    if (check("octile_plan_prepare", octile_plan_prepare(plan, 1, 1, OCTILE_PREPARE_DEFAULT),
              faults)) {
      ++tally_.prepares;
      compare_kernels(*plan->plan, faults);
    }
    octile_plan_destroy(plan);
  }

  void compare_kernels(const Plan& plan, Faults faults) try {
    for (const Plan::Description& prepared : plan.kernels()) {
      const KernelBuild& build = *prepared.kernel->built.kernel;
      ++(build.origin == CacheState::kMiss ? tally_.compiles : tally_.hits);
      if (!is_cubin_of(build.cubin, identity_of(build.emitted, plan.target().spec)))
        tally_.violation("a wrong kernel for " + to_text(plan.problem()));
    }
  } catch (const std::bad_alloc&) {
    if (faults != Faults::kMemory) tally_.violation("std::bad_alloc without a refusal");
  }

  void quantise(Faults faults) try {
    int status = OCTILE_OK;
    const auto got = quantise_on_the_host(&status);
    if (!check("quantising on the host", static_cast<octile_status>(status), faults)) return;
    ++tally_.host_runs;
    if (got != setup_.quantised) tally_.violation("the host device gives other bytes");
  } catch (const std::bad_alloc&) {
    if (faults != Faults::kMemory) tally_.violation("std::bad_alloc without a refusal");
  }

  void evict() {
    cache::PruneOptions options;
    options.protect = std::chrono::seconds(0);
    options.max_bytes = pick(4) * 40'000;
    const auto pruned = cache::prune(setup_.root, options);
    if (!pruned) return tally_.violation("prune: " + pruned.error().sentence);
    tally_.evicted += std::ssize(pruned->removed);
    for (const auto& kept : pruned->failed) tally_.violation("prune: " + kept.reason);
  }

  void fork_and_quantise() {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      int status = OCTILE_OK;
      ::_exit(quantise_on_the_host(&status) == setup_.quantised ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ++tally_.forks;
    if (status != 0) tally_.violation(fmt::format("a forked child ended with {:#x}", status));
  }

  void kill_another() {
    const auto other = static_cast<std::size_t>(pick(static_cast<std::int64_t>(setup_.workers)));
    const pid_t process = tally_.workers[other].process;
    if (other == slot_ || process <= 0 || tally_.stop) return;
    if (::kill(process, SIGKILL) == 0) ++tally_.kills;
  }

  const Setup& setup_;
  Tally& tally_;
  std::size_t slot_;
  std::mt19937_64 random_;
};

}  // namespace

std::vector<std::string> soak_problems() {
  std::vector<std::string> problems;
  for (const char* type : {"bf16", "fp16"}) {
    for (const char* code : {"e4m3", "e5m2"}) {
      for (const char* layout : {"1x128 out=row", "1x128 out=both", "128x128 out=row"})
        problems.push_back(
            fmt::format("quantize rows=? cols=4096 x={} q={}:{}", type, code, layout));
    }
  }
  for (const char* source : {"relu", "silu", "mul(x0,2)", "add(x0,1)"})
    problems.push_back(
        fmt::format("quantize rows=? cols=4096 x=bf16 q=e4m3:1x128 out=row src={}", source));
  for (const char* type : {"bf16", "fp32"})
    problems.push_back(fmt::format(
        "gemm m=? n=4096 k=4096 a=e4m3:1x128 b=e4m3:128x128 d={} acc=0 promote=128", type));
  return problems;
}

std::vector<unsigned char> quantise_on_the_host(int* status) {
  test::QuantizeOperands operands;
  auto* const x = operands.x.at<std::uint16_t>();
  for (std::uint32_t i = 0; i < kRows * 384; ++i)
    x[i] = static_cast<std::uint16_t>(0x3000 + i * 40503 % 0x1800);
  octile_library_options options = {};
  options.struct_size = sizeof(options);
  options.disable_cache = 1;
  octile_library* library = nullptr;
  octile_plan* plan = nullptr;
  octile_status got = octile_library_create(&options, &library);
  if (got == OCTILE_OK)
    got = octile_plan_create(library, "host", test::kQuantizeText.c_str(), &plan);
  if (got == OCTILE_OK) {
    const QuantizeArguments arguments = operands.args(kRows);
    const octile_quantize_args args = arguments.call();
    got = octile_quantize_run(plan, &args, nullptr);
  }
  *status = got;
  octile_plan_destroy(plan);
  octile_library_destroy(library);
  if (got != OCTILE_OK) return {};
  const auto* q = operands.q.at<unsigned char>();
  const auto* scale = operands.scale.at<unsigned char>();
  std::vector<unsigned char> bytes(q, q + kRows * 384);
  bytes.insert(bytes.end(), scale, scale + 3 * kRows * 4);
  return bytes;
}

int run_worker(const Setup& setup, Tally& tally, std::size_t slot, std::uint64_t seed) {
  return Worker(setup, tally, slot, seed).run();
}

int prepare_all(const Setup& setup, Tally& tally) {
  octile_library* library = make_library(setup.root, tally, Faults::kNone, nullptr);
  int compiled = 0;
  for (const std::string& problem : setup.problems) {
    octile_plan* plan = nullptr;
    if (octile_plan_create(library, kDevice, problem.c_str(), &plan) != OCTILE_OK ||
        octile_plan_prepare(plan, 1, 1, OCTILE_PREPARE_DEFAULT) != OCTILE_OK) {
      tally.violation(problem + ": " + octile_last_error());
      return -1;
    }
    for (const Plan::Description& prepared : plan->plan->kernels())
      compiled += prepared.kernel->built.kernel->origin == CacheState::kMiss ? 1 : 0;
    octile_plan_destroy(plan);
  }
  octile_library_destroy(library);
  return compiled;
}

bool is_cubin_of(const std::vector<std::uint8_t>& cubin, const cache::Identity& identity) {
  const std::string wanted = fake_nvrtc::cubin_of(identity.source);
  return cubin.size() == wanted.size() &&
         std::memcmp(cubin.data(), wanted.data(), wanted.size()) == 0;
}

}  // namespace octile::soak
