// Turns exceptions into errors, at the C boundary and in background threads.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "generator/core/error.h"

namespace octile {

// A sentence so short that std::string does not allocate for it.
inline Status no_memory() { return fail(ErrorCode::kOutOfMemory, "out of memory"); }

// Returns the error of an exception; kOutOfMemory if there is no memory for its sentence.
inline Status unexpected_exception(const char* what) noexcept {
  try {
    return fail(ErrorCode::kInternal, std::string("unexpected: ") + what);
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
}

// Returns what `work` returns. An exception becomes an error.
template <typename Work>
Status guarded(Work&& work) noexcept {
  try {
    return std::forward<Work>(work)();
  } catch (const std::bad_alloc&) {
    return no_memory();
  } catch (const std::exception& e) {
    return unexpected_exception(e.what());
  } catch (...) {
    return unexpected_exception("an exception of unknown type");
  }
}

}  // namespace octile
