#include "tests/fake_driver/state.h"

namespace fake {
namespace {

std::mutex& state_mutex() {
  static std::mutex mutex;
  return mutex;
}

State& the_state() {
  // The state is never destroyed, because destructors that run at exit may release the driver's
  // handles.
  static State& state = *new State;
  return state;
}

void invalidate(CUstream_st& stream) {
  if (stream.capture != nullptr) stream.capture->invalidated = true;
}

template <typename Use>
void for_each_capture(State& state, Use use) {
  for (auto& [handle, stream] : state.streams)
    if (stream->capture != nullptr) use(*stream->capture);
}

}  // namespace

Locked::Locked() : state_(the_state()), lock_(state_mutex()) {}

CUresult enter_call(State& state, const char* function) {
  ++state.calls[function];
  const auto fault = state.faults.find(function);
  if (fault == state.faults.end()) return CUDA_SUCCESS;
  if (fault->second.remaining == 0) return fault->second.result;
  if (--fault->second.remaining > 0) return CUDA_SUCCESS;
  const CUresult result = fault->second.result;
  state.faults.erase(fault);
  return result;
}

std::vector<CUcontext>& context_stack(const State& state) {
  thread_local std::vector<CUcontext> stack;
  thread_local int generation = 0;
  if (generation != state.generation) stack.clear();
  generation = state.generation;
  return stack;
}

CUcontext current_context(const State& state) {
  const auto& stack = context_stack(state);
  return stack.empty() ? nullptr : stack.back();
}

CUstreamCaptureMode& thread_capture_mode() {
  thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return mode;
}

bool is_device(const State& state, CUdevice device) {
  return device >= 0 && static_cast<std::size_t>(device) < state.devices.size();
}

bool is_context(const State& state, CUcontext context) {
  for (const CUctx_st& known : state.contexts)
    if (&known == context) return known.retained > 0;
  for (const OtherContext& known : state.other_contexts)
    if (&known.context == context) return true;
  return false;
}

CUstream_st* find_stream(State& state, CUstream handle) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    const CUcontext context = current_context(state);
    if (context == nullptr) return nullptr;
    for (OtherContext& other : state.other_contexts)
      if (&other.context == context) return &other.default_stream;
    return &state.default_streams[static_cast<std::size_t>(context->device)];
  }
  const auto found = state.streams.find(handle);
  return found == state.streams.end() ? nullptr : found->second.get();
}

CUkern_st* find_kernel(State& state, const void* handle) {
  for (auto& [library, contents] : state.libraries)
    for (CUkern_st& kernel : contents->kernels)
      if (&kernel == handle) return &kernel;
  return nullptr;
}

const CUkern_st* find_launchable(State& state, CUfunction handle) {
  for (const auto& [library, contents] : state.libraries)
    for (const auto& [key, function] : contents->functions)
      if (&function == handle)
        return function.context == current_context(state) ? function.kernel : nullptr;
  return find_kernel(state, handle);
}

CUresult check_unsafe_call(State& state) {
  const CUstreamCaptureMode mode = thread_capture_mode();
  if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  bool prohibited = false;
  for_each_capture(state, [&](Capture& capture) {
    const bool own = capture.thread == std::this_thread::get_id();
    const bool concerns = own ? capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED
                              : mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                    capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!concerns) return;
    capture.invalidated = true;
    prohibited = true;
  });
  return prohibited ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult enqueue(Locked& state, CUstream handle, Work work) {
  CUstream_st* stream = find_stream(*state, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture != nullptr) {
    if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    stream->capture->work.push_back(std::move(work));
    return CUDA_SUCCESS;
  }
  // The legacy stream waits for every blocking stream of its context, which a capture cannot do.
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    for (auto& [other, contents] : state->streams) {
      if (contents->capture == nullptr || !contents->blocking ||
          contents->context != stream->context)
        continue;
      invalidate(*contents);
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  state.unlock();
  return work(handle, false);
}

}  // namespace fake

// ---- control ------------------------------------------------------------------------------------

extern "C" {

void fake_cuda_reset(void) {
  fake::Locked state;
  const int generation = state->generation + 1;
  *state = fake::State();
  state->generation = generation;
}

CUcontext fake_cuda_make_context(int device) {
  fake::Locked state;
  fake::OtherContext& made = state->other_contexts.emplace_back();
  made.context.device = device;
  made.default_stream.context = &made.context;
  return &made.context;
}

void fake_cuda_fail(const char* function, CUresult result, int nth) {
  fake::Locked state;
  state->faults[function] = {result, nth};
}

size_t fake_cuda_call_count(const char* function) {
  fake::Locked state;
  return state->calls[function];
}

size_t fake_cuda_launch_count(void) {
  fake::Locked state;
  return state->launches.size();
}

int fake_cuda_get_launch(size_t index, fake_cuda_launch* launch) {
  fake::Locked state;
  if (index >= state->launches.size()) return 0;
  *launch = state->launches[index].launch;
  return 1;
}

void fake_cuda_set_executor(fake_cuda_executor executor, void* user) {
  fake::Locked state;
  state->executor = executor;
  state->executor_user = user;
}

void fake_cuda_set_memory(size_t bytes) {
  fake::Locked state;
  state->memory_bytes = bytes;
}

size_t fake_cuda_live_allocations(void) {
  fake::Locked state;
  return state->allocations.size();
}

size_t fake_cuda_live_libraries(void) {
  fake::Locked state;
  return state->libraries.size();
}

size_t fake_cuda_live_streams(void) {
  fake::Locked state;
  return state->streams.size();
}

}  // extern "C"
