// The files under templates/ as text, in path order, embedded at build time.
#pragma once

#include <cstddef>

namespace octile::templates {

struct File {
  const char* path;  // relative to templates/
  const char* text;
  std::size_t bytes;
};

const File* files();
int file_count();

}  // namespace octile::templates
