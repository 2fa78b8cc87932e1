// Operands of mma.sync: the names of its types, and loads from shared memory. PTX ISA 9.0, "Warp
// Level Matrix Instructions: ldmatrix".
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

namespace mma {

// The element type of an operand.
enum Element : int { kE4M3, kE5M2 };

// ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r0, r1, r2, r3}, [addr];  PTX 6.5, sm_75. Four tiles of
// 8 rows of 16 bytes. Lane i gives the address of row i % 8 of tile i / 8, 16-byte aligned.
// Register j is bytes 4 * (lane % 4) to 4 * (lane % 4) + 3 of row lane / 4 of tile j. It is
// volatile, so that it stays behind the wait for its data.
__device__ __forceinline__ void load_x4(u32 (&registers)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(address)
               : "memory");
}

}  // namespace mma
