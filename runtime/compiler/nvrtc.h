// Opens NVRTC at run time and compiles CUDA source to a cubin with its resource report. Needs
// neither a GPU nor a driver.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/core/error.h"

namespace octile {

// What ptxas reports about one kernel, checked against the cubin.
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

// An opened NVRTC. It is immutable, and compile() may run in several threads at once. Each path is
// opened once in a process and never unloaded.
class Nvrtc {
 public:
  // Opens OCTILE_LIBNVRTC, and nothing else, if that is set. Otherwise opens the first library that
  // loads and has version 12.8 or newer. It tries libnvrtc.so.13 and libnvrtc.so.12 by the loader's
  // search, then in CUDA_HOME/lib64 and /usr/local/cuda/lib64. (The loader's search includes the
  // RUNPATH, by which a build tree finds its own NVRTC.) Errors: kNoCompiler, with every place that
  // was tried and why it failed.
  static Result<std::shared_ptr<const Nvrtc>> open();
  static Result<std::shared_ptr<const Nvrtc>> open(const std::string& path);
  ~Nvrtc();
  Nvrtc(const Nvrtc&) = delete;
  Nvrtc& operator=(const Nvrtc&) = delete;

  const std::string& path() const;  // the loaded file with links resolved
  int major() const;
  int minor() const;
  std::string version_text() const;  // "nvrtc 13.0": cache::Toolchain::compiler

  // Returns 32 hex digits (cache::Toolchain::build): XXH3-128 over the contents of libnvrtc and
  // libnvrtc-builtins, because the version alone does not distinguish two builds. Reading 100 MB
  // takes tens of milliseconds from the page cache, so the process remembers the digests by
  // status_text(). Errors: kNoCompiler if a library file cannot be read.
  Result<std::string> build_digest() const;

  // Compiles one program to a cubin. `name` is the file name in messages if the source has no
  // #line. `options` are passed in order. Two options that do not change the code are added. One
  // requests ptxas' report. From 12.9 on, the other turns off the driver's own compute cache,
  // because Octile has its own and compile_ms must be a compile time. Errors: kCompileFailed with
  // NVRTC's log, in a sentence of its own if the registers do not suffice for the launch bounds.
  // kOutOfMemory. kInternal if log and cubin contradict each other.
  Result<CompileOutput> compile(const std::string& name, const std::string& source,
                                std::span<const std::string> options) const;

 private:
  struct Impl;
  explicit Nvrtc(std::unique_ptr<const Impl> impl);
  static Result<std::shared_ptr<const Nvrtc>> load(const std::string& path);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace octile
