// The result of a compile: the cubin, and ptxas' report on its kernels.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "generator/core/error.h"

namespace octile {

// What NVRTC gives, as it gives it.
struct CubinAndLog {
  std::vector<std::uint8_t> cubin;
  std::string log;        // complete, including the resource lines
  double compile_ms = 0;  // time of one NVRTC program from creation to cubin
};

// The report of ptxas on one kernel, checked against the cubin.
struct KernelResources {
  std::string name;
  int registers = 0;  // at entry
  int spill_store_bytes = 0;
  int spill_load_bytes = 0;
  int stack_bytes = 0;
  int static_smem_bytes = 0;
  int max_threads = 0;               // from __launch_bounds__; 0: not stated
  std::vector<int> parameter_bytes;  // in order
};

struct CompileOutput {
  std::vector<std::uint8_t> cubin;
  std::vector<KernelResources> kernels;  // in the order of the cubin
  std::string log;                       // complete, including the resource lines
  std::vector<std::string> warnings;     // lines of the log that a person should read
  // Warnings by which ptxas abandoned the schedule that the source requests (setmaxnreg ignored,
  // WGMMA serialised). Such a kernel is correct but slow: a tuner drops it, and a test fails on it.
  std::vector<std::string> lost_schedules;
  double compile_ms = 0;  // time of one NVRTC program from creation to cubin
  const KernelResources* find(std::string_view kernel) const;  // null if absent
};

// Reads the cubin and the log. Errors: kCompileFailed if it is none or they contradict each other.
Result<CompileOutput> read_output(CubinAndLog compiled);

}  // namespace octile
