// A consumer warpgroup's main loop: WGMMA from zero over a K-block, promotion in fp32.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/tile.cuh"
#endif

namespace wgmma {
OCTILE_INSTANTIATE_MMA(OCTILE_WGMMA_N, OCTILE_WGMMA_STEPS, OCTILE_WGMMA_TYPES)
#ifdef OCTILE_WGMMA_TAIL_N
OCTILE_INSTANTIATE_MMA(OCTILE_WGMMA_TAIL_N, OCTILE_WGMMA_STEPS, OCTILE_WGMMA_TYPES)
#endif
}  // namespace wgmma

namespace gemm {

// B's decode scales of one K-block, one per segment of columns.
struct BlockScales {
  float value[kScalesB];
  __device__ __forceinline__ explicit BlockScales(u32 address) {
    if constexpr (kScalesB == 1) {
      value[0] = load_shared_f32(address);
    } else {
#pragma unroll
      for (int first = 0; first < kScalesB; first += 4) {
        const Floats4 four = load_shared_16(address + first * 4);
#pragma unroll
        for (int i = first; i < min(first + 4, kScalesB); ++i) value[i] = four.value[i - first];
      }
    }
  }
};

// Decode scales of one product's two rows a thread holds, times those of B.
struct ProductScales {
  float upper[kScalesB];
  float lower[kScalesB];
};

// acc = fma(partial, sa * sb, acc): the CUDA cores' half of the product. kSums: a thread's sums of
// 64 rows, half as many as the tile has columns.
template <int kSums>
__device__ __forceinline__ void promote(float (&acc)[kSums], const float (&partial)[kSums],
                                        const ProductScales& scales) {
  // One flat loop: nested by segment, ptxas kept the accumulators of some widths in local memory.
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
    const float u = scales.upper[j * kScalesB / (kSums / 4)];
    const float l = scales.lower[j * kScalesB / (kSums / 4)];
    acc[4 * j + 0] = __fmaf_rn(partial[4 * j + 0], u, acc[4 * j + 0]);
    acc[4 * j + 1] = __fmaf_rn(partial[4 * j + 1], u, acc[4 * j + 1]);
    acc[4 * j + 2] = __fmaf_rn(partial[4 * j + 2], l, acc[4 * j + 2]);
    acc[4 * j + 3] = __fmaf_rn(partial[4 * j + 3], l, acc[4 * j + 3]);
  }
}

// One arrival a warp and CTA of the cluster: __syncwarp puts every lane's reads before it.
__device__ __forceinline__ void release_stage(const SharedMemory& smem, int stage, int lane) {
  __syncwarp();
  if constexpr (kShareSize > 1) {
    if (lane < kShareSize) mbarrier::arrive_cluster(smem.empty(stage), lane);
  } else {
    if (lane == 0) mbarrier::arrive(smem.empty(stage));
  }
}

// What of a consumer thread does not change over its tiles.
struct Consumer {
  SharedMemory smem;
  int index;  // which consumer warpgroup
  int warp;   // of the warpgroup
  int lane;
  u32 a_descriptor, b_descriptor;  // of stage 0: its first row of A, the tile of B
  int scale_row;                   // of the two rows of A the thread holds, the upper

  __device__ __forceinline__ explicit Consumer(const SharedMemory& shared)
      : smem(shared),
        index(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0)),
        warp(static_cast<int>(threadIdx.x / 32 % 4)),
        lane(static_cast<int>(threadIdx.x % 32)),
        a_descriptor(wgmma::descriptor(smem.a(0) + index * kRowsPerConsumer * 128)),
        // Through a shuffle, or the compiler works it out anew before every product.
        b_descriptor(__shfl_sync(0xffffffffu, wgmma::descriptor(smem.b(0)), 0)),
        // Rows beyond a short tile are not stored: any scale serves.
        scale_row(min(index * kRowsPerConsumer + warp * 16 + lane / 4, cfg::kBlockM - 9)) {}
};

// The products of a K-block a consumer computes, of 64 rows and kPromote of K each.
constexpr int kParts = 128 / cfg::kPromote;
constexpr int kBlockProducts = kStrips * kParts;

// Issues product `product` of the K-block in `stage` and commits it.
template <int kSums>
__device__ __forceinline__ void issue(const Consumer& self, int stage, int product,
                                      float (&partial)[kSums]) {
  const u32 a =
      self.a_descriptor + stage * (kAStageBytes >> 4) + product / kParts * (64 * 128 >> 4);
  const u32 b = self.b_descriptor + stage * (kBStageBytes >> 4);
  const int k = product % kParts * cfg::kPromote >> 4;
  wgmma::Mma<2 * kSums>::product(partial, a + k, b + k);
}

