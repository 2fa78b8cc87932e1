// Words on CUDA devices by which replays of CUDA graphs know that FP8 copies are current: 0 says
// no. They outlive every graph, because none is given to a second owner.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_REPLAY_WORDS_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_REPLAY_WORDS_H_

#include <cstdint>

#include "tensors.h"

namespace octile::binding {

// Makes the words of a device, unless they are there or its current stream is captured.
void reserve_replay_words(const Place& place);
// Returns words of one weight, as octile_weight_call has them, or null if the device has none left:
// it has enough for 16384 weights.
std::uint32_t* take_replay_words(const Place& place);
// Enqueues on the current stream of every device that all its words become 0. Returns whether one
// of these streams is captured.
bool clear_replay_words();

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_REPLAY_WORDS_H_
