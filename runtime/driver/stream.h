// Streams, events and captured graphs that are destroyed at the end of their scope. They serve
// tests, bench and demo; Octile's calls take the caller's stream.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "runtime/driver/driver.h"

namespace octile {

// The common part of Stream, Event and Graph: a driver handle that can be moved but not copied. The
// driver function that Traits names destroys it.
template <typename Traits>
class DriverHandle {
 public:
  using Handle = typename Traits::Handle;
  DriverHandle(std::shared_ptr<const Driver> driver, Handle handle)
      : driver_(std::move(driver)), handle_(handle) {}
  ~DriverHandle() {
    if (handle_ != nullptr) Traits::destroy(driver_->api(), handle_);
  }
  DriverHandle(DriverHandle&& other) noexcept
      : driver_(std::move(other.driver_)), handle_(std::exchange(other.handle_, nullptr)) {}
  DriverHandle& operator=(DriverHandle&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  Handle get() const { return handle_; }

 protected:
  std::shared_ptr<const Driver> driver_;
  Handle handle_ = nullptr;
};

struct StreamTraits {
  using Handle = CUstream;
  static void destroy(const DriverApi& api, Handle handle) { api.cuStreamDestroy(handle); }
};
struct EventTraits {
  using Handle = CUevent;
  static void destroy(const DriverApi& api, Handle handle) { api.cuEventDestroy(handle); }
};
struct GraphTraits {
  using Handle = CUgraphExec;
  static void destroy(const DriverApi& api, Handle handle) { api.cuGraphExecDestroy(handle); }
};

// A stream in the current context that does not synchronise with the legacy default stream.
class Stream : public DriverHandle<StreamTraits> {
 public:
  using DriverHandle::DriverHandle;
  static Result<Stream> create(std::shared_ptr<const Driver> driver);
  Status synchronize() const;
};

class Event : public DriverHandle<EventTraits> {
 public:
  using DriverHandle::DriverHandle;
  static Result<Event> create(std::shared_ptr<const Driver> driver);
  Status record(CUstream stream) const;
  Status synchronize() const;
  // Returns the microseconds from `start` to this event; both must have completed.
  Result<double> elapsed_us_since(const Event& start) const;
};

// Returns true if the stream captures. For the legacy default stream (null) also if another
// blocking stream of the context does, which it would have to wait for.
bool is_capturing(const Driver& driver, CUstream stream);

// An instantiated graph.
class Graph : public DriverHandle<GraphTraits> {
 public:
  using DriverHandle::DriverHandle;
  // Returns a graph of the work that `work` puts on the stream. The capture is thread-local, so
  // other threads may allocate meanwhile. If `work` fails, the capture ends, its error is returned
  // and the stream is usable again.
  static Result<Graph> capture(std::shared_ptr<const Driver> driver, CUstream stream,
                               const std::function<Status()>& work);
  Status launch(CUstream stream) const;
};

}  // namespace octile
