// The GEMMs that represent a matrix unit in its known-answer tests: a table of problems and
// configurations.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "generator/core/device_spec.h"
#include "generator/gemm/config.h"
#include "generator/gemm/problem.h"

namespace octile {

// A GEMM that a unit computes.
struct UnitForm {
  std::string_view operands;  // fields of its text: types of A and B
  std::string_view promote;   // the value of a field
  std::string_view result;    // fields: type of D, accumulation, groups and the like
  std::size_t m = 0, n = 0, k = 0;
  bool sums_tokens = false;      // the token count is k, else m
  std::string_view config = {};  // without unit and promotion; empty: the default one
  int sm_limit = 0;              // so that a thread block has several tiles; 0: none
  int times = 1;
  std::string_view what = {};  // before what is wrong: "with FP8 D "
};
GemmProblem problem_of(const UnitForm& form);
// Returns its configuration on a device of one unit.
GemmConfig config_of(const UnitForm& form, const DeviceSpec& device);

// The tests of a unit, or of its instruction that multiplies scales of blocks. Those of the latter
// are done if all others have passed.
struct UnitTests {
  MatrixUnit unit = MatrixUnit::kWgmma;
  bool is_of_scales = false;
  DeviceSpec device;  // with the unit alone
  std::vector<UnitForm> forms;
};
// Returns the tests of a device's units, the default unit first. A unit that no card is known to
// compute right by (DeviceSpec::unused_units) has more forms than others.
std::vector<UnitTests> unit_tests(const DeviceSpec& device);

}  // namespace octile
