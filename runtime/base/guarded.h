// Turns exceptions into errors, at the C boundary and in background threads.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "generator/core/error.h"

namespace octile {

// Returns what `work` returns. An exception becomes an error. Throws nothing: if there is no memory
// for the error's sentence, the error is kOutOfMemory.
template <typename Work>
Status guarded(Work&& work) noexcept {
  // A sentence so short that std::string does not allocate for it.
  constexpr const char* kNoMemory = "out of memory";
  try {
    try {
      return std::forward<Work>(work)();
    } catch (const std::bad_alloc&) {
      return fail(ErrorCode::kOutOfMemory, kNoMemory);
    } catch (const std::exception& e) {
      return fail(ErrorCode::kInternal, std::string("unexpected: ") + e.what());
    } catch (...) {
      return fail(ErrorCode::kInternal, "unexpected exception of unknown type");
    }
  } catch (...) {
    return fail(ErrorCode::kOutOfMemory, kNoMemory);
  }
}

}  // namespace octile
