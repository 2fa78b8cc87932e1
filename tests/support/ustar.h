// Members of tar archives, written by hand: any name, any type, any content.
#pragma once

#include <cstdio>
#include <string>

namespace octile::tests {

// Type flags of POSIX 1003.1, "ustar Interchange Format".
inline constexpr char kRegularFile = '0';
inline constexpr char kHardLink = '1';
inline constexpr char kSymbolicLink = '2';
inline constexpr char kCharacterDevice = '3';
inline constexpr char kFolder = '5';
inline constexpr char kFifo = '6';

// Returns the header and the padded content of one member. `name` and `target` have at most 100
// characters.
inline std::string ustar_member(const std::string& name, const std::string& content,
                                char type = kRegularFile, const std::string& target = "") {
  constexpr std::size_t kBlock = 512;
  std::string header(kBlock, '\0');
  const auto put = [&](std::size_t at, const std::string& value) {
    header.replace(at, value.size(), value);
  };
  char size[13];
  std::snprintf(size, sizeof size, "%011zo", content.size());
  put(0, name);
  put(100, "0000644");
  put(108, "0000000");
  put(116, "0000000");
  put(124, size);
  put(136, "00000000000");
  put(148, "        ");
  put(156, std::string(1, type));
  put(157, target);
  put(257, std::string("ustar\00000", 8));
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  char checksum[9];
  std::snprintf(checksum, sizeof checksum, "%06o", sum);
  put(148, std::string(checksum, 7) + " ");
  std::string padded = content;
  padded.resize((content.size() + kBlock - 1) / kBlock * kBlock);
  return header + padded;
}

// The two blocks of zeros that end an archive.
inline std::string ustar_end() { return std::string(1024, '\0'); }

}  // namespace octile::tests
