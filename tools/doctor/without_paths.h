// Texts that a person can send: they name no folder of the machine.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cache/json.h"
#include "tools/doctor/surroundings.h"

namespace octile::tools {

class WithoutPaths {
 public:
  explicit WithoutPaths(const Surroundings& surroundings);
  // Returns the text with <cache> for a cache root, ~ for the home folder, and the last part of any
  // other absolute path in its place.
  std::string of(std::string text) const;
  // Returns the value with all of its strings changed so.
  Json of(const Json& value) const;

 private:
  std::vector<std::pair<std::string, std::string>> known_;  // folders, and what stands for them
};

}  // namespace octile::tools
