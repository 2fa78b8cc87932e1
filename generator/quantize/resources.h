// A configuration's share of an SM: threads and shared memory. The emitted source takes the offsets
// as constants and asserts that the device's arithmetic agrees. A thread has at most the registers
// of an SM / (threads * blocks_per_sm). Default configurations have kMeasuredRegisters /
// (32 * warps) of a row of residency.cc.
#pragma once

#include <cstdint>

#include "generator/core/error.h"
#include "generator/quantize/config.h"
#include "generator/quantize/problem.h"

namespace octile {

// Offsets and sizes of the parts of a thread block's dynamic shared memory, in bytes.
struct QuantizeSharedMemory {
  int table_offset = 0;    // looks_up: the values of a part of the source
  int rings_offset = 0;    // looks_up: a ring for each warp
  int waiting_offset = 0;  // halves_together: the right half's values
  int ring_bytes = 0;      // one warp's rows on their way; static shared memory unless looks_up
  int dynamic_bytes = 0;   // what a launch asks for
};

struct QuantizeResources {
  int threads = 0;
  int smem_bytes = 0;          // dynamic
  int vectors_per_thread = 0;  // independent 16-byte loads of one thread: its bytes in flight
};

QuantizeSharedMemory shared_memory_of(const QuantizeProblem&, const QuantizeConfig&);
QuantizeResources resources_of(const QuantizeProblem&, const QuantizeConfig&);

// Returns the rows of a tile that are worked on at once.
int step_rows(const QuantizeProblem&, const QuantizeConfig&);
// Returns the shared memory of a thread block that bounds how many are resident: a table and the
// rows on their way, or the codes and the values that wait. 0 if a block has little of it.
int resident_smem_bytes(const QuantizeProblem&, const QuantizeConfig&);
// Returns the bytes of a transposed copy's staged codes and of its columns' scales.
int staged_bytes(const QuantizeConfig&);
// Returns the bytes of all rings of a thread block; 0 unless rows stream.
int ring_bytes(const QuantizeProblem&, const QuantizeConfig&);

}  // namespace octile
