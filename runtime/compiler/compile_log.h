// Parses NVRTC's program log: the resources that ptxas reports for each kernel under
// --ptxas-options=-v, and the lines that a person should read. NVRTC 13.0 writes these lines:
//
//   gemm/kernel.cu(77): warning #177-D: variable "x" was declared but never referenced
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
  int stack_bytes = 0;        // stack of the entry function alone
  int spill_store_bytes = 0;  // includes device functions compiled for this entry
  int spill_load_bytes = 0;
};

struct CompileLog {
  std::vector<LoggedKernel> kernels;
  std::vector<std::string> warnings;        // complete lines, including lost_schedules
  std::vector<std::string> lost_schedules;  // lines with C7508, C7510 or C7514
  std::string insufficient_registers;       // the line with C7602; empty if there is none
};

CompileLog parse_compile_log(std::string_view log);

}  // namespace octile
