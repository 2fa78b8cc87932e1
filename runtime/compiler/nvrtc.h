// NVRTC, opened at run time: CUDA source in, cubin and its resource report out. Needs no GPU and no
// driver.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/core/error.h"

namespace octile {

// What ptxas reports of one kernel, checked against the cubin.
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
  std::string log;                       // complete, resource lines included
  std::vector<std::string> warnings;     // lines of the log a person should read
  // The warnings by which ptxas gave up the schedule the source asks for (setmaxnreg ignored, WGMMA
  // serialised): the kernel is right and slow. A tuner drops such a candidate, a test fails on it.
  std::vector<std::string> lost_schedules;
  double compile_ms = 0;  // one NVRTC program from create to cubin
  const KernelResources* find(std::string_view kernel) const;  // null where absent
};

// An opened NVRTC. Immutable; compile() may run in several threads at once. Opened once per path
// and process, never unloaded.
class Nvrtc {
 public:
  // OCTILE_LIBNVRTC where it is set, and nothing else then. Otherwise the first that opens and is
  // 12.8 or newer: libnvrtc.so.13, libnvrtc.so.12 by the loader's search (which knows the folder a
  // build tree took NVRTC from, by its RUNPATH), then in CUDA_HOME/lib64 and /usr/local/cuda/lib64.
  // Errors: kNoCompiler, with every place that was tried and why it would not do.
  static Result<std::shared_ptr<const Nvrtc>> open();
  static Result<std::shared_ptr<const Nvrtc>> open(const std::string& path);
  ~Nvrtc();
  Nvrtc(const Nvrtc&) = delete;
  Nvrtc& operator=(const Nvrtc&) = delete;

  const std::string& path() const;  // the file that was loaded, links resolved
  int major() const;
  int minor() const;
  std::string version_text() const;  // "nvrtc 13.0": cache::Toolchain::compiler

  // 32 hex digits: XXH3-128 over the contents of libnvrtc and libnvrtc-builtins, because the
  // version alone does not tell two builds apart (cache::Toolchain::build). Reading 100 MB takes
  // tens of milliseconds warm, so the digest is remembered in the process by (path, size, mtime,
  // inode) and, where `memo_file` is not empty, in that file too; a memo that cannot be read or
  // written is ignored. Errors: kNoCompiler where a library file cannot be read.
  Result<std::string> build_digest(const std::string& memo_file = {}) const;

  // Compiles one program to a cubin. `name` is the file name messages bear where the source has no
  // #line. `options` are passed in order; two that do not change the code are added: ptxas' report,
  // and from 12.9 on no use of the driver's own compute cache (Octile's cache stands in its place,
  // and compile_ms stays what it says). Errors:
  // kCompileFailed with NVRTC's log, in a sentence of its own where the registers do not suffice
  // for the launch bounds; kOutOfMemory; kInternal where log and cubin contradict each other.
  Result<CompileOutput> compile(const std::string& name, const std::string& source,
                                std::span<const std::string> options) const;

 private:
  struct Impl;
  explicit Nvrtc(std::unique_ptr<const Impl> impl);
  static Result<std::shared_ptr<const Nvrtc>> load(const std::string& path);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace octile
