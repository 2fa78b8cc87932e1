// The fake driver's state: one for the process behind one mutex.
#pragma once

// <cuda.h> declares the exported functions without a visibility of their own.
#pragma GCC visibility push(default)
#include <cuda.h>

#include "tests/fake_driver/fake_driver.h"
#pragma GCC visibility pop

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/compiler/cubin.h"

// ---- the driver's handle types ------------------------------------------------------------------

struct CUctx_st {
  int device = 0;
  int retained = 0;
};

namespace fake {

// Work on a stream. It is done at once, or a capture records it and each graph launch does it.
using Work = std::function<CUresult(CUstream stream, bool replayed)>;

struct Capture {
  CUstreamCaptureMode mode;
  std::thread::id thread;
  bool invalidated = false;
  std::vector<Work> work;
};

}  // namespace fake

struct CUstream_st {
  CUcontext context = nullptr;
  bool blocking = true;  // synchronises with the legacy default stream
  std::unique_ptr<fake::Capture> capture;
};

struct CUevent_st {
  CUcontext context = nullptr;
  bool recorded = false;
  bool captured = false;  // last recorded inside a capture: the host cannot wait for it
  std::chrono::steady_clock::time_point time;
};

struct CUgraph_st {
  std::vector<fake::Work> work;
};

struct CUgraphExec_st {
  std::vector<fake::Work> work;
};

struct CUkern_st {
  octile::CubinKernel info;
  int sm = 0;
  std::map<int, int> dynamic_smem_limit;  // by device; only devices where it was set
  std::map<int, bool> non_portable_cluster;
};

// A kernel in the only context in which it may be launched.
struct CUfunc_st {
  CUkern_st* kernel = nullptr;
  CUcontext context = nullptr;
};

struct CUlib_st {
  std::map<std::pair<const CUkern_st*, CUcontext>, CUfunc_st> functions;
  std::deque<CUkern_st> kernels;  // a deque keeps addresses stable, which are the CUkernel handles
};

// ---- state --------------------------------------------------------------------------------------

namespace fake {

struct DeviceModel {
  const char* key;
  const char* name;
  int sm_major, sm_minor, sm_count;
  int max_smem_per_block_optin;
  int l2_bytes;
  int clock_khz, memory_clock_khz, bus_bits;
};

struct Allocation {
  std::unique_ptr<std::uint8_t, void (*)(void*)> bytes;
  std::size_t size;
  CUcontext context;
};

struct Fault {
  CUresult result;
  int remaining;  // calls until the fault; 0: every call
};

struct OtherContext {
  CUctx_st context;
  CUstream_st default_stream;
};

struct LaunchRecord {
  fake_cuda_launch launch = {};
  std::string kernel;
  std::vector<std::vector<std::uint8_t>> values;
  std::vector<const void*> pointers;
};

struct State {
  bool initialised = false;
  std::vector<const DeviceModel*> devices;
  std::deque<CUctx_st> contexts;            // one for each device
  std::deque<CUstream_st> default_streams;  // one for each device
  std::deque<OtherContext> other_contexts;  // contexts other than the primary ones
  std::size_t memory_bytes = std::size_t{80} << 30;

  std::map<CUdeviceptr, Allocation> allocations;
  std::map<CUstream, std::unique_ptr<CUstream_st>> streams;
  std::map<CUevent, std::unique_ptr<CUevent_st>> events;
  std::map<CUgraph, std::unique_ptr<CUgraph_st>> graphs;
  std::map<CUgraphExec, std::unique_ptr<CUgraphExec_st>> executables;
  std::map<CUlibrary, std::unique_ptr<CUlib_st>> libraries;

  std::map<std::string, Fault> faults;
  std::map<std::string, std::size_t> calls;
  std::deque<LaunchRecord> launches;  // addresses are stable for fake_cuda_get_launch
  fake_cuda_executor executor = nullptr;
  void* executor_user = nullptr;
  int generation = 0;  // counts resets; a thread's context stack of an older generation is empty
};

// The state and its lock, held for the life of this object.
class Locked {
 public:
  Locked();
  State* operator->() const { return &state_; }
  State& operator*() const { return state_; }
  void unlock() { lock_.unlock(); }

 private:
  State& state_;
  std::unique_lock<std::mutex> lock_;
};

// Counts the call and returns the injected result if one is due.
CUresult enter_call(State& state, const char* function);

// ---- this thread --------------------------------------------------------------------------------

std::vector<CUcontext>& context_stack(const State& state);
CUcontext current_context(const State& state);  // null: none
CUstreamCaptureMode& thread_capture_mode();

// ---- checks shared by the functions -------------------------------------------------------------

bool is_device(const State& state, CUdevice device);
bool is_context(const State& state, CUcontext context);
// Returns the stream of a handle, or null if the handle is not alive. The default stream's handles
// mean the current context's stream.
CUstream_st* find_stream(State& state, CUstream handle);
CUkern_st* find_kernel(State& state, const void* handle);
// Returns the kernel that a launch names: by a kernel, or by a function of the current context.
// Null if it is neither.
const CUkern_st* find_launchable(State& state, CUfunction handle);

// Returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and invalidates the captures concerned if the rules
// of cuThreadExchangeStreamCaptureMode prohibit a potentially unsafe call in this thread.
CUresult check_unsafe_call(State& state);

// Records the work if the stream is capturing. Otherwise releases the lock and does the work.
CUresult enqueue(Locked& state, CUstream handle, Work work);

}  // namespace fake

// Begins every exported function: takes the lock, counts the call and applies an injected fault.
#define FAKE_ENTER(function)                                                                   \
  fake::Locked state;                                                                          \
  if (const CUresult injected = fake::enter_call(*state, #function); injected != CUDA_SUCCESS) \
    return injected;                                                                           \
  if (!state->initialised) return CUDA_ERROR_NOT_INITIALIZED

#define FAKE_ENTER_WITH_CONTEXT(function) \
  FAKE_ENTER(function);                   \
  if (fake::current_context(*state) == nullptr) return CUDA_ERROR_INVALID_CONTEXT
