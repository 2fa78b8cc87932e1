// Basic sizes of quantise kernels, shared by rules and defaults of configurations.
#pragma once

namespace octile {

inline constexpr int kWarp = 32;
inline constexpr int kVectorBytes = 16;   // one load of one thread
inline constexpr int kScaleBlock = 128;   // elements of a row that share a scale
inline constexpr int kShortBlock = 32;    // columns of a scale's block, 1x32 and 32x32
inline constexpr int kStagedVectors = 8;  // rows of a patch that goes to a transposed copy

// Columns of a thread and load, if rows come through shared memory.
inline constexpr int kStreamedElements = 8;

}  // namespace octile
