// Streams, events, captures and graphs.
#include "tests/fake_driver/state.h"

namespace {

// Refuses a call that waits for this stream while it captures, and invalidates the capture.
CUresult check_wait(CUstream_st& stream) {
  if (stream.capture == nullptr) return CUDA_SUCCESS;
  stream.capture->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUevent_st* find_event(fake::State& state, CUevent handle) {
  const auto found = state.events.find(handle);
  return found == state.events.end() ? nullptr : found->second.get();
}

// Keeps the object in the table of its kind and returns its handle.
template <typename Table, typename Object>
typename Table::key_type keep(Table& table, std::unique_ptr<Object> object) {
  Object* handle = object.get();
  table.emplace(handle, std::move(object));
  return handle;
}

}  // namespace

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  FAKE_ENTER_WITH_CONTEXT(cuStreamCreate);
  auto created = std::make_unique<CUstream_st>();
  created->context = fake::current_context(*state);
  created->blocking = (flags & CU_STREAM_NON_BLOCKING) == 0;
  *stream = keep(state->streams, std::move(created));
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  FAKE_ENTER(cuStreamDestroy_v2);
  return state->streams.erase(stream) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuStreamSynchronize(CUstream handle) {
  FAKE_ENTER_WITH_CONTEXT(cuStreamSynchronize);
  CUstream_st* stream = fake::find_stream(*state, handle);
  return stream == nullptr ? CUDA_ERROR_INVALID_HANDLE : check_wait(*stream);
}

CUresult cuStreamQuery(CUstream handle) {
  FAKE_ENTER_WITH_CONTEXT(cuStreamQuery);
  CUstream_st* stream = fake::find_stream(*state, handle);
  return stream == nullptr ? CUDA_ERROR_INVALID_HANDLE : check_wait(*stream);
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  FAKE_ENTER(cuStreamGetCtx);
  const CUstream_st* stream = fake::find_stream(*state, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *context = stream->context;
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int) {
  FAKE_ENTER_WITH_CONTEXT(cuStreamWaitEvent);
  CUstream_st* stream = fake::find_stream(*state, handle);
  const CUevent_st* found = find_event(*state, event);
  if (stream == nullptr || found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  // Work is done when it is enqueued, so there is nothing to wait for. Forks into a capture are not
  // modelled: a wait that would cross its border is refused.
  if (found->recorded && found->captured != (stream->capture != nullptr))
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  return CUDA_SUCCESS;
}

// ---- capture ------------------------------------------------------------------------------------

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  FAKE_ENTER(cuStreamIsCapturing);
  const CUstream_st* stream = fake::find_stream(*state, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *status = stream->capture == nullptr     ? CU_STREAM_CAPTURE_STATUS_NONE
            : stream->capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                           : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  FAKE_ENTER_WITH_CONTEXT(cuStreamBeginCapture_v2);
  const auto found = state->streams.find(handle);
  if (found == state->streams.end())  // the default streams cannot be captured
    return fake::find_stream(*state, handle) != nullptr ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                                        : CUDA_ERROR_INVALID_HANDLE;
  if (found->second->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  found->second->capture = std::make_unique<fake::Capture>();
  found->second->capture->mode = mode;
  found->second->capture->thread = std::this_thread::get_id();
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  FAKE_ENTER_WITH_CONTEXT(cuStreamEndCapture);
  *graph = nullptr;
  CUstream_st* stream = fake::find_stream(*state, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (stream->capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      stream->capture->thread != std::this_thread::get_id())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  const auto capture = std::move(stream->capture);
  if (capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  auto made = std::make_unique<CUgraph_st>();
  made->work = std::move(capture->work);
  *graph = keep(state->graphs, std::move(made));
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  FAKE_ENTER(cuThreadExchangeStreamCaptureMode);
  std::swap(*mode, fake::thread_capture_mode());
  return CUDA_SUCCESS;
}

// ---- graphs -------------------------------------------------------------------------------------

CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long) {
  FAKE_ENTER_WITH_CONTEXT(cuGraphInstantiateWithFlags);
  const auto found = state->graphs.find(graph);
  if (found == state->graphs.end()) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_unique<CUgraphExec_st>();
  made->work = found->second->work;
  *executable = keep(state->executables, std::move(made));
  return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  FAKE_ENTER_WITH_CONTEXT(cuGraphLaunch);
  const auto found = state->executables.find(executable);
  if (found == state->executables.end()) return CUDA_ERROR_INVALID_HANDLE;
  return fake::enqueue(state, stream, [work = found->second->work](CUstream on, bool) {
    for (const fake::Work& step : work)
      if (const CUresult result = step(on, true); result != CUDA_SUCCESS) return result;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphExecDestroy(CUgraphExec executable) {
  FAKE_ENTER(cuGraphExecDestroy);
  return state->executables.erase(executable) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuGraphDestroy(CUgraph graph) {
  FAKE_ENTER(cuGraphDestroy);
  return state->graphs.erase(graph) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// ---- events -------------------------------------------------------------------------------------

CUresult cuEventCreate(CUevent* event, unsigned int) {
  FAKE_ENTER_WITH_CONTEXT(cuEventCreate);
  auto created = std::make_unique<CUevent_st>();
  created->context = fake::current_context(*state);
  *event = keep(state->events, std::move(created));
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
  FAKE_ENTER(cuEventDestroy_v2);
  return state->events.erase(event) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecord(CUevent event, CUstream handle) {
  FAKE_ENTER_WITH_CONTEXT(cuEventRecord);
  CUevent_st* found = find_event(*state, event);
  CUstream_st* stream = fake::find_stream(*state, handle);
  if (found == nullptr || stream == nullptr || found->context != stream->context)
    return CUDA_ERROR_INVALID_HANDLE;
  found->recorded = true;
  found->captured = stream->capture != nullptr;
  if (found->captured)
    return fake::enqueue(state, handle, [](CUstream, bool) { return CUDA_SUCCESS; });
  found->time = std::chrono::steady_clock::now();
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  FAKE_ENTER(cuEventQuery);
  const CUevent_st* found = find_event(*state, event);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return found->captured ? CUDA_ERROR_CAPTURED_EVENT : CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event) {
  FAKE_ENTER(cuEventSynchronize);
  const CUevent_st* found = find_event(*state, event);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return found->captured ? CUDA_ERROR_CAPTURED_EVENT : CUDA_SUCCESS;
}

// The header renames it to the later version, which programs that link the driver call. The list
// requires the plain symbol.
#undef cuEventElapsedTime
__attribute__((visibility("default"))) CUresult cuEventElapsedTime(float* ms, CUevent start,
                                                                   CUevent end) {
  FAKE_ENTER(cuEventElapsedTime);
  const CUevent_st* from = find_event(*state, start);
  const CUevent_st* to = find_event(*state, end);
  if (from == nullptr || to == nullptr || !from->recorded || !to->recorded)
    return CUDA_ERROR_INVALID_HANDLE;
  if (from->captured || to->captured) return CUDA_ERROR_CAPTURED_EVENT;
  *ms = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return CUDA_SUCCESS;
}
__attribute__((visibility("default"))) CUresult cuEventElapsedTime_v2(float* ms, CUevent start,
                                                                      CUevent end) {
  return cuEventElapsedTime(ms, start, end);
}

}  // extern "C"
