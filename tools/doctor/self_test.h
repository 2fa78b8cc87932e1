// The tests of a GPU by `octile doctor`: the known-answer tests of its quantisers and matrix units,
// and a layer that is quantised, multiplied and compared with the host, if the GPU has GEMMs.
#pragma once

#include <string>

#include "tools/common/handles.h"
#include "tools/doctor/card_tests.h"

namespace octile::tools {

struct SelfTest {
  std::string device;   // "cuda:0"
  bool ok = false;      // nothing of the card and of the layer is wrong
  std::string verdict;  // of the layer: a sentence
  CardTests card;
  double seconds = 0;
};

// Takes about ten seconds, most of which is compiling. An error on the way is a verdict.
SelfTest test_device(const LibraryHandle& library, const std::string& device);

// Returns what is wrong first.
std::string what_is_wrong(const SelfTest& test);

Json to_json(const SelfTest& test);

}  // namespace octile::tools
