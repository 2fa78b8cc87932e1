// WGMMA: the Hopper tensor core over a warpgroup's 64 rows. PTX ISA 9.0, "Asynchronous Warpgroup
// Level Matrix Multiply-Accumulate Instructions" (wgmma.mma_async); sm_90a only. All threads of the
// warpgroup execute each call.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

namespace wgmma {

// wgmma.wait_group.sync.aligned N;  PTX 8.0, sm_90a. Waits until at most the last N groups are
// pending. The accumulators of the other groups may then be read, and their shared-memory operands
// overwritten.
template <int kPending>
__device__ __forceinline__ void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Waits likewise, for a count of at most kMost that is known after unrolling.
template <int kMost>
__device__ __forceinline__ void wait_for(int pending) {
  if constexpr (kMost == 0) {
    wait<0>();
  } else {
    if (pending == kMost) {
      wait<kMost>();
    } else {
      wait_for<kMost - 1>(pending);
    }
  }
}

// Keeps the compiler from moving uses of an accumulator across the asynchronous span. It emits no
// instruction.
template <int kCount>
__device__ __forceinline__ void pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

// Returns the low half of the matrix descriptor of a K-major FP8 tile of 128-byte rows in the
// 128-byte swizzle (PTX ISA "Matrix Descriptor"): address >> 4 in bits 0-13, and 1 in the unused
// leading offset. The tile is 1024-byte aligned. The descriptor advances by bytes >> 4: by 32 bytes
// along K, or by a multiple of 1024 along the rows.
__device__ __forceinline__ u32 descriptor(u32 address) { return (address >> 4) | (1u << 16); }
// The high half: the stride between groups of 8 rows (1024 bytes) >> 4 in bits 32-45, and swizzle
// mode 1 (128 bytes) in bits 62-63.
#define OCTILE_DESCRIPTOR_HIGH "0x40000040"

// wgmma.fence; kSteps x wgmma.mma_async.sync.aligned.m64nNk32.f32.<a>.<b> d, a-desc, b-desc,
// scale-d, 1, 1; wgmma.commit_group;  PTX 8.0, sm_90a. One WGMMA group: D[64,N] = A[64,32 kSteps] *
// B[N,32 kSteps]^T, from zero. d holds N/2 fp32 a thread. Element 4 * j + {0, 1} is row lane / 4 of
// the warp's 16, columns 8 * j + 2 * (lane % 4) + {0, 1}. Element 4 * j + {2, 3} is the same
// columns of row + 8. `a` and `b` are low halves of descriptors. The group is asynchronous and
// needs a wait. It is one asm statement, because each statement costs NVRTC its N/2 operands again.
template <int kN>
struct Mma;

// OCTILE_WGMMA_OUTPUT is the accumulators' constraint. With "=f" NVRTC need not track their old
// values, which the first step ignores; that saves 2 % of a compile. With "+f" the groups of a
// K-block that take turns (several strips, or parts of K) stay in one set of registers. Otherwise
// 256x128 spills.
#define OCTILE_D2(i) OCTILE_WGMMA_OUTPUT(d[(i)]), OCTILE_WGMMA_OUTPUT(d[(i) + 1])
#define OCTILE_D8(i) OCTILE_D2(i), OCTILE_D2((i) + 2), OCTILE_D2((i) + 4), OCTILE_D2((i) + 6)
#define OCTILE_TEXT_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define OCTILE_ARGS_16 OCTILE_D8(0)
#define OCTILE_TEXT_32 OCTILE_TEXT_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define OCTILE_ARGS_32 OCTILE_ARGS_16, OCTILE_D8(8)
#define OCTILE_TEXT_48 OCTILE_TEXT_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define OCTILE_ARGS_48 OCTILE_ARGS_32, OCTILE_D8(16)
#define OCTILE_TEXT_64 OCTILE_TEXT_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define OCTILE_ARGS_64 OCTILE_ARGS_48, OCTILE_D8(24)
#define OCTILE_TEXT_80 OCTILE_TEXT_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define OCTILE_ARGS_80 OCTILE_ARGS_64, OCTILE_D8(32)
#define OCTILE_TEXT_96 OCTILE_TEXT_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define OCTILE_ARGS_96 OCTILE_ARGS_80, OCTILE_D8(40)
#define OCTILE_TEXT_112 OCTILE_TEXT_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define OCTILE_ARGS_112 OCTILE_ARGS_96, OCTILE_D8(48)
#define OCTILE_TEXT_128 OCTILE_TEXT_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define OCTILE_ARGS_128 OCTILE_ARGS_112, OCTILE_D8(56)
#define OCTILE_TEXT_144 OCTILE_TEXT_128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define OCTILE_ARGS_144 OCTILE_ARGS_128, OCTILE_D8(64)
#define OCTILE_TEXT_160 OCTILE_TEXT_144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define OCTILE_ARGS_160 OCTILE_ARGS_144, OCTILE_D8(72)
#define OCTILE_TEXT_176 OCTILE_TEXT_160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define OCTILE_ARGS_176 OCTILE_ARGS_160, OCTILE_D8(80)
#define OCTILE_TEXT_192 OCTILE_TEXT_176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define OCTILE_ARGS_192 OCTILE_ARGS_176, OCTILE_D8(88)
#define OCTILE_TEXT_208 OCTILE_TEXT_192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define OCTILE_ARGS_208 OCTILE_ARGS_192, OCTILE_D8(96)
#define OCTILE_TEXT_224 OCTILE_TEXT_208 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define OCTILE_ARGS_224 OCTILE_ARGS_208, OCTILE_D8(104)
#define OCTILE_TEXT_240 OCTILE_TEXT_224 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define OCTILE_ARGS_240 OCTILE_ARGS_224, OCTILE_D8(112)
#define OCTILE_TEXT_256 OCTILE_TEXT_240 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define OCTILE_ARGS_256 OCTILE_ARGS_240, OCTILE_D8(120)

#define OCTILE_MMA_STEP(n, types, scale_d)                                     \
  "mov.b64 a, {a_low, high};\nmov.b64 b, {b_low, high};\n"                     \
  "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32." types " {" OCTILE_TEXT_##n \
      "}, a, b, " scale_d ", 1, 1;\nadd.u32 a_low, a_low, 2;\nadd.u32 b_low, b_low, 2;\n"

#define OCTILE_MMA_GROUP(n, a_operand, b_operand, steps)                          \
  asm volatile(                                                                   \
      "{\n.reg .pred set, add;\n.reg .b32 a_low, b_low, high;\n.reg .b64 a, b;\n" \
      "mov.b32 a_low, " a_operand ";\nmov.b32 b_low, " b_operand                  \
      ";\nmov.b32 high, " OCTILE_DESCRIPTOR_HIGH                                  \
      ";\nsetp.ne.b32 set, 0, 0;\nsetp.eq.b32 add, 0, 0;\n"                       \
      "wgmma.fence.sync.aligned;\n" steps "wgmma.commit_group.sync.aligned;\n}"   \
      : OCTILE_ARGS_##n                                                           \
      : "r"(a), "r"(b)                                                            \
      : "memory")

#define OCTILE_MMA_STEPS_1(n, types) OCTILE_MMA_STEP(n, types, "set")
#define OCTILE_MMA_STEPS_2(n, types) OCTILE_MMA_STEPS_1(n, types) OCTILE_MMA_STEP(n, types, "add")
#define OCTILE_MMA_STEPS_4(n, types) \
  OCTILE_MMA_STEPS_2(n, types)       \
  OCTILE_MMA_STEP(n, types, "add") OCTILE_MMA_STEP(n, types, "add")

#define OCTILE_MMA(n, steps, types, a_operand, b_operand)                             \
  template <>                                                                         \
  struct Mma<n> {                                                                     \
    __device__ static __forceinline__ void issue(float (&d)[(n) / 2], u32 a, u32 b) { \
      OCTILE_MMA_GROUP(n, a_operand, b_operand, OCTILE_MMA_STEPS_##steps(n, types));  \
    }                                                                                 \
  };

// A group for a whole K-block of 128, which adds to d. If groups with the same d follow each
// other, the tensor core adds in their order, and only the last of them needs a wait.
template <int kN>
struct MmaOnto;

// clang-format off
#define OCTILE_MMA_STEPS_ONTO(n, types)                             \
  OCTILE_MMA_STEP(n, types, "add")                                  \
  OCTILE_MMA_STEP(n, types, "add") OCTILE_MMA_STEP(n, types, "add") \
      OCTILE_MMA_STEP(n, types, "add")
// clang-format on

#define OCTILE_MMA_ONTO(n, types, a_operand, b_operand)                               \
  template <>                                                                         \
  struct MmaOnto<n> {                                                                 \
    __device__ static __forceinline__ void issue(float (&d)[(n) / 2], u32 a, u32 b) { \
      OCTILE_MMA_GROUP(n, a_operand, b_operand, OCTILE_MMA_STEPS_ONTO(n, types));     \
    }                                                                                 \
  };
// The numbers of the operands A and B, which follow the n / 2 accumulators.
#define OCTILE_OPERANDS_16 "%8", "%9"
#define OCTILE_OPERANDS_32 "%16", "%17"
#define OCTILE_OPERANDS_48 "%24", "%25"
#define OCTILE_OPERANDS_64 "%32", "%33"
#define OCTILE_OPERANDS_80 "%40", "%41"
#define OCTILE_OPERANDS_96 "%48", "%49"
#define OCTILE_OPERANDS_112 "%56", "%57"
#define OCTILE_OPERANDS_128 "%64", "%65"
#define OCTILE_OPERANDS_144 "%72", "%73"
#define OCTILE_OPERANDS_160 "%80", "%81"
#define OCTILE_OPERANDS_176 "%88", "%89"
#define OCTILE_OPERANDS_192 "%96", "%97"
#define OCTILE_OPERANDS_208 "%104", "%105"
#define OCTILE_OPERANDS_224 "%112", "%113"
#define OCTILE_OPERANDS_240 "%120", "%121"
#define OCTILE_OPERANDS_256 "%128", "%129"

// Specialises Mma for one n, a group of 1, 2 or 4 steps (32, 64 or 128 of K) and one pair of
// element types ("e4m3.e5m2": A's, then B's). A kernel instantiates inside namespace wgmma what it
// uses, because all values of n would cost NVRTC 27 ms a compile.
#define OCTILE_INSTANTIATE_MMA(n, steps, types) \
  OCTILE_MMA_OPERANDS(n, steps, types, OCTILE_OPERANDS(n))
#define OCTILE_OPERANDS(n) OCTILE_OPERANDS_##n
#define OCTILE_MMA_OPERANDS(n, steps, types, ...) OCTILE_MMA(n, steps, types, __VA_ARGS__)
// Specialises MmaOnto in the same way. OCTILE_WGMMA_OUTPUT is "+f".
#define OCTILE_INSTANTIATE_MMA_ONTO(n, types) OCTILE_MMA_ONTO_OPERANDS(n, types, OCTILE_OPERANDS(n))
#define OCTILE_MMA_ONTO_OPERANDS(n, types, ...) OCTILE_MMA_ONTO(n, types, __VA_ARGS__)

}  // namespace wgmma
