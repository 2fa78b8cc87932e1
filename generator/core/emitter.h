// An emitted kernel: one self-contained CUDA source and how to compile and launch it. A
// kernel is a real .cu template; prologue.h adds the named constants, and each family's emit.h says
// which:
//   1. the fixed library text, identical for every kernel
//   2. namespace cfg { constexpr int kBlockM = 128; ... }
//   3. static_asserts that the device's arithmetic equals the host's
//   4. #line to the template, so that a compiler error names the template's line
//   5. the body
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/core/device_spec.h"

namespace octile {

struct TemplateFile {
  std::string_view path;  // relative to templates/: "quantize/norm.cuh"
  std::string_view text;
};
// All files under templates/, in path order. The component `templates` embeds them.
using TemplateSet = std::span<const TemplateFile>;

struct EntryPoint {
  std::string name;
  std::vector<int> parameter_bytes;  // size of each kernel parameter, in order
};

struct EmittedKernel {
  std::string name;                    // entry point
  std::vector<EntryPoint> companions;  // further entry points of the same source
  std::string template_path;           // the body's file
  std::string source;
  std::vector<std::string> options;  // NVRTC options, architecture included
  int threads = 0;                   // per block
  int smem_bytes = 0;                // dynamic
  int cluster = 1;                   // CTAs of a launch cluster, along x
  std::vector<int> parameter_bytes;  // size of each kernel parameter, in order
  std::string config_text;
};

// Returns the file of the library that orders kernels in a stream: as programmatic launches, or by
// the stream alone.
std::string_view launch_library(const DeviceSpec&);

// Returns the NVRTC options that every kernel of a device is compiled with; some kernels add their
// own. Options are part of a kernel's identity.
std::vector<std::string> compile_options(const DeviceSpec&);

}  // namespace octile
