// The extension's part in fork(), as runtime/base/fork.h says it of the library.
//
// Its global state is guarded by the mutexes below, which are held across every fork: the child
// finds them free, and the state whole. Mutexes of single objects are held for as long as a weight
// is quantised, which no fork waits for: the child leaves such an object to the parent and begins
// another.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_FORK_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_FORK_H_

#include <cstdint>
#include <mutex>

namespace octile::binding {

// The state that a mutex guards. A thread may hold several, in this order. It then calls nothing
// that needs Python's interpreter lock, which the thread that forks holds.
enum class ProcessWide : std::uint8_t {
  kWeights,      // the registry of kept weights
  kReplayWords,  // their words on devices
  kMaxima,       // which states of delayed scaling have maxima
  kPieces,       // found by token
  kLayers,       // found by description
  kPlans,        // found by problem, and the library handle
  kCount
};
std::mutex& process_mutex(ProcessWide what);

// Runs `function` in the child of every fork from now on, while the mutexes are held. For variables
// at namespace scope, so that it is registered when the extension is loaded.
struct InChild {
  explicit InChild(void (*function)());

  void (*work)();
  InChild* next;
};

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_FORK_H_
