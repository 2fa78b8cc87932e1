// The text that the generator writes before a GEMM template, for reading, linting and compiling it
// by hand:
//   nvcc -gencode arch=compute_90a,code=sm_90a --cubin -I templates templates/gemm/kernel.cu
#pragma once
#include "gemm/arguments.cuh"
#include "gemm/ring.cuh"
#include "gemm/walk/scheduler.cuh"
#include "lib/cluster.cuh"
#include "lib/launch.cuh"
#include "lib/mbarrier.cuh"
#include "lib/tma.cuh"
#include "lib/tma_loads.cuh"
#include "lib/types.cuh"
#include "lib/warpgroup.cuh"
#include "lib/wgmma.cuh"

#define OCTILE_KERNEL_NAME octile_gemm_default
#define OCTILE_WGMMA_N 128
#define OCTILE_WGMMA_STEPS 4
#define OCTILE_WGMMA_TYPES "e4m3.e4m3"
#define OCTILE_WGMMA_OUTPUT "=f"
#define OCTILE_WARPS_ACROSS 1
#define OCTILE_CONSUMERS_ACROSS 1
#define OCTILE_WALK gemm::walk::Dense
#define OCTILE_SCALE gemm::scale::BlockB<gemm::scale::Fp32>
#define OCTILE_OUTPUT gemm::output::Staged<gemm::output::Bf16, false, gemm::output::Boxes>

namespace cfg {
constexpr int kBlockM = 128;
constexpr int kBlockN = 128;
constexpr int kBlockK = 128;
constexpr int kStages = 5;
constexpr int kConsumerWarpgroups = 2;
constexpr int kClusterM = 1;
constexpr int kClusterN = 1;
constexpr int kRasterBand = 8;
constexpr bool kRasterOfColumns = false;
constexpr int kUnroll = 1;
constexpr int kInFlight = 1;
constexpr int kSplits = 1;
constexpr int kCtasPerSm = 1;
constexpr int kPromote = 128;
constexpr bool kPdlEarly = false;
constexpr int kTailN = 0;
constexpr int kThreads = 384;
constexpr int kProducerRegisters = 40;
constexpr int kConsumerRegisters = 232;
constexpr int kAStageBytes = 16384;
constexpr int kBStageBytes = 16384;
constexpr int kScaleAStageBytes = 512;
constexpr int kScaleBStageBytes = 16;
constexpr int kBOffset = 81920;
constexpr int kDOffset = 163840;
constexpr int kScaleAOffset = 196608;
constexpr int kScaleBOffset = 199168;
constexpr int kBarrierOffset = 199248;
constexpr int kSmemBytes = 199336;
}  // namespace cfg
