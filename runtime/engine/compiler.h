// The compiler of one library handle: opened on first need only, and known by name before that.
//
// A fresh process whose kernels are all cached needs the toolchain's name (it is part of what the
// writable cache matches) but not the compiler, and opening NVRTC costs 5 to 250 ms. So the name is
// remembered in the cache folder with everything it was derived from: the variables that lead the
// search for NVRTC, and size, modification time and inode of its files. Where any of these differs,
// the memo is ignored and NVRTC is opened. A memo that is wrong all the same (a library replaced by
// one of the same size within the resolution of the clock) costs provenance, never a wrong kernel:
// source, options and architecture are compared in full.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "cache/key.h"
#include "generator/core/error.h"
#include "runtime/compiler/nvrtc.h"

namespace octile {

class Compiler {
 public:
  struct Opened {
    std::shared_ptr<const Nvrtc> nvrtc;
    cache::Toolchain toolchain;
  };

  // memo_folder: an existing or creatable folder; empty: nothing is remembered.
  explicit Compiler(std::string memo_folder);

  // Opens NVRTC on the first call. A failure is not remembered: the next call tries again.
  // Errors: kNoCompiler, with every place that was tried.
  Result<Opened> open();

  // The toolchain open() would give: from the memo where it holds, else by opening.
  Result<cache::Toolchain> toolchain();

 private:
  void remember(const Opened& opened);
  std::optional<cache::Toolchain> recall() const;

  const std::string memo_folder_;
  std::mutex mutex_;
  std::optional<Opened> opened_;
  std::optional<cache::Toolchain> recalled_;
};

}  // namespace octile
