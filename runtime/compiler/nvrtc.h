// Opens NVRTC at run time and compiles CUDA source to a cubin with its resource report. Needs
// neither a GPU nor a driver. A compile may take CompileLimits::time of compiler_program.h, 10
// minutes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/core/error.h"
#include "runtime/compiler/compile_output.h"
#include "runtime/compiler/nvrtc_search.h"

namespace octile {

// Names the NVRTC that compiles. Two identities are equal if their files are the same.
struct NvrtcIdentity {
  std::string path;           // the loaded file with links resolved
  std::string builtins_path;  // empty if it is not beside the library
  int major = 0;
  int minor = 0;
  std::string files;  // status_text() of each when they were opened
  friend bool operator==(const NvrtcIdentity&, const NvrtcIdentity&) = default;

  std::string version_text() const;  // "nvrtc 13.0": cache::Toolchain::compiler

  // Returns 32 hex digits (cache::Toolchain::build): XXH3-128 over the contents of libnvrtc and
  // libnvrtc-builtins, because the version alone does not distinguish two builds. Reading 100 MB
  // takes tens of milliseconds from the page cache, so the process remembers the digests by
  // status_text(). If the files were replaced since they were opened, what was opened can no longer
  // be read, and the digits are of `files`. Errors: kNoCompiler if a library file cannot be read.
  Result<std::string> build_digest() const;
};

// The outcome at one place where NVRTC was looked for.
struct NvrtcTrial {
  NvrtcPlace place;
  bool taken = false;
  std::string outcome;  // "taken", "no NVRTC there", or why the library cannot be used
};

// An opened NVRTC. It is immutable, and compile() may run in several threads at once. Each path is
// opened once in a process and never unloaded.
class Nvrtc {
 public:
  // Opens OCTILE_LIBNVRTC, and nothing else, if that is set. Otherwise opens the first library of
  // nvrtc_places() that loads and has version 12.8 or newer. Errors: kNoCompiler, with every place
  // that was tried, why it failed, and what to set. `trials`, if given, receives what became of
  // each place up to the one that was taken.
  static Result<std::shared_ptr<const Nvrtc>> open(std::vector<NvrtcTrial>* trials = nullptr);
  static Result<std::shared_ptr<const Nvrtc>> open(const std::string& path);
  ~Nvrtc();
  Nvrtc(const Nvrtc&) = delete;
  Nvrtc& operator=(const Nvrtc&) = delete;

  const NvrtcIdentity& identity() const;

  // Compiles one program to a cubin. `name` is the file name in messages if the source has no
  // #line. `options` are passed in order. Two options that do not change the code are added. One
  // requests ptxas' report. From 12.9 on, the other turns off the driver's own compute cache,
  // because Octile has its own and compile_ms must be a compile time. Errors: kCompileFailed with
  // NVRTC's log, in a sentence of its own if the registers do not suffice for the launch bounds.
  // kOutOfMemory. kNoCompiler if this NVRTC is older than the options' architecture.
  //
  // While it compiles, NVRTC handles SIGINT and SIGTERM of the whole process and calls exit(4) on
  // either. CompilerPool compiles in another process, within CompileLimits (compiler_program.h).
  Result<CubinAndLog> compile_to_cubin(const std::string& name, const std::string& source,
                                       std::span<const std::string> options) const;
  // Compiles as compile_to_cubin() does, then reads the cubin and the log. Errors: also those of
  // read_output().
  Result<CompileOutput> compile(const std::string& name, const std::string& source,
                                std::span<const std::string> options) const;

 private:
  struct Impl;
  explicit Nvrtc(std::unique_ptr<const Impl> impl);
  static Result<std::shared_ptr<const Nvrtc>> search(std::vector<NvrtcTrial>& tried);
  static Result<std::shared_ptr<const Nvrtc>> load(const std::string& path);
  Status check_architecture(const std::string& name, std::span<const std::string> options) const;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace octile
