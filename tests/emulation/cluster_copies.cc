#include "tests/emulation/cluster_copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <utility>

#include "tests/emulation/cluster.h"
#include "tests/emulation/device_memory.h"
#include "tests/fake_driver/fake_driver.h"

namespace octile::emulation {
namespace {

constexpr std::uint32_t kUnit = 16;  // bytes that a swizzle moves as one
constexpr std::uint32_t kTmaAlignment = 128;

// A box of a tensor map, with its place in shared memory. A third dimension is one element deep.
struct BoxCopy {
  fake_cuda_tensor_map map{};
  std::int64_t x = 0, y = 0, z = 0;
  std::uint32_t shared = 0;

  std::int64_t element() const {
    return map.data_type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1
           : map.data_type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ||
                   map.data_type == CU_TENSOR_MAP_DATA_TYPE_UINT32 ||
                   map.data_type == CU_TENSOR_MAP_DATA_TYPE_INT32
               ? 4
               : 2;
  }
  std::int64_t row_bytes() const { return map.box[0] * element(); }
  std::uint32_t bytes() const { return static_cast<std::uint32_t>(row_bytes() * map.box[1]); }

  // The XOR of a swizzle: it moves units within lines of 128 bytes, by the line's address.
  std::uint32_t swizzled(std::uint32_t address) const {
    const std::uint32_t mask = map.swizzle == CU_TENSOR_MAP_SWIZZLE_128B  ? 7
                               : map.swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 3
                               : map.swizzle == CU_TENSOR_MAP_SWIZZLE_32B ? 1
                                                                          : 0;
    return address ^ (address >> 7 & mask) << 4;
  }

