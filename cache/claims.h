// Questions that several processes share: each is claimed by a file that is made exclusively and
// never renamed or removed, claims/<question>.<g> below a root. See FORMAT.md section 6.
//
// Nothing here takes a lock, and no clock of a host is compared with a file's time: the age of a
// claim is the difference of the file server's times for it and for a file that this process has
// just touched.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cache/file_ops.h"
#include "cache/process_identity.h"
#include "cache/root.h"

namespace octile::cache {

struct ClaimOptions {
  // A claim whose owner has not touched it for so long is nobody's. Attributes of files that a
  // client of NFS has seen stay as they were for up to a minute there.
  double lease_seconds = 180;
  // A claim without its owner's line, which follows at once: its maker died or found the disk full.
  double ownerless_seconds = 10;
  double beat_seconds = 20;
  std::function<double()> clock;  // seconds, of this process alone; null: steady_clock's
};

enum class ClaimState {
  kMine,
  kTaken,   // another process is at work on it
  kGone,    // its owner has ended, has been silent for a lease, or has let go of it
  kFailed,  // its owner found that it cannot be decided
};

// One per process, or per thread of a test.
class Claims {
 public:
  // `rank` names this owner's own files; it differs from all other living owners' of the root.
  Claims(const std::string& root, std::string rank, ProcessIdentity self, ClaimOptions options = {},
         std::shared_ptr<FileOps> ops = nullptr);

  // Makes the claim number g of a question, or returns what has become of it.
  IoResult<ClaimState> claim(const std::string& question, int g);
  // Touches the claims of this owner that are open, if it is time to.
  void beat();
  // Ends a claim of this owner. A word that is not empty is added to the file for the others.
  void close(const std::string& question, std::string_view word = {});
  // Ends all of this owner's, which others may take over at once.
  void let_go();

  static constexpr std::string_view kFailed = "failed";
  static constexpr std::string_view kReleased = "released";

 private:
  IoResult<OpenFile> open_folder() const;
  std::string path_of(const std::string& name) const;
  IoResult<bool> make(const OpenFile& folder, const std::string& name) const;
  IoResult<ClaimState> state_of(const OpenFile& folder, const std::string& name);
  IoResult<std::int64_t> modified_ns(const OpenFile& folder, const std::string& name) const;
  IoResult<std::int64_t> server_ns(const OpenFile& folder);

  std::shared_ptr<FileOps> ops_;
  Root root_;
  const std::string rank_;
  const ProcessIdentity self_;
  const ClaimOptions options_;
  const std::string line_;                   // what this owner's claims say
  std::map<std::string, std::string> open_;  // file names by question
  double beaten_ = 0;
  double asked_ = 0;  // by the clock, when the server's time was asked for
  std::int64_t server_ns_ = 0;
};

}  // namespace octile::cache
