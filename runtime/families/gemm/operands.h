// Operands of GEMMs on a GPU. Calls rotate over several copies, so that no call finds its operands
// in L2.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "generator/gemm/problem.h"
#include "runtime/families/family.h"
#include "runtime/families/gemm/arguments.h"
#include "runtime/families/gemm/check.h"
#include "runtime/measure/gpu_session.h"
#include "runtime/measure/tensor.h"

namespace octile {

// Returns the bytes of the operands and the result, read or written once each, without scales. A
// call can neither move fewer nor touch more.
std::int64_t bytes_moved(const GemmProblem& problem, std::int64_t tokens);
std::int64_t bytes_touched(const GemmProblem& problem, std::int64_t tokens);

// Operands can be made for every GEMM.
inline Status check_operands(const GemmProblem&) { return {}; }

// What one GEMM reads and writes.
struct GemmSlot {
  DeviceTensor a, b;
  DeviceBuffer d;
  std::int64_t tokens = 0;
};
GemmArguments args_of(const GemmSlot& slot);
// Makes slots that all hold the same values.
Result<std::vector<GemmSlot>> make_slots(const GpuSession& gpu, const GemmProblem& problem,
                                         std::int64_t tokens, int slots, std::uint64_t seed);

// Poisons the slot's D, calls `run` and compares D with FP64 on the slot's operands.
Result<GemmCheck> run_and_check(const GpuSession& gpu, const GemmProblem& problem, GemmSlot& slot,
                                const std::function<Status()>& run);

static_assert(FamilyWithOperands<GemmProblem>);

}  // namespace octile
