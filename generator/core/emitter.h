// Problem + configuration -> one self-contained CUDA source. A kernel is a real .cu template; the
// emitter adds only a prologue of named constants:
//   1. the fixed library text, identical for every kernel
//   2. namespace cfg { constexpr int kBlockM = 128; ... }
//   3. static_asserts that the device's arithmetic equals the host's
//   4. #line to the template, so a compiler error names the template's line
//   5. the body
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "generator/core/device_spec.h"
#include "generator/core/error.h"
#include "generator/gemm/config.h"
#include "generator/problem.h"
#include "generator/quantize/config.h"

namespace octile {

struct TemplateFile {
  std::string_view path;  // relative to templates/: "gemm/hopper_1d2d.cu"
  std::string_view text;
};
// All files under templates/, in path order. The templates room embeds them.
using TemplateSet = std::span<const TemplateFile>;

using KernelConfig = std::variant<GemmConfig, QuantizeConfig>;

struct EntryPoint {
  std::string name;
  std::vector<int> parameter_bytes;  // size of each kernel parameter, in order
};

struct EmittedKernel {
  std::string name;  // entry point
  // Further entry points of the same source. For a quantiser: its companions_of, in that order.
  std::vector<EntryPoint> companions;
  std::string template_path;  // the body's file
  std::string source;
  std::vector<std::string> options;  // NVRTC options, architecture included
  int threads = 0;                   // per block
  int smem_bytes = 0;                // dynamic
  int cluster = 1;                   // CTAs of a launch cluster, along x
  std::vector<int> parameter_bytes;  // size of each kernel parameter, in order
  std::string config_text;
};

Result<EmittedKernel> emit(const Problem&, const KernelConfig&, const DeviceSpec&, TemplateSet);

// The NVRTC options every kernel of a device is compiled with; some kernels add their own. Part of
// a kernel's identity.
std::vector<std::string> compile_options(const DeviceSpec&);

// What shape and recipe changed in the source, one "name = value  (why)" a line.
std::string explain(const Problem&, const KernelConfig&, const DeviceSpec&);

}  // namespace octile
