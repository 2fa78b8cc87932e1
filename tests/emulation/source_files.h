// The files of emitted kernels that the host compiler builds.
#pragma once

#include <fmt/format.h>

#include <fstream>
#include <string>
#include <vector>

namespace octile::emulation {

// Writes <prefix>0.cc ... for the sources and <prefix>table.cc for the table. A source stands in a
// file of its own, <prefix>0.inc, because only an included file can be a system header. Returns
// false if a file cannot be written.
inline bool write_source_files(const std::string& prefix, const std::vector<std::string>& sources,
                               const std::string& table) {
  bool written = true;
  const auto write = [&](const std::string& path, const std::string& text) {
    std::ofstream file(path);
    file << text;
    written = written && file.good();
  };
  for (std::size_t i = 0; i < sources.size(); ++i) {
    write(fmt::format("{}{}.inc", prefix, i), sources[i]);
    write(fmt::format("{}{}.cc", prefix, i), fmt::format("#include \"{}{}.inc\"\n", prefix, i));
  }
  write(prefix + "table.cc", table);
  return written;
}

}  // namespace octile::emulation
