// The tests of a GPU by `octile doctor`: the known-answer tests of its quantisers and matrix units,
// and a layer that is quantised, multiplied and compared with the host, if the GPU has GEMMs.
#pragma once

#include <string>

#include "tools/common/handles.h"
#include "tools/doctor/report.h"

namespace octile::tools {

struct SelfTest {
  std::string device;  // "cuda:0"
  bool ok = false;
  std::string verdict;  // a sentence
  CardTests card;
  double seconds = 0;
};

// Takes about ten seconds, most of which is compiling. An error on the way is a verdict.
SelfTest test_device(const LibraryHandle& library, const std::string& device);

Json to_json(const SelfTest& test);

}  // namespace octile::tools