// The scales of one product as they lie in shared memory.
struct StageScales {
  float upper, lower;
  BlockScales b;

  __device__ __forceinline__ StageScales(const Consumer& self, int stage, int product)
      : b(self.smem.scales_b(stage)) {
    const u32 a = self.smem.scales(stage) + (self.scale_row + product / kParts * 64) * 4;
    upper = load_shared_f32(a);
    lower = load_shared_f32(a + 8 * 4);
  }
  __device__ __forceinline__ ProductScales multiplied() const {
    ProductScales result;
#pragma unroll
    for (int r = 0; r < kScalesB; ++r) {
      result.upper[r] = __fmul_rn(upper, b.value[r]);
      result.lower[r] = __fmul_rn(lower, b.value[r]);
    }
    return result;
  }
};

// K-blocks, at least one, into acc one product at a time: other warpgroups keep the tensor core
// busy while this one promotes. Whether the next stage is full is asked before the last promotion
// of a stage, so that its answer is there when the next product could start.
template <int kSums>
__device__ __forceinline__ void multiply_serially(const Consumer& self, Ring& ring, int k_blocks,
                                                  float (&acc)[kStrips][kSums]) {
  float partial[kSums];
  u32 ready = 0;
#pragma unroll(cfg::kInFlight > 1 ? 1 : cfg::kUnroll)
  do {
    const int stage = ring.stage;
    mbarrier::wait_unless(ready, self.smem.full(stage), ring.phase);
    ring.advance();
#pragma unroll
    for (int product = 0; product < kBlockProducts; ++product) {
      const StageScales read(self, stage, product);
      issue(self, stage, product, partial);
      const ProductScales scales = read.multiplied();
      wgmma::wait<0>();
      wgmma::pin(partial);
      if (product == kBlockProducts - 1) {
        release_stage(self.smem, stage, self.lane);
        ready = mbarrier::test(self.smem.full(ring.stage), ring.phase);
      }
      promote(acc[product / kParts], partial, scales);
    }
  } while (--k_blocks > 0);
}

// kUnroll consecutive K-blocks into acc. kInFlight products are issued before the first of them is
// promoted, each into partial sums of its own, and one more as soon as one is promoted: the tensor
// core works while the CUDA cores promote.
template <int kSums>
__device__ __forceinline__ void multiply_in_flight(const Consumer& self, Ring& ring,
                                                   float (&acc)[kStrips][kSums]) {
  constexpr int kProducts = cfg::kUnroll * kBlockProducts;
  constexpr int kInFlight = cfg::kInFlight;
  static_assert(kInFlight <= kProducts, "products to have in flight");
  int stage[cfg::kUnroll];
  float partial[kInFlight][kSums];
  ProductScales scales[kInFlight];
#pragma unroll
  for (int step = 0; step < kProducts + kInFlight; ++step) {
    const int i = step % kInFlight;
    const int done = step - kInFlight;
    if (done >= 0) {
      wgmma::wait_for(min(kInFlight, kProducts - done) - 1);
      wgmma::pin(partial[i]);
      if ((done + 1) % kBlockProducts == 0) {
        release_stage(self.smem, stage[done / kBlockProducts], self.lane);
      }
      promote(acc[done / kParts % kStrips], partial[i], scales[i]);
    }
    if (step < kProducts) {
      const int product = step % kBlockProducts;
      int& at = stage[step / kBlockProducts];
      if (product == 0) {
        at = ring.stage;
        mbarrier::wait(self.smem.full(at), ring.phase);
        ring.advance();
      }
      // Read before the stage can be handed back.
      const StageScales read(self, at, product);
      issue(self, at, product, partial[i]);
      scales[i] = read.multiplied();
    }
  }
}

// A tile's K-blocks into acc.
template <int kSums>
__device__ __forceinline__ void accumulate(const Consumer& self, Ring& ring, int k_blocks,
                                           float (&acc)[kStrips][kSums]) {
  if constexpr (cfg::kInFlight > 1) {
#pragma unroll 1
    for (; k_blocks >= cfg::kUnroll; k_blocks -= cfg::kUnroll) {
      multiply_in_flight(self, ring, acc);
    }
  }
  // None may be left, or be this rank's.
  constexpr bool kSome = cfg::kInFlight == 1 && cfg::kSplits == 1;
  if (kSome || k_blocks > 0) multiply_serially(self, ring, k_blocks, acc);
}

}  // namespace gemm
