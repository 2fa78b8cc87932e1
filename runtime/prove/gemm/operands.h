// Operands of GEMMs on a GPU. Calls rotate over several copies, so that no call finds its operands
// in L2.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "generator/gemm/problem.h"
#include "runtime/families/gemm/arguments.h"
#include "runtime/measure/gpu_session.h"
#include "runtime/measure/tensor.h"
#include "runtime/prove/family.h"
#include "runtime/prove/gemm/check.h"

namespace octile {

// Returns the bytes that a call reads and writes at least, without scales: the operands and the
// result once each, and the old D if the GEMM accumulates.
std::int64_t bytes_moved(const GemmProblem& problem, std::int64_t tokens);
// Returns the bytes of the tensors themselves.
std::int64_t bytes_touched(const GemmProblem& problem, std::int64_t tokens);

// Operands can be made for every GEMM.
inline Status check_operands(const GemmProblem&) { return {}; }

// The groups of a call; empty if the problem has none.
struct GemmGroups {
  std::vector<std::int32_t> host;  // offsets or counts
  DeviceBuffer device;
};
// Returns the offsets or counts with a copy of them on the device.
Result<GemmGroups> make_groups(const GpuSession& gpu, std::vector<std::int32_t> host);

// The operands and results of one GEMM.
struct GemmSlot {
  DeviceTensor a, b;
  DeviceBuffer d;
  std::int64_t tokens = 0;
  std::int64_t expected_tokens = 0;  // of masked groups: rows that a group has on average
  DeviceBuffer bias, sentry;         // empty if the problem has none
  GemmGroups groups;
  bool groups_are_masked = false;
  DeviceBuffer d_scale;  // packed; empty unless D is FP8
};
GemmArguments args_of(const GemmSlot& slot);
// Makes slots that all hold the same values. D and the sentry are zero. Groups have between half
// and three halves of the mean: contiguous ones share the tokens, and masked ones have `tokens` on
// average, in room for half as many again.
Result<std::vector<GemmSlot>> make_slots(const GpuSession& gpu, const GemmProblem& problem,
                                         std::int64_t tokens, int slots, std::uint64_t seed);

// Every byte of a D to which a checked call adds, and the value of an element of such bytes: 3.0 in
// bf16, about that in fp32.
inline constexpr std::uint8_t kAddendByte = 0x40;
float addend_of(const GemmProblem& problem);
// Returns the value of an element of bf16 or fp32 D whose bytes are all `byte`.
float value_of_bytes(const GemmProblem& problem, std::uint8_t byte);

// Poisons the slot's D, or gives it values if the problem accumulates, calls `run` and compares D
// with FP64 on the slot's operands.
Result<GemmCheck> run_and_check(const GpuSession& gpu, const GemmProblem& problem, GemmSlot& slot,
                                const std::function<Status()>& run);

static_assert(FamilyWithOperands<GemmProblem>);

}  // namespace octile
