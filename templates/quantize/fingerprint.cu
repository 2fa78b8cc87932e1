// Finds out if a tensor has changed since its copies were made. If not, the quantiser has nothing
// to do:
//
//   sum[i]    = sum over the 16-byte words w of a hash of (position of w, w), modulo 2^64
//   unchanged = known and both sums are those of the contents that the copies were made from
//
// Integer sums do not depend on their order. The first is a sum of products of two words of 32 bits
// each with a key added (NH, of UMAC), the second one of products of words with a key (multilinear
// hashing). Keys depend on the position, so that moved rows and exchanged elements are detected.
// For contents chosen without knowledge of the keys, one pair in 2^64 has the same sums.
//
// A thread block reads pieces of rows in turn. The last one to end compares the sums and clears
// what they were added up in. Stacked tensors have a sum each, and thread blocks of their own in
// gridDim.y.
#ifndef OCTILE_EMITTED
#define OCTILE_FINGERPRINT_NAME octile_fingerprint_default
#define OCTILE_DEFAULT_GRANULARITY 5
#define OCTILE_DEFAULT_TILE_ROWS 128
#define OCTILE_DEFAULT_TILE_COLS 128
#include "quantize/default_prologue.cuh"
#endif

namespace fingerprint {

// octile_fingerprint on the host.
struct State {
  u64 sum[2];
  u64 partial[2];
  u32 arrived;
  u32 unchanged;
  u32 known;
  u32 changes;
};
static_assert(sizeof(State) == 48, "octile_fingerprint has 48 bytes");

// FingerprintKernelArgs on the host.
struct Args {
  const char* x;
  i64 rows, row_bytes, row_stride;  // stride in bytes
  i64 pieces_of_row;                // of kPiece words
  State* state;
  int aligned;  // rows begin at multiples of 16 bytes
  int unused;
  i64 tensor_bytes;  // from one stacked tensor to the next
};
static_assert(sizeof(Args) == 64, "FingerprintKernelArgs has 64 bytes");

constexpr int kLoads = 4;  // words of a thread
constexpr int kPiece = cfg::kFingerprintThreads * kLoads;
constexpr int kWarps = cfg::kFingerprintThreads / 32;

struct Sums {
  u64 first = 0, second = 0;

  // Adds the word at this position, counted over all rows.
  __device__ __forceinline__ void add(u64 position, const memory::Words4& w) {
    const u64 key = (position + 1) * 0x9e3779b97f4a7c15ull;
    const u32 low = static_cast<u32>(key), high = static_cast<u32>(key >> 32);
    const u32 other = (high ^ (low >> 15)) * 0x85ebca6bu, last = (low ^ (high >> 13)) * 0xc2b2ae35u;
    first += static_cast<u64>(w.word[0] + low) * (w.word[1] + high) +
             static_cast<u64>(w.word[2] + other) * (w.word[3] + last);
    second += static_cast<u64>(w.word[0]) * (last | 1) + static_cast<u64>(w.word[1]) * (other | 1) +
              static_cast<u64>(w.word[2]) * (high | 1) + static_cast<u64>(w.word[3]) * (low | 1);
  }
};

// Reads `bytes` bytes, 1 to 16 and even, at an address that is a multiple of 2. The rest is 0.
__device__ __forceinline__ memory::Words4 load_part(const char* p, i64 bytes) {
  memory::Words4 w{};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (2 * i < bytes) w.word[i / 2] |= memory::load_2(p + 2 * i) << (i % 2 * 16);
  }
  return w;
}

__device__ __forceinline__ u64 warp_sum(u64 value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const u32 low = __shfl_xor_sync(0xffffffffu, static_cast<u32>(value), distance);
    const u32 high = __shfl_xor_sync(0xffffffffu, static_cast<u32>(value >> 32), distance);
    value += static_cast<u64>(high) << 32 | low;
  }
  return value;
}

// Compares the sums of all blocks with those of the contents known, and remembers them.
__device__ __forceinline__ void conclude(State& state) {
  volatile u64* const partial = state.partial;
  const u64 first = partial[0], second = partial[1];
  const bool same = state.known != 0 && first == state.sum[0] && second == state.sum[1];
  state.sum[0] = first;
  state.sum[1] = second;
  partial[0] = 0;
  partial[1] = 0;
  state.arrived = 0;
  state.known = 1;
  state.unchanged = same ? 1 : 0;
  if (!same) ++state.changes;
}

}  // namespace fingerprint

extern "C" __global__ void __launch_bounds__(cfg::kFingerprintThreads)
    OCTILE_FINGERPRINT_NAME(const __grid_constant__ fingerprint::Args args) {
  using namespace fingerprint;
  wait_and_let_next_start();
  const char* const x = args.x + blockIdx.y * args.tensor_bytes;
  State* const state = args.state + blockIdx.y;
  const i64 words_of_row = (args.row_bytes + 15) / 16;
  const i64 pieces = args.rows * args.pieces_of_row;
  Sums sums;
  for (i64 piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const i64 row = piece / args.pieces_of_row;
    const i64 first = (piece - row * args.pieces_of_row) * kPiece + threadIdx.x;
    const char* const p = x + row * args.row_stride;
    memory::Words4 w[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const i64 word = first + i * cfg::kFingerprintThreads;
      const i64 bytes = args.row_bytes - word * 16;
      w[i] = memory::Words4{};
      if (bytes >= 16 && args.aligned != 0) {
        w[i] = memory::load_16(p + word * 16);
      } else if (bytes > 0) {
        w[i] = load_part(p + word * 16, bytes);
      }
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const i64 word = first + i * cfg::kFingerprintThreads;
      if (word < words_of_row) sums.add(static_cast<u64>(row * words_of_row + word), w[i]);
    }
  }

  __shared__ u64 of_warps[2][kWarps];
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u64 of_warp_first = warp_sum(sums.first), of_warp_second = warp_sum(sums.second);
  if (lane == 0) {
    of_warps[0][warp] = of_warp_first;
    of_warps[1][warp] = of_warp_second;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  u64 first = 0, second = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    first += of_warps[0][i];
    second += of_warps[1][i];
  }
  atomicAdd(state->partial, first);
  atomicAdd(state->partial + 1, second);
  __threadfence();
  if (atomicAdd(&state->arrived, 1u) + 1 != gridDim.x) return;
  __threadfence();
  conclude(*state);
}
