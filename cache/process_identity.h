// Identifies a process, so that another one can tell later whether it still runs.
#pragma once

#include <cstdint>
#include <string>

#include "cache/file_ops.h"

namespace octile::cache {

struct ProcessIdentity {
  // The running kernel and the namespace of process numbers, in 16 hexadecimal digits. Numbers of
  // equal places mean the same process. Empty: not known.
  std::string place;
  std::string host;  // the host's name, letters, digits, '_' and '-'
  std::int64_t number = 0;
  std::int64_t started = 0;  // in the kernel's ticks since it started; 0: not known
  friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) = default;
};

ProcessIdentity this_process(FileOps& ops);

// Returns true if the process has ended, which only a process of the same place can know.
bool has_ended(FileOps& ops, const ProcessIdentity& process, const ProcessIdentity& self);

}  // namespace octile::cache
