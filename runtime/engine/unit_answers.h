// Known-answer tests of matrix units: the result of a GEMM with each unit on a device is compared
// with the host executor's. They also measure how many bits the unit keeps of a sum.
#pragma once

#include <string>
#include <vector>

#include "runtime/engine/proof_run.h"

namespace octile {

struct UnitAnswer : Answer {
  MatrixUnit unit = MatrixUnit::kWgmma;
  // The answer is about the instruction that multiplies scales of blocks, without which the unit
  // serves.
  bool is_of_scales = false;
};

// Returns "tcgen05", or "tcgen05 with scales in the instruction".
std::string name_of(const UnitAnswer& answer);

// Tests the device's units by their forms (unit_forms.h), the default unit first: a GEMM of
// 64x64x256 of small integers, with zeros of both signs, subnormal codes, a NaN and odd scales. A
// unit whose instruction multiplies scales computes it with MX scales too, of which all that meet
// in an instruction differ, and one of each operand is NaN. A unit that no card is known to compute
// right by has a form of each kind of kernel, twenty times. If all of them without scales in the
// instruction pass, those with scales have an answer of their own. A unit that keeps fewer bits of
// a sum than its description says is wrong too.
std::vector<UnitAnswer> test_units(ProofRun& run, const Target& target);

}  // namespace octile
