// What TMA, cp.async and st.async do in an emulated cluster.
#pragma once

#include <cstdint>

namespace octile::emulation {

constexpr std::uint32_t kOwnRank = 0;  // as a multicast mask: the issuing block alone

// Where a box begins. The map has two dimensions, or three if z is not negative.
struct BoxOrigin {
  int x = 0, y = 0, z = -1;
};

// Loads the box of a tensor map (as the fake driver encodes one) into the blocks of a mask.
// Elements outside the tensor are zeros and count as bytes.
void load_box(std::uint32_t to, const void* map, BoxOrigin at, std::uint32_t barrier,
              std::uint32_t mask);
// A fault unless the map is one.
void look_at_map(const void* map);
void load_bytes(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t barrier,
                std::uint32_t mask);
void store_box(const void* map, BoxOrigin at, std::uint32_t from);
// Adds a box of fp32 to the tensor.
void add_box(const void* map, BoxOrigin at, std::uint32_t from);
void commit_store_group();
void wait_store_groups_read(std::uint32_t most_pending);
// cp.async of the first `bytes` of 16, and zeros.
void copy_async(std::uint32_t to, const void* from, std::uint32_t bytes);
// Arrives on a barrier once the thread's copies so far have taken place.
void arrive_behind_copies(std::uint32_t barrier);
// st.async of four floats.
void store_floats_async(std::uint32_t to, const float* values, std::uint32_t barrier);

}  // namespace octile::emulation
