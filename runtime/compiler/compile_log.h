// Reads NVRTC's program log: what ptxas reports of each kernel under --ptxas-options=-v, and what a
// person should know of. The lines, as NVRTC 13.0 writes them:
//
//   gemm/hopper_1d2d.cu(77): warning #177-D: variable "x" was declared but never referenced
//   ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to ...
//   ptxas info    : Compiling entry function 'k' for 'sm_90a'
//   ptxas info    : Function properties for k
//   ptxas         .     520 bytes stack frame, 936 bytes spill stores, 1052 bytes spill loads
//   ptxas info    : Used 32 registers, used 1 barriers, 256 bytes smem
//   ptxas fatal   : (C7602) Insufficient registers (64) to compile instruction at line ...
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace octile {

struct LoggedKernel {
  std::string name;
  int registers = 0;
  int stack_bytes = 0;        // of the entry function itself
  int spill_store_bytes = 0;  // with those of device functions compiled for this entry
  int spill_load_bytes = 0;
};

struct CompileLog {
  std::vector<LoggedKernel> kernels;
  std::vector<std::string> warnings;        // whole lines, lost_schedules among them
  std::vector<std::string> lost_schedules;  // C7508, C7510, C7514
  std::string insufficient_registers;       // the C7602 line; empty: none
};

CompileLog parse_compile_log(std::string_view log);

}  // namespace octile
