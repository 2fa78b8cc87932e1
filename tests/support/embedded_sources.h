// Files of this repository as text, embedded when the tests are built. They are the sources of the
// GPU report's digests, and the kernels that the GPU suite checks with. Paths are relative to the
// repository.
#pragma once

#include <string_view>

#include "templates/embedded.h"

namespace octile::tests::embedded {

using templates::File;

const File* files();
int file_count();

inline std::string_view text_of(std::string_view path) {
  for (int i = 0; i < file_count(); ++i) {
    if (files()[i].path == path) return {files()[i].text, files()[i].bytes};
  }
  return {};
}

}  // namespace octile::tests::embedded
