// Words on CUDA devices by which replays of CUDA graphs know that FP8 copies are current: 0 says
// no. They outlive every graph, because none is given to a second owner.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_REPLAY_WORDS_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_REPLAY_WORDS_H_

#include <cstdint>

#include "tensors.h"

namespace octile::binding {

// Words of one weight: whether its row-wise copy is current, its transposed one, and both. A
// quantiser that writes both may be skipped by the last alone.
struct CopyWords {
  std::uint32_t* first = nullptr;
  static constexpr int kCount = 3;

  const std::uint32_t* of(bool rowwise, bool transposed) const {
    return first + (rowwise && transposed ? 2 : transposed ? 1 : 0);
  }
  // Enqueues that copies just made are current.
  void set(const Place& place, bool rowwise, bool transposed) const;
};

// Makes the words of a device, unless they are there or its current stream is captured.
void reserve_replay_words(const Place& place);
// Returns words that are 0, or none (first is null) if the device has none left: it has enough for
// 16384 weights.
CopyWords take_replay_words(const Place& place);
// Enqueues on the current stream of every device that all its words become 0. Returns whether one
// of these streams is captured.
bool clear_replay_words();

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_REPLAY_WORDS_H_
