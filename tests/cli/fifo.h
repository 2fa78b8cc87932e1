// A FIFO as an argument or as standard input.
#pragma once

#include <filesystem>
#include <string>
#include <thread>

namespace octile::tests {

// A FIFO from which one reader gets these bytes.
class Fifo {
 public:
  Fifo(const std::filesystem::path& path, std::string bytes);
  ~Fifo();  // also if nobody read it
  Fifo(const Fifo&) = delete;
  Fifo& operator=(const Fifo&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::thread writer_;
};

}  // namespace octile::tests
