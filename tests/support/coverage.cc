#include "tests/support/coverage.h"

#include <cstdlib>
#include <string_view>

namespace octile::tests {

bool runs_all_cases() {
  const char* tests = std::getenv("OCTILE_TESTS");  // NOLINT(concurrency-mt-unsafe)
  return tests != nullptr && std::string_view(tests) == "all";
}

bool sweeps_densely() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#else
  return runs_all_cases();
#endif
}

}  // namespace octile::tests
