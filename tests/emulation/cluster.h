// An emulated cluster of Hopper thread blocks: their shared memory, mbarriers, and the copies and
// matrix products that run beside the threads. Threads are fibers (tests/support/fibers.h).
//
// Operations beside the threads are in a list of pending ones. A schedule decides when they take
// place: as late as a wait allows, at once, or at any moment in between. It also decides which
// warps fall behind. So a stage that is released too early, or a missing wait, gives a wrong result
// under some schedule. A schedule is reproducible: it follows from its seed.
//
// A forbidden act of a kernel is reported as a fault, and the kernel goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/emulation/cluster_mma.h"
#include "tests/emulation/cluster_tcgen05.h"
#include "tests/support/fibers.h"

namespace octile::emulation {

// When pending operations take place.
enum class Pace { kLate, kAtOnce, kMixed };

struct Schedule {
  explicit Schedule(std::uint64_t seed) : pace(static_cast<Pace>(seed % 3)), state(seed + 1) {}
  Pace pace;
  std::uint64_t state;
  std::uint64_t next();  // a random number
  bool one_in(std::uint64_t n) { return next() % n == 0; }
};

struct ClusterLaunch {
  unsigned grid = 1;     // blocks
  unsigned cluster = 1;  // blocks of a cluster
  int threads = 0;
  unsigned smem_bytes = 0;
  unsigned registers = 65536;  // that one block may use
  std::uint64_t seed = 0;
};

// The kernel before in the stream, which may still run when each cluster starts.
struct PrecedingKernel {
  std::function<void()> begins = [] {};  // before a cluster starts
  std::function<void()> ends = [] {};    // before griddepcontrol.wait returns
};

// Runs all clusters of a grid, one after another. Returns the faults.
std::vector<std::string> run_clusters(const ClusterLaunch& launch,
                                      const std::function<void()>& kernel,
                                      const PrecedingKernel& preceding = {});

// ---- for the wrappers of instructions -----------------------------------------------------------

// Shared-memory addresses are those of the hardware. A block's own begin behind the driver's
// reserve, and fit the 18 bits of a matrix descriptor. An address in the window of a cluster also
// holds the rank of its block.
constexpr std::uint32_t kSharedBase = 1024;
constexpr int kRankShift = 24;
constexpr std::byte kPoison{0xFF};  // NaN in every floating-point type

struct Mbarrier {
  std::uint32_t count = 0;
  std::uint32_t pending = 0;  // arrivals that the phase still waits for
  std::int64_t bytes = 0;     // the same of bytes; negative if they came before they were announced
  std::uint32_t phase = 0;
  bool is_visible = false;  // after fence_init
};

// Pending operations that read or write the shared memory of some blocks.
struct Operation {
  std::function<void()> run;
  std::uint32_t ranks = 0;  // a bit for each of them
  const char* what = "";
};

struct Block {
  std::vector<std::byte> memory;
  std::map<std::uint32_t, Mbarrier> barriers;
  FiberBarrier named[16];
  std::vector<std::uint16_t> unfenced;  // for every 16 bytes: 1 + thread that wrote without a fence
  std::vector<std::vector<std::uint32_t>> written;  // by each thread without a fence: such units
  std::uint32_t live = 0;                           // threads
  std::uint32_t registers = 0;                      // that setmaxnreg gave to threads
  std::unique_ptr<TensorMemory> tensor;             // null: nothing of it was used
};

// A thread's bulk groups of stores that still read shared memory.
struct StoreGroups {
  std::vector<int> left;  // stores of each group, the last of which is open
  std::uint32_t committed = 0;
  std::uint32_t finished = 0;  // leading groups that have read all
};

// A thread's copies by cp.async that have not taken place: 16 bytes each, the first `bytes` of them
// from memory and the others zero.
struct LaneCopy {
  std::uint32_t to = 0;
  const void* from = nullptr;
  std::uint32_t bytes = 0;
};

// One WGMMA group of a warp, which computes 16 rows.
struct Product {
  std::uint32_t a = 0, b = 0;  // low halves of matrix descriptors
  int n = 0, steps = 0;
  std::string_view types;
  float* d[kWarp] = {};
  int lanes = 0;  // that have issued it
  int taken = 0;  // that have its result
  std::vector<float> sums;
  bool adds = false;                 // to the old sums of the accumulators,
  std::vector<float> before[kWarp];  // of each lane
  std::uint32_t high = 0;            // the high half of both descriptors
};
struct WarpProducts {
  std::deque<Product> queue;  // of groups whose results not all lanes have
  std::uint32_t first = 0;    // number of the first of them
  std::uint32_t issued[kWarp] = {}, taken[kWarp] = {};
  std::uint32_t done = 0;
};

class Cluster final : public Surroundings {
 public:
  Cluster(const ClusterLaunch& launch, std::vector<std::string>& faults, std::uint64_t seed);

