// What every function of the C API goes through: exceptions end here, errors become a status and
// the thread's sentence, structs of other versions become this version's.
#pragma once

#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <type_traits>

#include "generator/core/error.h"
#include "octile/octile.h"
#include "runtime/engine/library.h"
#include "runtime/engine/plan.h"

struct octile_library {
  octile::Library library;
};

struct octile_plan {
  std::shared_ptr<octile::Plan> plan;
  octile::Library* library;
};

namespace octile::api {

octile_status report(Error error) noexcept;                                 // keeps the sentence
octile_status report(octile_status status, const char* sentence) noexcept;  // of static storage
const char* last_error() noexcept;

// Runs `work` (which returns a Status) and turns what comes out into a status.
template <typename Work>
octile_status call(Work&& work) noexcept {
  try {
    Status status = std::forward<Work>(work)();
    return status ? OCTILE_OK : report(std::move(status.error()));
  } catch (const std::bad_alloc&) {
    return report(OCTILE_OUT_OF_MEMORY, "the host has no memory left for this call");
  } catch (const std::exception& e) {
    return report(Error{ErrorCode::kInternal, e.what()});
  } catch (...) {
    return report(OCTILE_INTERNAL, "an exception of unknown type reached the C boundary");
  }
}

Status require(const char* name, const void* pointer);  // kInvalidArgument where it is null

// The value of an enum that came from C, where it may be any integer: reading an enumeration
// outside its range is undefined, reading its bytes is not.
template <typename Enum>
int raw(const Enum& value) {
  static_assert(std::is_enum_v<Enum> && sizeof(Enum) == sizeof(int));
  int bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// kInvalidArgument unless least <= value <= most.
Status check_enum(const char* name, const char* type, int value, int least, int most);

// Bytes of `T` as the first version had it: no caller's struct is shorter.
template <typename T>
inline constexpr std::size_t kFirstVersionBytes = 0;
template <>
inline constexpr std::size_t kFirstVersionBytes<octile_library_options> =
    offsetof(octile_library_options, compile_threads) + sizeof(int32_t);
template <>
inline constexpr std::size_t kFirstVersionBytes<octile_gemm_desc> =
    offsetof(octile_gemm_desc, batch_invariant) + sizeof(int32_t);
template <>
inline constexpr std::size_t kFirstVersionBytes<octile_quantize_desc> =
    offsetof(octile_quantize_desc, amax_epsilon) + sizeof(float);
template <>
inline constexpr std::size_t kFirstVersionBytes<octile_gemm_args> =
    offsetof(octile_gemm_args, workspace_bytes) + sizeof(size_t);
template <>
inline constexpr std::size_t kFirstVersionBytes<octile_quantize_args> =
    offsetof(octile_quantize_args, workspace_bytes) + sizeof(size_t);
template <>
inline constexpr std::size_t kFirstVersionBytes<octile_quantized_layout> =
    offsetof(octile_quantized_layout, scale_bytes) + sizeof(int64_t);

// Sizes beyond this are taken for an uninitialised struct_size rather than looked through.
inline constexpr std::size_t kMaxStructBytes = 4096;

// That `known` bytes or more are there, and that what lies beyond the `known` of this version is
// zero.
Status check_struct(const char* name, const void* user, std::size_t first_version_bytes,
                    std::size_t known_bytes);

// The caller's struct as this version's: what the caller does not know of is zero.
template <typename T>
Status read_struct(const char* name, const T* user, T& out,
                   std::size_t first_version_bytes = kFirstVersionBytes<T>) {
  static_assert(std::is_trivially_copyable_v<T> && std::is_standard_layout_v<T>);
  if (Status ok = check_struct(name, user, first_version_bytes, sizeof(T)); !ok) return ok;
  const std::size_t given = user->struct_size;
  out = T{};
  std::memcpy(&out, user, given < sizeof(T) ? given : sizeof(T));
  return {};
}

// Writes as much of `value` as the caller's struct holds; its struct_size stays.
template <typename T>
Status write_struct(const char* name, T value, T* user) {
  if (Status ok = check_struct(name, user, kFirstVersionBytes<T>, sizeof(T)); !ok) return ok;
  value.struct_size = user->struct_size;
  std::memcpy(user, &value, value.struct_size < sizeof(T) ? value.struct_size : sizeof(T));
  return {};
}

}  // namespace octile::api
