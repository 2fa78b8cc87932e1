// Memory of one stream that calls on other streams read and write.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_STREAM_MEMORY_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_STREAM_MEMORY_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "streams.h"
#include "tensors.h"

namespace octile::binding {

// Belongs to the stream that allocated it, as PyTorch's allocator sees it. Other streams wait until
// its contents are made, and the memory is given back when they have used it. Contents may be made
// again, by work that runs behind the last use.
class StreamMemory {
 public:
  // Allocates on the stream of `place`.
  StreamMemory(const Place& place, std::int64_t bytes);
  ~StreamMemory();
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  void* data() const { return bytes_.data_ptr(); }
  void fill_zero() const { binding::fill_zero(bytes_); }

  // In the child of a fork, where no other thread is: returns whether none was in a call of this.
  bool is_whole();

  // The contents are made where the stream of `place` has come to `point`.
  void made_at(const Place& place, std::shared_ptr<const StreamPoint> point);
  // Lets the stream of `place` wait until other streams have used the contents, to make others.
  void before_write(const Place& place);
  // Lets the stream of `place` wait until the contents are made.
  void before(const Place& place);
  // The stream of `place` has enqueued its last use for now.
  void used_on(const Place& place);

 private:
  Place owner_;
  Tensor bytes_;
  std::mutex mutex_;
  std::shared_ptr<const StreamPoint> made_;
  void* made_stream_ = nullptr;
  std::unordered_map<void*, StreamPoint> uses_;  // the last of each other stream
};

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_STREAM_MEMORY_H_
