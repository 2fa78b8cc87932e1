#include "runtime/api/boundary.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "runtime/base/printable.h"

namespace octile::api {
namespace {

// The sentence of a thread lives in a buffer under a key of pthreads. A thread_local variable would
// end the process where memory ran out: glibc allocates the storage of a loaded library's thread
// when it is first used, and the list of destructors with it, and aborts if it cannot.
class LastError {
 public:
  LastError() noexcept : usable_(pthread_key_create(&key_, free_buffer) == 0) {}
  // After dlclose() no destructor of this library may run any more. The buffers of threads that
  // still run are lost.
  ~LastError() {
    if (usable_) pthread_key_delete(key_);
  }
  LastError(const LastError&) = delete;
  LastError& operator=(const LastError&) = delete;

  void set(std::string_view sentence) const noexcept {
    char* const text = buffer();
    if (text == nullptr || text == no_memory) return;
    text[copy_printable(sentence, {text, kMaxSentenceBytes})] = '\0';
  }

  const char* get() const noexcept {
    const auto* text = usable_ ? static_cast<const char*>(pthread_getspecific(key_)) : nullptr;
    return text != nullptr ? text : "";
  }

 private:
  // Stands for the buffer of a thread that could get none. It is never written.
  static inline char no_memory[] =
      "the call failed, and the host has no memory left for the sentence that says why";

  static void free_buffer(void* text) {
    if (text != no_memory) std::free(text);
  }

  // Returns the thread's buffer, or no_memory, or null if the thread can have neither.
  char* buffer() const noexcept {
    if (!usable_) return nullptr;
    auto* text = static_cast<char*>(pthread_getspecific(key_));
    if (text != nullptr && text != no_memory) return text;
    text = static_cast<char*>(std::malloc(kMaxSentenceBytes + 1));
    if (text == nullptr) text = no_memory;
    if (pthread_setspecific(key_, text) == 0) return text;
    free_buffer(text);
    return nullptr;
  }

