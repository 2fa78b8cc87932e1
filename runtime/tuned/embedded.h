// The tuned sets the library carries, runtime/tuned/<device>.jsonl, embedded as text at build time.
// A file may be empty.
#pragma once

#include "templates/embedded.h"

namespace octile::tuned {

using templates::File;

const File* files();
int file_count();

}  // namespace octile::tuned
