// Runs independent pieces of work on a library's threads.
#pragma once

#include <cstddef>
#include <exception>
#include <vector>

#include "runtime/base/worker_pool.h"

namespace octile::tools {

// Calls work(i) for each i below `count` and returns when all calls have ended. Then it rethrows
// the exception of the lowest index, if there is one.
template <typename Work>
void for_each_on(WorkerPool& workers, std::size_t count, const Work& work) {
  std::vector<std::exception_ptr> thrown(count);
  workers.run(count, [&](std::size_t i) {
    try {
      work(i);
    } catch (...) {
      thrown[i] = std::current_exception();
    }
  });
  for (const std::exception_ptr& exception : thrown) {
    if (exception) std::rethrow_exception(exception);
  }
}

}  // namespace octile::tools
