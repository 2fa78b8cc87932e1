// The instructions that multiply FP8 matrices, and those that copy operands to shared memory.
#pragma once

#include <string_view>

namespace octile {

enum class MatrixUnit {
  kWgmma,      // wgmma.mma_async: a warpgroup, operands in shared memory (Hopper)
  kMma,        // mma.sync: a warp, operands in registers (Ada and newer)
  kMmaScaled,  // mma.sync.block_scale: the same with E8M0 scales (Blackwell's GeForce and RTX PRO)
  kTcgen05,    // tcgen05.mma: one thread, sums in tensor memory (Blackwell's B200 and B300)
};

enum class Copies {
  kTma,      // bulk copies of boxes by one thread (Hopper and newer)
  kCpAsync,  // 16 bytes a thread (Ada and older)
};

constexpr std::string_view name_of(Copies copies) {
  switch (copies) {
    case Copies::kTma:
      return "tma";
    case Copies::kCpAsync:
      return "cp_async";
  }
  return "unknown";
}

constexpr std::string_view name_of(MatrixUnit unit) {
  switch (unit) {
    case MatrixUnit::kWgmma:
      return "wgmma";
    case MatrixUnit::kMma:
      return "mma";
    case MatrixUnit::kMmaScaled:
      return "mma_scaled";
    case MatrixUnit::kTcgen05:
      return "tcgen05";
  }
  return "unknown";
}

}  // namespace octile
