// Turns exceptions into errors, at the C boundary and in background threads.
#pragma once

#include <exception>
#include <new>
#include <utility>

#include "generator/core/error.h"

namespace octile {

// Returns what `work` returns. An exception of the standard library becomes an error.
template <typename Work>
Status guarded(Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const std::bad_alloc&) {
    // A sentence so short that std::string does not allocate for it.
    return fail(ErrorCode::kOutOfMemory, "out of memory");
  } catch (const std::exception& e) {
    return fail(ErrorCode::kInternal, std::string("unexpected: ") + e.what());
  } catch (...) {
    return fail(ErrorCode::kInternal, "unexpected exception of unknown type");
  }
}

}  // namespace octile
