// Compiles CUDA source for a library handle, in processes of octile-compiler.
//
// NVRTC takes over SIGINT and SIGTERM while it compiles, exits on them, may crash, and does not
// support fork. In a separate process this does not affect the host. Each process compiles one
// program at a time and then waits for the next, so their number is that of concurrent compiles. If
// no process can be started, NVRTC compiles in this one.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "generator/core/error.h"
#include "runtime/compiler/compile_output.h"
#include "runtime/compiler/compiler_program.h"
#include "runtime/compiler/nvrtc.h"

namespace octile {

class CompilerPool {
 public:
  using Warn = std::function<void(const std::string& sentence)>;

  // warn is called if compiles run in this process although nobody asked for that.
  explicit CompilerPool(Warn warn, CompileLimits limits = {});
  ~CompilerPool();
  CompilerPool(const CompilerPool&) = delete;
  CompilerPool& operator=(const CompilerPool&) = delete;

  // Returns the NVRTC that compiles, and starts the first process if there is none. After a failure
  // the next call tries again. Errors: kNoCompiler, with every place that was tried.
  Result<NvrtcIdentity> open();

  // Notes the digest of the NVRTC that open() returned. A later process whose files have another
  // status, but this digest, has the same NVRTC.
  void set_build(std::string digest);

  // See Nvrtc::compile. May be called from several threads at once. Errors: also kNoCompiler, and
  // kCompileFailed if NVRTC crashed, or took more time or memory than it may.
  Result<CompileOutput> compile(const std::string& name, const std::string& source,
                                std::span<const std::string> options);

  // Returns the program that compiles, or nullopt if compiles run in this process.
  std::optional<std::string> program();

 private:
  using Process = std::unique_ptr<CompilerProgram>;
  struct Taken {  // a process, else NVRTC in this one
    Process process;
    std::shared_ptr<const Nvrtc> in_process;
    bool was_idle = false;
  };

  Result<Taken> take();
  Result<Taken> start();
  Result<Taken> open_here(const std::string& why);
  void give_back(Process process);
  Status agree(const NvrtcIdentity& identity);

  const Warn warn_;
  const CompileLimits limits_;
  std::mutex mutex_;  // guards everything below
  std::vector<Process> idle_;
  std::optional<NvrtcIdentity> identity_;
  std::string build_;    // identity_'s; empty: not known
  std::string nvrtc_;    // for programs that do not find it themselves
  std::string useless_;  // why no further program is started; empty: none was silent
  bool warned_ = false;
};

}  // namespace octile
