// The lock of an entry that a process compiles, so that the others wait for it. Root::lock() takes
// it.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "cache/file_ops.h"

namespace octile::cache {

// A locked lock file. The destructor removes and releases it; if the process dies, the kernel
// releases it. If a waiter took the lock over, the name belongs to the waiter's file, which stays.
class EntryLock {
 public:
  EntryLock(std::shared_ptr<FileOps> ops, OpenFile folder, std::string name, OpenFile file)
      : ops_(std::move(ops)),
        folder_(std::move(folder)),
        name_(std::move(name)),
        file_(std::move(file)) {}
  EntryLock(const EntryLock&) = delete;
  EntryLock& operator=(const EntryLock&) = delete;
  // The file is removed before it is unlocked. A waiter that locks the removed file notices,
  // because it compares that file with the one under the name.
  ~EntryLock();

 private:
  std::shared_ptr<FileOps> ops_;  // declared first, because the files below are closed through it
  OpenFile folder_;
  std::string name_;
  OpenFile file_;
};

}  // namespace octile::cache
