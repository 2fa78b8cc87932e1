// Where a process runs, for names that processes of all hosts keep apart.
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
