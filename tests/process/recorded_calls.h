// The results of the calls of one pass, while memory or threads are refused.
#pragma once

#include <cstring>

#include "octile/octile.h"

namespace octile::test {

// The statuses of one pass. The room is fixed, so that recording needs no memory.
struct Pass {
  static constexpr int kRoom = 64;
  octile_status status[kRoom] = {};
  char sentence[kRoom][160] = {};
  int calls = 0;

  bool call(octile_status got) {
    status[calls] = got;
    if (got != OCTILE_OK) std::strncpy(sentence[calls], octile_last_error(), 159);
    ++calls;
    return got == OCTILE_OK;
  }
};

}  // namespace octile::test
