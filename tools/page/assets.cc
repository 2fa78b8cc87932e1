#include "tools/page/assets.h"

#include <zstd.h>

namespace octile::tools {

std::string page_file(std::string_view name) {
  for (const CompressedFile& file : page_files()) {
    if (name != file.name) continue;
    std::string text(file.text_bytes, '\0');
    const std::size_t size =
        ZSTD_decompress(text.data(), text.size(), file.frame, file.frame_bytes);
    text.resize(ZSTD_isError(size) != 0 ? 0 : size);
    return text;
  }
  return {};
}

}  // namespace octile::tools
