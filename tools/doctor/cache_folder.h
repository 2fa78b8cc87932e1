// Why a cache folder cannot be used, or is used slowly.
#pragma once

#include <string>

namespace octile::tools {

struct CacheFolder {
  std::string why_not;  // a sentence; empty: kernels can be kept there
  std::string advice;   // what to change although it works; empty: nothing
};

// Looks at the folder as the cache does: its mode, then whether a file can be made in it, or in the
// nearest existing folder above it, and how much room its disk has. Leaves nothing there.
CacheFolder look_at_cache_folder(const std::string& root);

// Returns why nothing is read from a read-only root; a root that does not exist yet is not at
// fault.
std::string why_unread(const std::string& root);

// Returns "nfs" for the number that statfs(2) gives for it, or nothing for a local file system.
std::string network_filesystem(unsigned long type);

}  // namespace octile::tools
