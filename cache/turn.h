// Turns that the processes and threads of a root take: whoever holds the lock of the file
// turns/<name> does the work of that name. See FORMAT.md section 6.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cache/file_ops.h"
#include "cache/root.h"

namespace octile::cache {

enum class TurnState : std::uint8_t {
  kMine,
  kTaken,   // another has it at this moment
  kFailed,  // another has it, and has found that the work cannot be done
};

// A turn saves work and is never needed for correctness: on a file system without locks, each takes
// it at once. The destructor gives it back; if the process dies, the kernel or the file server
// does. For one thread.
class Turn {
 public:
  // root "": there is nobody to share with.
  Turn(const std::string& root, std::string name, std::shared_ptr<FileOps> ops = nullptr);
  Turn(Turn&&) = default;
  Turn& operator=(Turn&&) = delete;
  ~Turn() { give_back(); }

  // Takes it, or keeps it. Errors: the folder or the file is refused, or cannot be made.
  IoResult<TurnState> try_take();
  bool is_mine() const { return file_.fd() >= 0; }
  // Those who ask for it see kFailed until it is given back.
  void fail();
  void give_back();

 private:
  IoResult<TurnState> state_of_other(const OpenFile& file) const;

  std::shared_ptr<FileOps> ops_;  // declared first, because the file is closed through it
  Root root_;
  bool shared_;
  std::string name_, path_;
  OpenFile file_;  // locked
};

}  // namespace octile::cache
