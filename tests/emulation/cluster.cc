#include "tests/emulation/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tests/support/device_emulation.h"

namespace octile::emulation {

Cluster* cluster = nullptr;

namespace {

constexpr std::size_t kMostFaults = 12;
constexpr std::uint32_t kUnit = 16;  // bytes
constexpr std::uint32_t kOffsetMask = (1U << kRankShift) - 1;

}  // namespace

std::uint64_t Schedule::next() {  // splitmix64
  state += 0x9E3779B97F4A7C15U;
  std::uint64_t z = state;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9U;
  z = (z ^ z >> 27) * 0x94D049BB133111EBU;
  return z ^ z >> 31;
}

Cluster::Cluster(const ClusterLaunch& launch, std::vector<std::string>& faults, std::uint64_t seed)
    : launch_(launch), faults_(faults), schedule_(seed), blocks_(launch.cluster) {
  const std::size_t fibers = launch.cluster * static_cast<std::size_t>(launch.threads);
  for (Block& b : blocks_) {
    b.memory.assign(launch.smem_bytes, kPoison);
    b.unfenced.resize(launch.smem_bytes / kUnit + 1);
    b.written.resize(static_cast<std::size_t>(launch.threads));
    b.live = static_cast<std::uint32_t>(launch.threads);
  }
  stores_.resize(fibers);
  copies_.resize(fibers);
  arrival_.resize(fibers);
  products_.resize(fibers / kWarp);
  matrices_.resize(fibers / kWarp);
  yields_ = schedule_.one_in(2);
  for (std::size_t warp = 0; warp < fibers / kWarp; ++warp) {
    slowness_.push_back(schedule_.one_in(2) ? 1 : 1 + schedule_.next() % 12);
    elected_.push_back(static_cast<unsigned>(schedule_.next() % kWarp));
  }
}

// ---- faults -------------------------------------------------------------------------------------

std::uint32_t Cluster::rank() const { return current_block.x % launch_.cluster; }
int Cluster::thread() const { return static_cast<int>(current_thread.x); }

void Cluster::fault(const std::string& text) {
  const std::string whole =
      inside_operation_ ? "an asynchronous operation: " + text
                        : fmt::format("block {} thread {}: {}", current_block.x, thread(), text);
  if (faults_.size() < kMostFaults) faults_.push_back(whole);
}

void Cluster::check(bool condition, const char* text, std::uint32_t value) {
  if (!condition) fault(fmt::format("{} ({:#x})", text, value));
}

// ---- shared memory ------------------------------------------------------------------------------

std::uint32_t Cluster::rank_of(std::uint32_t address) const {
  const std::uint32_t window = address >> kRankShift;
  return window == 0 ? rank() : window - 1;
}

std::byte* Cluster::memory(std::uint32_t address, std::uint32_t bytes, std::uint32_t alignment) {
  const std::uint32_t owner = rank_of(address);
  const std::uint32_t offset = (address & kOffsetMask) - kSharedBase;
  if (address % alignment != 0) fault(fmt::format("misaligned shared address {:#x}", address));
  if (owner >= launch_.cluster || offset >= launch_.smem_bytes ||
      bytes > launch_.smem_bytes - offset) {
    fault(fmt::format("{} bytes at {:#x} lie outside shared memory", bytes, address));
    return nullptr;
  }
  const auto& barriers = blocks_[owner].barriers;
  const auto next = barriers.lower_bound((address & kOffsetMask) - 7);
  if (next != barriers.end() && next->first < (address & kOffsetMask) + bytes) {
    fault(fmt::format("{} bytes at {:#x} hit an mbarrier", bytes, address));
    return nullptr;
  }
  return blocks_[owner].memory.data() + offset;
}

void Cluster::written(std::uint32_t address, std::uint32_t bytes) {
  const std::uint32_t offset = (address & kOffsetMask) - kSharedBase;
  for (std::uint32_t unit = offset / kUnit; unit <= (offset + bytes - 1) / kUnit; ++unit) {
    own_block().unfenced[unit] = static_cast<std::uint16_t>(thread() + 1);
    own_block().written[current_thread.x].push_back(unit);
  }
}

void Cluster::fence() {
  std::vector<std::uint32_t>& units = own_block().written[current_thread.x];
  for (const std::uint32_t unit : units) {
    std::uint16_t& writer = own_block().unfenced[unit];
    if (writer == thread() + 1) writer = 0;
  }
  units.clear();
}

void Cluster::check_fenced(std::uint32_t address, std::uint32_t bytes) {
  const Block& owner = blocks_[rank_of(address)];
  const std::uint32_t offset = (address & kOffsetMask) - kSharedBase;
  for (std::uint32_t unit = offset / kUnit; unit <= (offset + bytes - 1) / kUnit; ++unit) {
    if (owner.unfenced[unit] == 0) continue;
    fault(fmt::format("reads what thread {} wrote at {:#x} without a fence",
                      owner.unfenced[unit] - 1, kSharedBase + unit * kUnit));
    return;
  }
}

// ---- mbarriers ----------------------------------------------------------------------------------

void Cluster::init_barrier(std::uint32_t address, std::uint32_t count) {
  check(memory(address, 8, 8) != nullptr && count > 0, "mbarrier.init", address);
  own_block().barriers[address] = {count, count};
}

void Cluster::show_barriers() {
  for (auto& [address, b] : own_block().barriers) b.is_visible = true;
}

Mbarrier& Cluster::barrier(std::uint32_t address) {
  static Mbarrier none;
  const std::uint32_t owner = rank_of(address);
  if (owner < launch_.cluster) {
    const auto found = blocks_[owner].barriers.find(address & kOffsetMask);
    if (found != blocks_[owner].barriers.end()) {
      check(found->second.is_visible, "an mbarrier is used before fence.mbarrier_init", address);
      check(blocks_[owner].live > 0, "an mbarrier of a block that has ended is used", address);
      return found->second;
    }
  }
  fault(fmt::format("there is no mbarrier at {:#x}", address));
  return none = {1U << 20, 1U << 20};
}

void Cluster::complete_if_due(Mbarrier& b) {
  if (b.pending != 0 || b.bytes != 0) return;
  b.pending = b.count;
  ++b.phase;
}

void Cluster::arrive(std::uint32_t address, std::uint32_t expected_bytes) {
  Mbarrier& b = barrier(address);
  b.bytes += expected_bytes;
  if (b.pending == 0) {
    fault(fmt::format("the mbarrier at {:#x} gets more arrivals than its {}", address, b.count));
  } else {
    --b.pending;
  }
  complete_if_due(b);
}

void Cluster::complete_bytes(std::uint32_t address, std::uint32_t bytes) {
  Mbarrier& b = barrier(address);
  b.bytes -= bytes;
  check(b.pending > 0 || b.bytes >= 0, "an mbarrier gets more bytes than announced", address);
  constexpr std::int64_t kMostBytes = (1 << 20) - 1;
  check(b.bytes >= -kMostBytes && b.bytes <= kMostBytes, "an mbarrier's bytes overflow", address);
  complete_if_due(b);
}

// ---- the cluster's barrier ----------------------------------------------------------------------

void Cluster::meet_if_due() {
  if (arrived_ != launch_.cluster * static_cast<unsigned>(launch_.threads)) return;
  ++generation_;
  arrived_ = ended_;
}

void Cluster::cluster_arrive() {
  std::uint32_t& arrival = arrival_[static_cast<std::size_t>(fiber_index())];
  check(arrival == 0, "barrier.cluster.arrive twice without a wait");
  arrival = generation_ + 1;
  ++arrived_;
  meet_if_due();
}

void Cluster::cluster_wait() {
  std::uint32_t& arrival = arrival_[static_cast<std::size_t>(fiber_index())];
  check(arrival != 0, "barrier.cluster.wait without an arrival");
  wait_until({&generation_, arrival, "barrier.cluster"});
  arrival = 0;
}

void Cluster::thread_ended() {
  check(copies(fiber_index()).empty(), "a thread ends behind copies for which it arrives nowhere");
  ++ended_;
  if (arrival_[static_cast<std::size_t>(fiber_index())] != generation_ + 1) ++arrived_;
  meet_if_due();
  if (--own_block().live > 0) return;
  for (const Operation& op : pending_) {
    if ((op.ranks >> rank() & 1U) != 0) fault(fmt::format("the block ends before {}", op.what));
  }
  check(own_block().tensor == nullptr || own_block().tensor->columns == 0,
        "a block ends and has tensor memory");
  check(own_block().registers <= launch_.registers, "setmaxnreg hands out too many registers",
        own_block().registers);
}

// ---- the schedule -------------------------------------------------------------------------------

void Cluster::defer(Operation operation) {
  pending_.push_back(std::move(operation));
  if (schedule_.pace == Pace::kAtOnce) run_one();
}

bool Cluster::happens_at_once() {
  return schedule_.pace == Pace::kAtOnce || (schedule_.pace == Pace::kMixed && schedule_.one_in(2));
}

void Cluster::run_one() {
  const std::size_t index = schedule_.next() % pending_.size();
  std::swap(pending_[index], pending_.back());
  const Operation operation = std::move(pending_.back());
  pending_.pop_back();
  const bool outer = std::exchange(inside_operation_, true);
  operation.run();
  inside_operation_ = outer;
}

bool Cluster::lets_run(int warp) {
  return schedule_.one_in(slowness_[static_cast<std::size_t>(warp)]);
}

void Cluster::after_round() {
  if (schedule_.pace != Pace::kMixed || pending_.empty()) return;
  for (std::uint64_t n = schedule_.next() % (pending_.size() + 1); n > 0; --n) run_one();
}

bool Cluster::when_all_wait() {
  if (pending_.empty()) return false;
  for (std::uint64_t n = 1 + schedule_.next() % (1 + pending_.size() / 8); n > 0; --n) run_one();
  return true;
}

void Cluster::maybe_yield() {
  if (yields_ && schedule_.one_in(4)) yield();
}

void Cluster::finish() {
  while (!pending_.empty()) run_one();
}

// ---- a grid -------------------------------------------------------------------------------------

std::vector<std::string> run_clusters(const ClusterLaunch& launch,
                                      const std::function<void()>& kernel,
                                      const PrecedingKernel& preceding) {
  std::vector<std::string> faults;
  if (launch.grid % launch.cluster != 0) return {"the grid is not a whole number of clusters"};
  for (unsigned first = 0; first < launch.grid && faults.empty(); first += launch.cluster) {
    Cluster c(launch, faults, launch.seed + std::uint64_t{first} * 0x10001);
    cluster = &c;
    std::uint32_t has_ended = 0;
    preceding_kernel = {&has_ended, 1, "the preceding kernel"};
    preceding.begins();
    const auto end = [&] {
      preceding.ends();
      has_ended = 1;
    };
    c.defer({end, 0, "the preceding kernel ends"});
    const std::string deadlock = run_blocks_together(
        {first, static_cast<int>(launch.cluster), launch.threads, launch.grid}, kernel, c);
    if (!deadlock.empty()) faults.push_back(deadlock);
    c.finish();
    cluster = nullptr;
    preceding_kernel = {};
  }
  return faults;
}

}  // namespace octile::emulation
