#include "runtime/driver/stream.h"

namespace octile {

Result<Stream> Stream::create(std::shared_ptr<const Driver> driver) {
  CUstream stream = nullptr;
  if (Status got = driver->check((*driver)->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
                                 "cuStreamCreate");
      !got)
    return tl::unexpected(got.error());
  return Stream(std::move(driver), stream);
}

Status Stream::synchronize() const {
  return driver_->check((*driver_)->cuStreamSynchronize(handle_), "cuStreamSynchronize");
}

Result<Event> Event::create(std::shared_ptr<const Driver> driver) {
  CUevent event = nullptr;
  if (Status got =
          driver->check((*driver)->cuEventCreate(&event, CU_EVENT_DEFAULT), "cuEventCreate");
      !got)
    return tl::unexpected(got.error());
  return Event(std::move(driver), event);
}

Status Event::record(CUstream stream) const {
  return driver_->check((*driver_)->cuEventRecord(handle_, stream), "cuEventRecord");
}

Status Event::synchronize() const {
  return driver_->check((*driver_)->cuEventSynchronize(handle_), "cuEventSynchronize");
}

Result<double> Event::elapsed_us_since(const Event& start) const {
  float ms = 0;
  if (Status got = driver_->check((*driver_)->cuEventElapsedTime(&ms, start.get(), handle_),
                                  "cuEventElapsedTime");
      !got)
    return tl::unexpected(got.error());
  return double{ms} * 1e3;
}

bool is_capturing(const Driver& driver, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver->cuStreamIsCapturing(stream, &status);
  return result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
         (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE);
}

Result<Graph> Graph::capture(std::shared_ptr<const Driver> driver, CUstream stream,
                             const std::function<Status()>& work) {
  if (Status began = driver->check(
          (*driver)->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
          "cuStreamBeginCapture");
      !began)
    return tl::unexpected(began.error());
  const Status worked = work();
  CUgraph graph = nullptr;
  const CUresult end = (*driver)->cuStreamEndCapture(stream, &graph);
  CUgraphExec executable = nullptr;
  CUresult instantiated = CUDA_SUCCESS;
  if (worked && end == CUDA_SUCCESS)
    instantiated = (*driver)->cuGraphInstantiateWithFlags(&executable, graph, 0);
  if (graph != nullptr) (*driver)->cuGraphDestroy(graph);
  if (!worked) return tl::unexpected(worked.error());
  if (Status ended = driver->check(end, "cuStreamEndCapture"); !ended)
    return tl::unexpected(ended.error());
  if (Status made = driver->check(instantiated, "cuGraphInstantiate"); !made)
    return tl::unexpected(made.error());
  return Graph(std::move(driver), executable);
}

Status Graph::launch(CUstream stream) const {
  return driver_->check((*driver_)->cuGraphLaunch(handle_, stream), "cuGraphLaunch");
}

}  // namespace octile
