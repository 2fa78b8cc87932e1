// A layer on a GPU: quantised, multiplied, and compared with the host. On a GPU without GEMMs, the
// known-answer test of its quantisers.
#pragma once

#include <string>

#include "tools/common/handles.h"

namespace octile::tools {

struct SelfTest {
  std::string device;  // "cuda:0"
  bool ok = false;
  std::string verdict;         // a sentence
  Json units = Json::array();  // of GEMMs: units_json()
  double seconds = 0;
};

// Takes about ten seconds, most of which is compiling. An error on the way is a verdict.
SelfTest test_device(const LibraryHandle& library, const std::string& device);

Json to_json(const SelfTest& test);

}  // namespace octile::tools
