/* Control of the fake CUDA driver, which replaces libcuda.so.1 in tests without a GPU.
 *
 * It implements every function of runtime/driver/driver_functions.h over devices that exist only as
 * data. Device memory is host memory, and a CUdeviceptr is its address. A stream does its work
 * within the call that enqueues it. A launch is checked, recorded, and passed to the executor if
 * one is set. A capture records work, and a graph launch does the recorded work.
 *
 * It refuses what the real driver refuses: calls without cuInit or a current context, handles it
 * did not make, copies outside an allocation, launches beyond the device's limits, an image that is
 * not a cubin or is for another architecture, and tensor maps that break a documented rule. Within
 * a capture it refuses everything that allocates, loads or synchronises. It does not model time,
 * races between streams, or captures that fork into a second stream.
 *
 * FAKE_CUDA_DEVICES names the devices, separated by ',': h200, h100, h20, h100-part (64 of
 * an H100's SMs), a100 (sm_80), l40s, rtx5090, b200, or "none".
 * Default "h200,h200". cuInit and fake_cuda_reset() read it. A process that takes the primary
 * context of the device whose number is FAKE_CUDA_KILLS_USERS_OF is ended by SIGKILL.
 * FAKE_CUDA_COMPUTE_MODE is the devices' compute mode (0), FAKE_CUDA_MPS whether a multi-process
 * service has them (0).
 *
 * In octile-prover, where no test can set an executor, cuInit takes fake_cuda_execute() of the
 * library that FAKE_CUDA_EXECUTOR names (tests/fake_executor), as it does in the program that
 * FAKE_CUDA_EXECUTOR_ALSO_IN names.
 *
 * A test finds the functions with dlsym in the library from which the driver was opened. All of
 * them are thread safe.
 */
#ifndef OCTILE_TESTS_FAKE_DRIVER_FAKE_DRIVER_H_
#define OCTILE_TESTS_FAKE_DRIVER_FAKE_DRIVER_H_

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One launch as the device would have seen it. */
typedef struct fake_cuda_launch {
  const char* kernel; /* valid until fake_cuda_reset() */
  unsigned grid[3];
  unsigned block[3];
  unsigned cluster[3]; /* 1, 1, 1 if the launch set none */
  unsigned dynamic_smem_bytes;
  int device;
  int programmatic;              /* has programmatic stream serialization */
  int replayed;                  /* came from a graph launch */
  CUstream stream;               /* the call's handle; in a replay, the graph launch's */
  const void* const* parameters; /* one pointer per parameter, to a copy of its bytes */
  size_t parameter_count;
} fake_cuda_launch;

/* A tensor map as the fake encodes it into the 128 opaque bytes. An executor reads it. */
typedef struct fake_cuda_tensor_map {
  uint32_t magic; /* FAKE_CUDA_TENSOR_MAP_MAGIC */
  uint8_t data_type;
  uint8_t rank;
  uint8_t swizzle;
  uint8_t nan_fill;
  uint64_t address;
  uint64_t dims[5];          /* elements, innermost first */
  uint64_t strides_bytes[4]; /* of dims[1] and up */
  uint32_t box[5];
  uint8_t l2_promotion;
} fake_cuda_tensor_map;
#define FAKE_CUDA_TENSOR_MAP_MAGIC 0x464b544du

/* Does the work of a launch on the thread that launches or replays. Returns the launch's result. */
typedef CUresult (*fake_cuda_executor)(const fake_cuda_launch* launch, void* user);

/* Returns to the state after loading: nothing is initialised, no handle is valid, logs are empty
 * and memory is freed. No other thread may be in the driver. */
void fake_cuda_reset(void);

/* Returns a context of the device other than its primary one, valid until fake_cuda_reset(). */
CUcontext fake_cuda_make_context(int device);

/* Makes the nth call from now of the exported symbol `function` ("cuMemAlloc_v2") return `result`
 * without doing anything; nth = 0: every call until fake_cuda_reset(). */
void fake_cuda_fail(const char* function, CUresult result, int nth);

/* Returns the number of calls of one exported symbol so far, including failed ones. */
size_t fake_cuda_call_count(const char* function);

/* Returns the number of launches executed so far. A captured launch counts when its graph runs. */
size_t fake_cuda_launch_count(void);
/* Returns 0 if `index` is not one of them. */
int fake_cuda_get_launch(size_t index, fake_cuda_launch* launch);

void fake_cuda_set_executor(fake_cuda_executor executor, void* user); /* null: none */

/* Sets the bytes that each device has from now on; default 80 GB. */
void fake_cuda_set_memory(size_t bytes);

/* Return the number of live objects, for leak checks. */
size_t fake_cuda_live_allocations(void);
size_t fake_cuda_live_libraries(void);
size_t fake_cuda_live_streams(void);

#ifdef __cplusplus
}
#endif
#endif
