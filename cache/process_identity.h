// The host and the running kernel of a process. Names of its files are made of them, so that no two
// hosts write the same file.
#pragma once

#include <string>

#include "cache/file_ops.h"

namespace octile::cache {

struct ProcessIdentity {
  // The running kernel and the namespace of process numbers, in 16 hexadecimal digits. Numbers of
  // equal places mean the same process. Empty: not known.
  std::string place;
  std::string host;  // the host's name, letters, digits, '_' and '-'
};

ProcessIdentity this_process(FileOps& ops);

}  // namespace octile::cache
