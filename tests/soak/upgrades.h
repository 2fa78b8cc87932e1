// Replaces octile-compiler under the processes that start it, as upgrades of an installation do.
#pragma once

#include <cstdint>
#include <string>

namespace octile::soak {

class Upgrades {
 public:
  // Puts a copy of `original`, a program, at `program`. Throws std::runtime_error if it cannot be
  // written, as replace() does.
  Upgrades(const std::string& original, std::string program);

  // Replaces the program by a copy of itself, each time in another way: by a rename, as packages
  // do; removed first, as cp and linkers do; and removed first with its mode set at the end, as
  // install does. In the last two ways it is missing or cut short for a few milliseconds.
  void replace();

  std::int64_t count() const { return count_; }

 private:
  void write(const std::string& path, unsigned mode) const;

  const std::string program_;
  std::string bytes_;
  std::int64_t count_ = 0;
};

}  // namespace octile::soak
