// Measures the cost of the cache. It times a publish and its fsync, a listing of ten thousand
// entries, and a hit in a new process.
#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "tests/support/cache_testing.h"

namespace octile {
namespace {

using Clock = std::chrono::steady_clock;
constexpr const char* kGemm =
    "gemm m=? n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128";

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

struct Spread {
  double median, p95;
};
Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values[values.size() * 95 / 100]};
}

// The system's calls, with the time spent in fsync.
class TimedOps : public cache::FileOps {
 public:
  int fsync(int fd) override {
    const auto begin = Clock::now();
    const int result = FileOps::fsync(fd);
    fsync_ms += ms_since(begin);
    return result;
  }
  double fsync_ms = 0;
};

// Returns an entry as large as a GEMM's: 100 KB of source, which compresses, and 40 KB of cubin.
cache::Entry typical_entry(int kernel) {
  cache::Entry entry = cache::testing::make_entry(kernel);
  while (entry.identity.source.size() < 100'000) {
    entry.identity.source +=
        fmt::format("  const int step_{} = {};\n", entry.identity.source.size(), kernel);
  }
  std::mt19937 random(static_cast<unsigned>(kernel));
  entry.cubin.resize(40'000);
  for (std::uint8_t& byte : entry.cubin) byte = static_cast<std::uint8_t>(random());
  return entry;
}

void bench_puts(const std::string& root, int entries) {
  const auto ops = std::make_shared<TimedOps>();
  cache::StoreOptions options;
  options.writable_root = root;
  options.file_ops = ops;
  cache::Store store(options);
  std::vector<double> all, beside_fsync;
  for (int kernel = 0; kernel < entries; ++kernel) {
    const cache::Entry entry = typical_entry(kernel);
    ops->fsync_ms = 0;
    const auto begin = Clock::now();
    if (!store.publish(entry)) throw std::runtime_error("publish failed");
    all.push_back(ms_since(begin));
    beside_fsync.push_back(all.back() - ops->fsync_ms);
  }
  const Spread put = spread_of(all);
  const Spread beside = spread_of(beside_fsync);
  fmt::print("put, {} entries: {:.2f} ms median, {:.2f} p95; beside its fsync {:.2f} and {:.2f}\n",
             entries, put.median, put.p95, beside.median, beside.p95);
}

// Returns the wall time of a program, whose output is discarded.
double run_ms(const std::string& command) {
  const auto begin = Clock::now();
  // NOLINTNEXTLINE(cert-env33-c,concurrency-mt-unsafe): a fixed command, from one thread
  if (std::system((command + " >/dev/null").c_str()) != 0) {
    throw std::runtime_error(command + " failed");
  }
  return ms_since(begin);
}

void bench_list(const std::string& root) {
  ::setenv("OCTILE_CACHE_DIR", root.c_str(), 1);
  std::vector<double> times;
  for (int i = 0; i < 11; ++i) times.push_back(run_ms(OCTILE_COMMAND " cache list"));
  fmt::print("octile cache list: {:.0f} ms median of {} runs\n", spread_of(times).median,
             times.size());
}

// Returns the time from the handle to the cubin, with the choice, the emission and the key.
double call_ms(const std::string& root) {
  const auto begin = Clock::now();
  Logger logger(nullptr, LogLevel::kWarning);
  EngineOptions options;
  options.writable_root = root;
  Engine engine(options, logger);
  const auto built = engine.kernel_for(*parse_problem(kGemm), 4096, *find_device("h200"));
  if (!built) throw std::runtime_error(built.error().message);
  return ms_since(begin);
}

// Returns the store's part of that time: find, open, read and verify.
double store_ms(const std::string& root) {
  Logger logger(nullptr, LogLevel::kWarning);
  EngineOptions options;
  options.writable_root = root;
  Engine engine(options, logger);
  const Problem problem = *parse_problem(kGemm);
  const DeviceSpec& device = *find_device("h200");
  const auto emitted = emit(problem, engine.choose_config(problem, 4096, device).config, device,
                            embedded_templates());
  const cache::Identity identity = identity_of(*emitted, device);
  const auto begin = Clock::now();
  cache::StoreOptions store_options;
  store_options.writable_root = root;
  cache::Store store(store_options);
  const auto toolchain = engine.compiler().toolchain();
  if (!toolchain || !store.lookup(identity, *toolchain)) throw std::runtime_error("no hit");
  return ms_since(begin);
}

// Returns what this program prints when it is started again to measure one thing.
double measured_by(const std::string& self, const char* what, const std::string& root) {
  const std::string command = fmt::format("'{}' {} '{}'", self, what, root);
  // NOLINTNEXTLINE(cert-env33-c): this program's own path
  const std::unique_ptr<FILE, int (*)(FILE*)> out(::popen(command.c_str(), "r"), ::pclose);
  double ms = 0;
  // NOLINTNEXTLINE(cert-err34-c)
  if (out == nullptr || std::fscanf(out.get(), "%lf", &ms) != 1) {
    throw std::runtime_error(command + " failed");
  }
  return ms;
}

void bench_hits(const std::string& self, const std::string& root) {
  call_ms(root);  // compiles the kernel
  const auto spread = [&](const char* what) {
    std::vector<double> times;
    for (int i = 0; i < 101; ++i) times.push_back(measured_by(self, what, root));
    return spread_of(times);
  };
  const Spread store = spread("--store");
  const Spread call = spread("--call");
  fmt::print(
      "hit in a fresh process: {:.3f} ms median, {:.3f} p95 to find, read and verify; "
      "{:.3f} and {:.3f} with the handle, the choice and the emission\n",
      store.median, store.p95, call.median, call.p95);
}

}  // namespace
}  // namespace octile

int main(int argc, char** argv) {
  using namespace octile;  // NOLINT(google-build-using-namespace)
  const std::string what = argc > 1 ? argv[1] : "";
  if (argc == 3 && (what == "--store" || what == "--call")) {
    fmt::print("{}\n", what == "--store" ? store_ms(argv[2]) : call_ms(argv[2]));
    return 0;
  }
  if (argc > 1) ::setenv("TMPDIR", argv[1], 1);
  const cache::testing::TempDir dir;
  bench_puts(dir / "full", 10'000);
  bench_list(dir / "full");
  bench_hits(argv[0], dir / "hit");
}
