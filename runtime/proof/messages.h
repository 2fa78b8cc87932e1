// Messages between the library and octile-prover (process/message.h has their form). The library
// sends requests, of which each has one answer:
//
//   hello     "octile-prover", version of Octile: at once, before it opens the driver
//   request   "device", UUID of 32 hex digits
//   answer    "ready", the driver's build: it has a context there
//   request   "load", bytes of memory, cubin, dynamic shared memory, name of the kernel, names of
//             its companions...
//   answer    "memory", address
//   request   "run", contents of the memory, launches...
//   answer    "memory", contents of the memory after the launches
//   refusal   "refused", number of a ProofTrouble, sentence: instead of an answer
//
// The program's argument is the path of the CUDA driver.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <string_view>

namespace octile {

constexpr std::string_view kProverName = "octile-prover";
constexpr std::string_view kRefused = "refused";

// The reason that a test has no answer.
enum class ProofTrouble : std::uint8_t {
  kUnavailable,  // nothing is said of the kernel: no process, context or memory
  kNotLoaded,    // the driver refuses what the cubin holds
  kNotLaunched,  // the driver refuses a launch, and the context serves
  kFault,        // the launches broke the context
  kHang,         // the launches did not end
  kEnded,        // the process ended meanwhile: the kernel's doing, or somebody killed it
};

// One launch, or one clearing of memory, of which only the numbers of its kind are set. Both ends
// are of one version of Octile, so that its bytes are a message's. A launch's tensor maps follow
// it, and then its parameter.
struct RecordedLaunch {
  std::int32_t kernel = 0;  // 0: the kernel, 1 and up: the companions, -1: memory is cleared
  std::uint32_t blocks = 0, threads = 0, cluster = 1, smem_bytes = 0;
  std::uint32_t waits_itself = 0;
  std::uint32_t maps = 0;
  std::uint64_t address = 0, pitch_bytes = 0, width_bytes = 0, rows = 0;
};
constexpr std::int32_t kClears = -1;

// A tensor map of a launch's parameter: the arguments of cuTensorMapEncodeTiled.
struct RecordedMap {
  std::uint32_t offset = 0;  // in the parameter
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  std::uint32_t rank = 0;
  std::uint64_t address = 0;
  std::array<cuuint64_t, 5> dims{};
  std::array<cuuint64_t, 4> strides{};  // bytes, of dims[1] and up
  std::array<cuuint32_t, 5> box{}, element_strides{};
  CUtensorMapInterleave interleave = CU_TENSOR_MAP_INTERLEAVE_NONE;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
  CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_NONE;
  CUtensorMapFloatOOBfill fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
};

}  // namespace octile