  pthread_key_t key_ = 0;
  bool usable_;
};
const LastError kLast;

// The enums of C and C++ have the same values, so that no layer translates them.
template <typename Cpp>
constexpr bool same(int c, Cpp cpp) {
  return c == static_cast<int>(cpp);
}
static_assert(same(OCTILE_INVALID_ARGUMENT, ErrorCode::kInvalidArgument));
static_assert(same(OCTILE_UNSUPPORTED, ErrorCode::kUnsupported));
static_assert(same(OCTILE_NOT_PREPARED, ErrorCode::kNotPrepared));
static_assert(same(OCTILE_NO_DRIVER, ErrorCode::kNoDriver));
static_assert(same(OCTILE_NO_COMPILER, ErrorCode::kNoCompiler));
static_assert(same(OCTILE_COMPILE_FAILED, ErrorCode::kCompileFailed));
static_assert(same(OCTILE_DEVICE_ERROR, ErrorCode::kDeviceError));
static_assert(same(OCTILE_OFFLINE, ErrorCode::kOffline));
static_assert(same(OCTILE_OUT_OF_MEMORY, ErrorCode::kOutOfMemory));
static_assert(same(OCTILE_CAPTURING, ErrorCode::kCapturing));
static_assert(same(OCTILE_INTERNAL, ErrorCode::kInternal));
static_assert(same(OCTILE_FILE_ERROR, ErrorCode::kFile));
static_assert(same(OCTILE_E4M3, DType::kE4M3) && same(OCTILE_E5M2, DType::kE5M2) &&
              same(OCTILE_BF16, DType::kBF16) && same(OCTILE_FP16, DType::kFP16) &&
              same(OCTILE_FP32, DType::kFP32));
static_assert(same(OCTILE_SCALE_NONE, Granularity::kNone) &&
              same(OCTILE_SCALE_PER_TENSOR, Granularity::kPerTensor) &&
              same(OCTILE_SCALE_PER_ROW, Granularity::kPerRow) &&
              same(OCTILE_SCALE_1X128, Granularity::k1x128) &&
              same(OCTILE_SCALE_128X128, Granularity::k128x128) &&
              same(OCTILE_SCALE_1X32, Granularity::k1x32) &&
              same(OCTILE_SCALE_32X32, Granularity::k32x32));
static_assert(same(OCTILE_SCALE_F32, ScaleFormat::kF32) &&
              same(OCTILE_SCALE_F32_POW2, ScaleFormat::kF32Pow2) &&
              same(OCTILE_SCALE_UE8M0X4, ScaleFormat::kUe8m0x4) &&
              same(OCTILE_SCALE_E8M0, ScaleFormat::kE8M0) &&
              same(OCTILE_SCALE_BF16, ScaleFormat::kBF16));
static_assert(same(OCTILE_ROWWISE, QuantizeOutput::kRowwise) &&
              same(OCTILE_TRANSPOSED, QuantizeOutput::kTransposed) &&
              same(OCTILE_ROWWISE_AND_TRANSPOSED, QuantizeOutput::kBoth));
static_assert(same(OCTILE_LOG_DEBUG, LogLevel::kDebug) && same(OCTILE_LOG_INFO, LogLevel::kInfo) &&
              same(OCTILE_LOG_WARNING, LogLevel::kWarning) &&
              same(OCTILE_LOG_ERROR, LogLevel::kError));
static_assert(OCTILE_DYNAMIC == kDynamic);

Status refuse(std::string message) { return fail(ErrorCode::kInvalidArgument, std::move(message)); }

}  // namespace

octile_status report(const Error& error) noexcept {
  return report(static_cast<octile_status>(error.code), error.message);
}

octile_status report(octile_status status, std::string_view sentence) noexcept {
  kLast.set(sentence);
  return status;
}

const char* last_error() noexcept { return kLast.get(); }

Status require(const char* name, const void* pointer) {
  if (pointer != nullptr) [[likely]]
    return {};
  return refuse(fmt::format("{} is null; allowed: a pointer", name));
}

Status check_enum(const char* name, const char* type, int value, int least, int most) {
  if (value >= least && value <= most) return {};
  return refuse(
      fmt::format("{} is {}; allowed: a value of {}, {} to {}", name, value, type, least, most));
}

Status refuse_reserved(const char* name, const char* field, std::int64_t value) {
  return refuse(fmt::format("{}->{} is {}; allowed: 0", name, field, value));
}

Status check_struct(const char* name, const void* user, std::size_t first_version_bytes,
                    std::size_t known_bytes, std::size_t alignment) {
  if (Status ok = require(name, user); !ok) return ok;
  if (reinterpret_cast<std::uintptr_t>(user) % alignment != 0) [[unlikely]]
    return refuse(
        fmt::format("{} is at address {}; allowed: a multiple of {}", name, user, alignment));
  std::size_t given = 0;
  std::memcpy(&given, user, sizeof(given));
  const std::size_t least = (first_version_bytes + alignment - 1) / alignment * alignment;
  if (given < least || given > kMaxStructBytes || given % alignment != 0) [[unlikely]]
    return refuse(fmt::format(
        "{}->struct_size is {}; allowed: sizeof of the struct, a multiple of {} from {} to {}",
        name, given, alignment, least, kMaxStructBytes));
  if (given <= known_bytes) [[likely]]
    return {};
  const auto* bytes = static_cast<const unsigned char*>(user);
  const auto* stray =
      std::find_if(bytes + known_bytes, bytes + given, [](unsigned char b) { return b != 0; });
  if (stray == bytes + given) return {};
  return refuse(
      fmt::format("{}->struct_size is {} and byte {} is {:#04x}; allowed: zero beyond the "
                  "{} bytes this version of the library knows",
                  name, given, stray - bytes, *stray, known_bytes));
}

}  // namespace octile::api
