// The compiler of one library handle. It is opened when first needed; its name is known before. It
// runs in separate processes (CompilerPool).
//
// A new process whose kernels are all cached needs the toolchain's name, which the writable cache
// compares, but not the compiler. Opening NVRTC costs 5 to 250 ms, and reading its 100 MB for the
// build's digest tens of milliseconds. So a memo in the writable root holds the name and everything
// it was derived from: the variables that lead the search for NVRTC, and path, size, modification
// time, ctime and inode of its files (FORMAT.md section 9). If any of these differs, NVRTC is
// opened; if one of the files differs, they are read. A memo can still be wrong, if a library of
// the same size replaced another within the resolution of the clock. Then the provenance of a
// kernel is wrong, but not the kernel, because source, options and architecture are compared in
// full.
#pragma once

#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "cache/key.h"
#include "cache/memo_file.h"
#include "generator/core/error.h"
#include "runtime/compiler/compiler_pool.h"

namespace octile {

class Compiler {
 public:
  struct Opened {
    NvrtcIdentity nvrtc;
    cache::Toolchain toolchain;
  };

  // memo_root: the writable root; empty: there is no memo. file_ops null: the system's. warn: see
  // CompilerPool; also called with each library that is there and is not trusted.
  explicit Compiler(
      const std::string& memo_root, std::shared_ptr<cache::FileOps> file_ops = nullptr,
      CompilerPool::Warn warn = [](const std::string&) {});

  // Opens NVRTC on the first call. After a failure the next call tries again. Errors: kNoCompiler,
  // with every place that was tried.
  Result<Opened> open();

  // Returns the toolchain that open() would give: from the memo if it holds, else by opening.
  Result<cache::Toolchain> toolchain();

  // See CompilerPool::compile.
  Result<CompileOutput> compile(const std::string& name, const std::string& source,
                                std::span<const std::string> options) {
    return pool_.compile(name, source, options);
  }

 private:
  struct Memo;
  std::optional<Memo> read_memo() const;
  void remember(const Opened& opened, const std::string& files) const;
  std::optional<cache::Toolchain> recall() const;
  void warn_of_refused_places();

  const std::shared_ptr<cache::FileOps> ops_;
  const std::optional<cache::MemoFile> memo_;  // empty: there is no memo
  const CompilerPool::Warn warn_;
  CompilerPool pool_;
  std::mutex mutex_;
  std::optional<Opened> opened_;
  std::optional<cache::Toolchain> recalled_;
  bool warned_ = false;
};

}  // namespace octile
