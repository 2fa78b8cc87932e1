// The turn to search configurations on a kind of device, of the processes and threads that share a
// root: <root>/tuning.<device>-<SMs>.lock. See FORMAT.md section 6.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "cache/file_ops.h"
#include "cache/root.h"

namespace octile::cache {

// The lock saves work and is never needed for correctness. Where it cannot be had (a folder that is
// refused, a filesystem without locks), each takes its turn at once. The destructor gives it back;
// if the process dies, the kernel does. For one thread.
class TuningLock {
 public:
  // root "": there is nobody to share with.
  TuningLock(const std::string& root, std::string_view device, int sm_count,
             std::shared_ptr<FileOps> file_ops = nullptr);

  // Returns true if it is this one's turn, and false if another has it at this moment.
  bool try_take();
  void give_back() { file_.close(); }

 private:
  std::shared_ptr<FileOps> ops_;  // declared first, because the file is closed through it
  Root root_;
  bool shared_;
  std::string name_;
  OpenFile file_;  // locked
};

}  // namespace octile::cache
