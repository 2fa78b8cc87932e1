#include "runtime/api/boundary.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

namespace octile::api {
namespace {

// It has no destructor, because registering one needs memory, and the C library ends the process if
// there is none.
struct LastError {
  std::array<char, 256> beginning{};
  char* whole = nullptr;  // freed at the thread's end by the key's destructor
  std::size_t room = 0;
  const char* text = "";
};
constinit thread_local LastError last;

// Returns true if the block will be freed when the thread ends.
bool free_at_thread_end(char* block) noexcept {
  static const struct Key {
    Key() : valid(pthread_key_create(&key, std::free) == 0) {}
    pthread_key_t key{};
    bool valid;
  } key;
  return key.valid && pthread_setspecific(key.key, block) == 0;
}

// Makes room for a sentence and its terminator. Returns false if there is no memory.
bool make_room(std::size_t bytes) noexcept {
  if (bytes <= last.room) return true;
  auto* block = static_cast<char*>(std::malloc(bytes));
  if (block == nullptr || !free_at_thread_end(block)) {
    std::free(block);
    return false;
  }
  std::free(last.whole);
  last.whole = block;
  last.room = bytes;
  return true;
}

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

octile_status report(octile_status status, std::string_view sentence) noexcept {
  const bool whole = make_room(sentence.size() + 1);
  char* const text = whole ? last.whole : last.beginning.data();
  const std::size_t bytes =
      whole ? sentence.size() : std::min(sentence.size(), last.beginning.size() - 1);
  std::memcpy(text, sentence.data(), bytes);
  text[bytes] = '\0';
  last.text = text;
  return status;
}

const char* last_error() noexcept { return last.text; }

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

Status check_struct(const char* name, const void* user, std::size_t first_version_bytes,
                    std::size_t known_bytes) {
  if (Status ok = require(name, user); !ok) return ok;
  std::size_t given = 0;
  std::memcpy(&given, user, sizeof(given));
  if (given < first_version_bytes || given > kMaxStructBytes) [[unlikely]]
    return refuse(fmt::format("{}->struct_size is {}; allowed: sizeof of the struct, {} to {}",
                              name, given, first_version_bytes, kMaxStructBytes));
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
