// The files that a page is made of, embedded by the build: its style and script, the notices of
// licences, and the library that draws charts, if the build had it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace octile::tools {

struct CompressedFile {
  const char* name;
  const char* frame;  // of zstd
  std::size_t frame_bytes;
  std::size_t text_bytes;
};
std::span<const CompressedFile> page_files();

// Returns the text of a file, "" if the build did not have it.
std::string page_file(std::string_view name);

inline constexpr const char* kChartLibrary = "vega.js";

}  // namespace octile::tools
