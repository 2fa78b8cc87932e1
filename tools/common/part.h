// --part I/N: processes that are given the same work and different parts share it without talking
// to each other.
#pragma once

#include <cstddef>
#include <string>

#include "generator/core/error.h"

namespace octile::tools {

struct Part {
  std::size_t index = 1;  // from 1
  std::size_t count = 1;
};

// Errors: kInvalidArgument for a text that is not I/N with 1 <= I <= N.
Result<Part> read_part(const std::string& text);

}  // namespace octile::tools
