// Spreads independent blocks of work over threads. The result of a block depends neither on its
// thread nor on the order of blocks, so results are the same for any thread count.
#pragma once

#include <cstdint>
#include <functional>

namespace octile::reference {

// Calls body(begin, end) over disjoint ranges of at most `grain` covering [0, count). Uses up to
// `threads` threads including the caller's (0: one per core). Every body runs under the default
// floating-point environment (nearest even, subnormals kept) whatever the caller's is. The first
// exception thrown by a body is rethrown once all threads have stopped. If the system refuses a
// thread, the others do its work.
void parallel_for(std::int64_t count, std::int64_t grain, int threads,
                  const std::function<void(std::int64_t begin, std::int64_t end)>& body);

}  // namespace octile::reference