  // Reports what the running thread did.
  void fault(const std::string& text);
  bool has_faults() const { return !faults_.empty(); }
  // The running thread.
  std::uint32_t rank() const;
  int thread() const;
  // A fault unless the condition holds.
  void check(bool condition, const char* text, std::uint32_t value = 0);

  // Returns the memory at an address, null (and a fault) unless all bytes are a block's own data.
  std::byte* memory(std::uint32_t address, std::uint32_t bytes, std::uint32_t alignment);
  std::uint32_t rank_of(std::uint32_t address) const;
  // Notes an ordinary write, and its end as far as asynchronous reads are concerned.
  void written(std::uint32_t address, std::uint32_t bytes);
  void fence();
  // A fault if a thread wrote there without a fence.
  void check_fenced(std::uint32_t address, std::uint32_t bytes);

  void init_barrier(std::uint32_t address, std::uint32_t count);
  void show_barriers();
  Mbarrier& barrier(std::uint32_t address);
  void arrive(std::uint32_t address, std::uint32_t expected_bytes = 0);
  void complete_bytes(std::uint32_t address, std::uint32_t bytes);

  void cluster_arrive();
  void cluster_wait();

  // Adds an operation. It takes place when the schedule says so.
  void defer(Operation operation);
  // Returns whether what a thread has just issued takes place at once.
  bool happens_at_once();
  // Lets other threads run, if the schedule says so.
  void maybe_yield();

  Block& block(std::uint32_t rank) { return blocks_[rank]; }
  Block& own_block() { return blocks_[rank()]; }
  StoreGroups& stores(int fiber) { return stores_[static_cast<std::size_t>(fiber)]; }
  std::vector<LaneCopy>& copies(int fiber) { return copies_[static_cast<std::size_t>(fiber)]; }
  WarpProducts& products() { return products_[static_cast<std::size_t>(fiber_index() / kWarp)]; }
  WarpMatrices& matrices() { return matrices_[static_cast<std::size_t>(fiber_index() / kWarp)]; }
  // Returns a lane for elect.sync.
  unsigned elected() const { return elected_[static_cast<std::size_t>(fiber_index() / kWarp)]; }

  bool lets_run(int warp) override;
  void after_round() override;
  bool when_all_wait() override;
  void thread_ended() override;
  void finish();

 private:
  void run_one();
  void complete_if_due(Mbarrier& barrier);
  void meet_if_due();

  const ClusterLaunch& launch_;
  std::vector<std::string>& faults_;
  Schedule schedule_;
  std::vector<Block> blocks_;
  std::vector<Operation> pending_;
  std::vector<StoreGroups> stores_;
  std::vector<std::vector<LaneCopy>> copies_;
  std::vector<WarpProducts> products_;
  std::vector<WarpMatrices> matrices_;
  std::vector<std::uint64_t> slowness_;  // of each warp: it runs in one round of this number
  std::vector<unsigned> elected_;
  bool yields_ = false;
  // The cluster's barrier: threads that have arrived or ended, and each one's arrival, 0: none.
  std::uint32_t arrived_ = 0, ended_ = 0, generation_ = 0;
  std::vector<std::uint32_t> arrival_;
  bool inside_operation_ = false;
};

extern Cluster* cluster;  // the one that runs

}  // namespace octile::emulation