  // Calls body(shared address, global address, bytes of the unit inside the tensor, from its first)
  // for each unit.
  template <typename Body>
  void for_each_unit(const Body& body) const {
    const std::int64_t width = static_cast<std::int64_t>(map.dims[0]) * element();
    for (std::int64_t row = 0; row < map.box[1]; ++row) {
      const bool exists = y + row >= 0 && y + row < static_cast<std::int64_t>(map.dims[1]) &&
                          (map.rank == 2 || (z >= 0 && z < static_cast<std::int64_t>(map.dims[2])));
      for (std::int64_t byte = 0; byte < row_bytes(); byte += kUnit) {
        const std::int64_t column = x * element() + byte;
        const std::int64_t inside =
            exists && column >= 0 ? std::clamp<std::int64_t>(width - column, 0, kUnit) : 0;
        const auto at = static_cast<std::uint32_t>(row * row_bytes() + byte);
        body(swizzled(shared + at),
             map.address + static_cast<std::uint64_t>(
                               (y + row) * static_cast<std::int64_t>(map.strides_bytes[0]) +
                               z * static_cast<std::int64_t>(map.strides_bytes[1]) + column),
             static_cast<std::size_t>(inside));
      }
    }
  }
};

bool is_watched(const std::vector<Watched>& tensors, const void* p, std::size_t bytes) {
  return std::ranges::any_of(
      tensors, [&](const Watched& t) { return t.holds(p, static_cast<std::int64_t>(bytes)); });
}

// A GPU may fault on the addresses of a box of three dimensions whose rows lie wholly outside its
// map.
void check_begins_inside(const fake_cuda_tensor_map& map, BoxOrigin at) {
  if (map.rank != 3) return;
  const std::array<int, 3> origin{at.x, at.y, at.z};
  for (std::size_t i = 1; i < origin.size(); ++i) {
    if (origin.at(i) >= 0 && std::cmp_less(origin.at(i), map.dims[i])) continue;
    cluster->fault(fmt::format("a box begins at {} of {} elements in dimension {}", origin.at(i),
                               map.dims[i], i));
  }
}

// Returns a copy whose map is empty, and a fault, if the kernel gave something else than a map.
BoxCopy box_copy(const void* map, BoxOrigin at, std::uint32_t shared) {
  BoxCopy copy{{}, at.x, at.y, std::max(at.z, 0), shared};
  std::memcpy(&copy.map, map, sizeof copy.map);
  const int rank = at.z < 0 ? 2 : 3;
  if (copy.map.magic != FAKE_CUDA_TENSOR_MAP_MAGIC || copy.map.rank != rank ||
      (rank == 3 && copy.map.box[2] != 1)) {
    cluster->fault(fmt::format("a copy's tensor map is none of {} dimensions", rank));
    copy.map = {};
  }
  cluster->check(shared % kTmaAlignment == 0, "TMA copies to or from a misaligned address", shared);
  check_begins_inside(copy.map, at);
  return copy;
}

// Calls body(rank) for each block of a multicast.
template <typename Body>
void for_each_rank(std::uint32_t mask, const Body& body) {
  for (std::uint32_t rank = 0; mask >> rank != 0; ++rank) {
    if ((mask >> rank & 1U) != 0) body(rank);
  }
}

std::uint32_t mask_or_own(std::uint32_t mask) {
  return mask == kOwnRank ? 1U << cluster->rank() : mask;
}

std::uint32_t at_rank(std::uint32_t address, std::uint32_t rank) {
  return (address & ((1U << kRankShift) - 1)) | (rank + 1) << kRankShift;
}

void land_box(BoxCopy copy, std::uint32_t rank, std::uint32_t barrier) {
  copy.shared = at_rank(copy.shared, rank);
  if (cluster->memory(copy.shared, copy.bytes(), kUnit) == nullptr) return;
  copy.for_each_unit([](std::uint32_t to, std::uint64_t from, std::size_t inside) {
    std::byte* p = cluster->memory(to, kUnit, kUnit);
    const auto* source = reinterpret_cast<const void*>(from);
    if (inside > 0 && !is_watched(readable, source, inside)) {
      cluster->fault("TMA reads outside a tensor");
      inside = 0;
    }
    if (inside > 0) std::memcpy(p, source, inside);
    std::memset(p + inside, 0, kUnit - inside);
  });
  cluster->complete_bytes(at_rank(barrier, rank), copy.bytes());
}

// Calls put(tensor, shared memory, bytes) for each unit of the box that lies in the tensor.
template <typename Put>
void write_box(const BoxCopy& copy, const Put& put) {
  if (cluster->memory(copy.shared, copy.bytes(), kUnit) == nullptr) return;
  cluster->check_fenced(copy.shared, copy.bytes());
  copy.for_each_unit([&](std::uint32_t from, std::uint64_t to, std::size_t inside) {
    auto* target = reinterpret_cast<void*>(to);
    if (inside == 0) return;
    if (!is_watched(writable, target, inside)) return cluster->fault("TMA writes outside a tensor");
    put(target, cluster->memory(from, kUnit, kUnit), inside);
  });
}

StoreGroups& open_groups() {
  StoreGroups& groups = cluster->stores(fiber_index());
  if (groups.left.empty()) groups.left.push_back(0);
  return groups;
}

void count_finished(StoreGroups& groups) {
  while (groups.finished < groups.committed && groups.left[groups.finished] == 0) ++groups.finished;
}

// Defers a copy out of shared memory, as part of the thread's open group.
template <typename Put>
void defer_write(const void* map, BoxOrigin at, std::uint32_t from, const Put& put) {
  const std::uint32_t rank = cluster->rank();
  const BoxCopy copy = box_copy(map, at, at_rank(from, rank));
  const int fiber = fiber_index();
  StoreGroups& groups = open_groups();
  const std::size_t group = groups.committed;
  ++groups.left[group];
  const auto write = [=] {
    write_box(copy, put);
    StoreGroups& of_thread = cluster->stores(fiber);
    --of_thread.left[group];
    count_finished(of_thread);
  };
  cluster->defer({write, 1U << rank, "a store of TMA has read its source"});
  cluster->maybe_yield();
}

// Carries out a copy of the block `rank`.
void land_copy(const LaneCopy& copy, std::uint32_t rank) {
  std::byte* p = cluster->memory(at_rank(copy.to, rank), kUnit, kUnit);
  if (p == nullptr) return;
  std::size_t inside = copy.bytes;
  if (inside > 0 && !is_watched(readable, copy.from, inside)) {
    cluster->fault("cp.async reads outside a tensor");
    inside = 0;
  }
  std::memcpy(p, copy.from, inside);
  std::memset(p + inside, 0, kUnit - inside);
}

}  // namespace

void load_box(std::uint32_t to, const void* map, BoxOrigin at, std::uint32_t barrier,
              std::uint32_t mask) {
  const BoxCopy copy = box_copy(map, at, to);
  const std::uint32_t ranks = mask_or_own(mask);
  for_each_rank(ranks, [&](std::uint32_t rank) {
    cluster->defer({[=] { land_box(copy, rank, barrier); }, 1U << rank, "a load of TMA"});
  });
  cluster->maybe_yield();
}

void look_at_map(const void* map) {
  fake_cuda_tensor_map copy;
  std::memcpy(&copy, map, sizeof copy);
  cluster->check(copy.magic == FAKE_CUDA_TENSOR_MAP_MAGIC, "a prefetch is of no tensor map", 0);
}

void load_bytes(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t barrier,
                std::uint32_t mask) {
  cluster->check(bytes > 0 && bytes % kUnit == 0 && to % kUnit == 0 &&
                     reinterpret_cast<std::uintptr_t>(from) % kUnit == 0,
                 "a bulk copy is not of whole 16 bytes", to);
  for_each_rank(mask_or_own(mask), [&](std::uint32_t rank) {
    const auto land = [=] {
      std::byte* p = cluster->memory(at_rank(to, rank), bytes, kUnit);
      if (!is_watched(readable, from, bytes)) {
        cluster->fault("a bulk copy reads outside a tensor");
      } else if (p != nullptr) {
        std::memcpy(p, from, bytes);
      }
      cluster->complete_bytes(at_rank(barrier, rank), bytes);
    };
    cluster->defer({land, 1U << rank, "a bulk copy"});
  });
  cluster->maybe_yield();
}

void store_box(const void* map, BoxOrigin at, std::uint32_t from) {
  defer_write(map, at, from,
              [](void* to, const std::byte* source, std::size_t n) { std::memcpy(to, source, n); });
}

void add_box(const void* map, BoxOrigin at, std::uint32_t from) {
  defer_write(map, at, from, [](void* to, const std::byte* source, std::size_t n) {
    std::array<float, kUnit / sizeof(float)> sums{}, terms{};
    std::memcpy(sums.data(), to, n);
    std::memcpy(terms.data(), source, n);
    std::ranges::transform(sums, terms, sums.begin(), std::plus<>());
    std::memcpy(to, sums.data(), n);
  });
}

void commit_store_group() {
  StoreGroups& groups = open_groups();
  ++groups.committed;
  groups.left.push_back(0);
  count_finished(groups);
}

void wait_store_groups_read(std::uint32_t most_pending) {
  StoreGroups& groups = open_groups();
  if (groups.committed <= most_pending) return;
  wait_until({&groups.finished, groups.committed - most_pending, "cp.async.bulk.wait_group.read"});
}

void copy_async(std::uint32_t to, const void* from, std::uint32_t bytes) {
  cluster->check(
      bytes <= kUnit && to % kUnit == 0 && reinterpret_cast<std::uintptr_t>(from) % kUnit == 0,
      "cp.async is not of 16 aligned bytes", to);
  const LaneCopy copy{to, from, bytes};
  if (cluster->happens_at_once()) return land_copy(copy, cluster->rank());
  cluster->copies(fiber_index()).push_back(copy);
}

void arrive_behind_copies(std::uint32_t barrier) {
  const std::uint32_t rank = cluster->rank();
  const auto land = [rank, barrier, copies = std::exchange(cluster->copies(fiber_index()), {})] {
    for (const LaneCopy& copy : copies) land_copy(copy, rank);
    cluster->arrive(at_rank(barrier, rank));
  };
  cluster->defer({land, 1U << rank, "an arrival behind cp.async"});
  cluster->maybe_yield();
}

void store_floats_async(std::uint32_t to, const float* values, std::uint32_t barrier) {
  const std::array<float, 4> sent{values[0], values[1], values[2], values[3]};
  const std::uint32_t owner = cluster->rank_of(to);
  cluster->check(owner == cluster->rank_of(barrier), "st.async and its mbarrier lie in two blocks",
                 to);
  const auto at = [owner](std::uint32_t address) { return at_rank(address, owner); };
  const auto land = [sent, target = at(to), barrier = at(barrier)] {
    std::byte* p = cluster->memory(target, sizeof sent, sizeof sent);
    if (p != nullptr) std::memcpy(p, sent.data(), sizeof sent);
    cluster->complete_bytes(barrier, sizeof sent);
  };
  cluster->defer({land, 1U << owner, "an st.async"});
}

}  // namespace octile::emulation
