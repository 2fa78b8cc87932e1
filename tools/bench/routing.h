// How a router shares out the rows of a batch to the experts of one rank.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace octile::tools {

enum class Routing : int {
  kUniform,  // "uniform": every row's expert is drawn, all equally likely
  // "skewed": one expert has 40 % of the rows and a third of the experts have none. Which they are
  // is drawn, and so is each other row's expert among the rest.
  kSkewed,
};
std::string_view name_of(Routing);

// Returns the rows of each expert. Their sum is `rows`, and the same arguments give the same counts
// on every host. experts >= 1. If skewed routing leaves no other expert, the one has all rows.
std::vector<std::int64_t> route(Routing routing, std::int64_t rows, std::int64_t experts);

// Returns the first row of each expert, then the end of the last. The sum is below 2^31.
std::vector<std::int32_t> offsets_of(const std::vector<std::int64_t>& counts);

}  // namespace octile::tools
