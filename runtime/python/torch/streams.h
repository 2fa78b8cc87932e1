// The order of work on CUDA streams, by the driver that PyTorch has loaded. Callers have made the
// device current (OnDevice). On the host there is no order to keep, and StreamPoint does nothing.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_STREAMS_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_STREAMS_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "tensors.h"

namespace octile::binding {

// Returns the number of the capture into a CUDA graph that the stream of `place` takes part in, or
// 0.
std::uint64_t capture_of(const Place& place);

// Enqueues that `count` words at `words` become `value`.
void fill_words(const Place& place, std::uint32_t* words, std::uint32_t value, std::size_t count);

// Copies memory of the place's device to the host, once the device has done all work so far.
void read_memory(const Place& place, void* target, const void* source, std::size_t bytes);

// Runs `work` in a thread whose allocations belong to no capture and to no memory pool that the
// calling thread allocates in, so that they outlive both. The current stream there is that of
// `place`, or the default one if that is captured, and `work` is given the place it runs on.
void run_apart(const Place& place, const std::function<void(const Place&)>& work);

// A point in the work of a stream, for other streams to wait for.
class StreamPoint {
 public:
  StreamPoint() = default;
  // Everything enqueued on the stream of `place` so far.
  explicit StreamPoint(const Place& place);
  ~StreamPoint();
  StreamPoint(StreamPoint&& other) noexcept;
  StreamPoint& operator=(StreamPoint&& other) noexcept;

  // Moves the point behind everything enqueued on its stream so far. Returns false, and does
  // nothing, if the stream of `place` is another, or if either work is captured.
  bool move_on(const Place& place) const;

  // Lets later work on the stream of `place` wait. Work that is captured waits only for work of its
  // own capture, and other work for none that is captured: what orders replays orders the rest.
  void before(const Place& place) const;

 private:
  void* event_ = nullptr;
  void* stream_ = nullptr;
  std::uint64_t capture_ = 0;
};

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_STREAMS_H_
