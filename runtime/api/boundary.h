// The entry of every function of the C API. Exceptions end here, errors become a status and
// the thread's sentence, and structs of other versions become this version's.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>

#include "generator/core/error.h"
#include "octile/layers.h"
#include "octile/octile.h"
#include "octile/pieces.h"
#include "runtime/api/first_sizes.h"
#include "runtime/base/float_environment.h"
#include "runtime/base/fork.h"
#include "runtime/engine/library.h"
#include "runtime/engine/plan.h"
#include "runtime/layers/layer.h"
#include "runtime/layers/weight.h"
#include "runtime/pieces/pieces.h"

struct octile_library {
  octile::Library library;
  std::uint32_t process = octile::fork_generation();  // that made it
};

struct octile_plan {
  std::shared_ptr<octile::Plan> plan;
  octile::Library* library;
  std::uint32_t process = octile::fork_generation();
};

struct octile_layer {
  std::shared_ptr<octile::layers::Layer> layer;
  octile::Library* library;
  std::uint32_t process = octile::fork_generation();
};

struct octile_weight {
  octile::layers::CachedWeight weight;
  octile::Library* library;
  std::uint32_t process = octile::fork_generation();
};

struct octile_pieces {
  std::unique_ptr<octile::Pieces> pieces;
  octile::Library* library;
  std::uint32_t process = octile::fork_generation();
};

namespace octile::api {

// Both keep the sentence as the thread's last and return the status. The sentence is made
// printable (runtime/base/printable.h), and keeps its beginning if that is longer than
// kMaxSentenceBytes. Neither needs memory, except that a thread's first error
// takes its buffer; if there is none left, the thread's sentence says so.
inline constexpr std::size_t kMaxSentenceBytes = 8191;
octile_status report(const Error& error) noexcept;
octile_status report(octile_status status, std::string_view sentence) noexcept;
// Returns the calling thread's sentence, "" if no call of it has failed.
const char* last_error() noexcept;

// The error of every call in a process whose fork could not wait for the library
// (runtime/base/fork.h).
inline constexpr std::string_view kForkLost =
    "this process was forked while a thread of its parent was stopped within the library; allowed: "
    "to fork it anew, or to start a program in it";

// Runs `work`, which returns a Status, and returns what came of it, exceptions included.
template <typename Work>
octile_status status_of(Work&& work) noexcept {
  const DefaultFloatEnvironment environment;
  if (fork_lost()) [[unlikely]]
    return report(OCTILE_INVALID_ARGUMENT, kForkLost);
  try {
    Status status = std::forward<Work>(work)();
    if (status) [[likely]]
      return OCTILE_OK;
    return report(status.error());
  } catch (const std::bad_alloc&) {
    return report(OCTILE_OUT_OF_MEMORY, "the host has no memory left for this call");
  } catch (const std::exception& e) {
    return report(OCTILE_INTERNAL, e.what());
  } catch (...) {
    return report(OCTILE_INTERNAL, "an exception of unknown type reached the C boundary");
  }
}

// Does the same, and the calling thread cannot be cancelled meanwhile. It may be cancelled at the
// end, if the caller has chosen asynchronous cancellation.
template <typename Work>
octile_status call(Work&& work) {
  int cancel_state = 0;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  const octile_status status = status_of(std::forward<Work>(work));
  pthread_setcancelstate(cancel_state, nullptr);
  return status;
}

Status require(const char* name, const void* pointer);  // kInvalidArgument if it is null

Error made_before_fork(const char* name);

// Returns kInvalidArgument if the handle is null, or was made before the fork that made this
// process.
template <typename Handle>
Status require_handle(const char* name, const Handle* handle) {
  if (Status ok = require(name, handle); !ok) [[unlikely]]
    return ok;
  if (handle->process == fork_generation()) [[likely]]
    return {};
  return tl::unexpected<Error>(made_before_fork(name));
}

// Notes a new handle. May throw std::bad_alloc.
void note_handle(const void* handle);

// Returns kInvalidArgument unless the address is of a handle that this process made and has not
// destroyed. This finds a second destroy, unless a new handle has the address by then.
Status require_live(const char* name, const void* handle);

// Does the same, and the address is of no handle from now on.
Status forget_handle(const char* name, const void* handle);

// Returns the value of an enum that came from C, which may be any integer. Reading an enumeration
// outside its range is undefined; reading its bytes is not.
template <typename Enum>
int raw(const Enum& value) {
  static_assert(std::is_enum_v<Enum> && sizeof(Enum) == sizeof(int));
  int bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Returns kInvalidArgument unless least <= value <= most.
Status check_enum(const char* name, const char* type, int value, int least, int most);

// A larger struct_size is taken as uninitialised, and the struct is not looked through.
inline constexpr std::size_t kMaxStructBytes = 4096;

// Checks that the struct is aligned, has the first version's bytes, ends where no field is cut (a
// sizeof is a multiple of the alignment, and no field spans one), and has zeros beyond the bytes
// known today.
Status check_struct(const char* name, const void* user, std::size_t first_version_bytes,
                    std::size_t known_bytes, std::size_t alignment);

Status refuse_reserved(const char* name, const char* field, std::int64_t value);

// Copies the caller's struct into this version's. Fields that the caller does not know become zero.
// Reserved fields have to be zero, so that a later version can give them a meaning.
template <typename T>
Status read_struct(const char* name, const T* user, T& out) {
  static_assert(std::is_trivially_copyable_v<T> && std::is_standard_layout_v<T>);
  if (Status ok = check_struct(name, user, FirstSize<T>::value, sizeof(T), alignof(T)); !ok)
    return ok;
  const std::size_t given = user->struct_size;
  out = T{};
  std::memcpy(&out, user, given < sizeof(T) ? given : sizeof(T));
  if constexpr (requires { out.reserved; })
    if (out.reserved != 0) [[unlikely]]
      return refuse_reserved(name, "reserved", out.reserved);
  if constexpr (requires { out.grown_for_test; })  // tests/abi: the field of a later version
    if (out.grown_for_test != 0) return refuse_reserved(name, "grown_for_test", out.grown_for_test);
  return {};
}

// Writes as much of `value` as the caller's struct holds and keeps its struct_size.
template <typename T>
Status write_struct(const char* name, T value, T* user) {
  if (Status ok = check_struct(name, user, FirstSize<T>::value, sizeof(T), alignof(T)); !ok)
    return ok;
  value.struct_size = user->struct_size;
  std::memcpy(user, &value, value.struct_size < sizeof(T) ? value.struct_size : sizeof(T));
  return {};
}

}  // namespace octile::api
