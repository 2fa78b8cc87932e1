// The one list of driver functions that Octile calls. driver.h makes a struct of typed pointers
// from it, driver.cc resolves it, and a test checks the fake driver against it.
//
// An entry is the exported symbol with its version suffix, which dlsym looks up. The suffix is the
// version whose signature <cuda.h> has declared under the plain name since CUDA 12.0. A call may
// therefore use either name: <cuda.h> turns `cuMemAlloc` into `cuMemAlloc_v2`. cuEventElapsedTime
// is listed without the suffix that its header gives it since 12.8. Both have the same signature,
// and drivers from 12.0 on have the plain symbol.
//
// All these functions exist in drivers from 12.0 on, the first with cuLibrary* and tensor maps.
#pragma once

#define OCTILE_DRIVER_FUNCTIONS(X)     \
  X(cuInit)                            \
  X(cuDriverGetVersion)                \
  X(cuGetErrorName)                    \
  X(cuGetErrorString)                  \
  X(cuDeviceGet)                       \
  X(cuDeviceGetCount)                  \
  X(cuDeviceGetName)                   \
  X(cuDeviceGetUuid_v2)                \
  X(cuDeviceGetAttribute)              \
  X(cuDeviceTotalMem_v2)               \
  X(cuDevicePrimaryCtxRetain)          \
  X(cuDevicePrimaryCtxRelease_v2)      \
  X(cuCtxGetCurrent)                   \
  X(cuCtxSetCurrent)                   \
  X(cuCtxPushCurrent_v2)               \
  X(cuCtxPopCurrent_v2)                \
  X(cuCtxGetDevice)                    \
  X(cuCtxSynchronize)                  \
  X(cuMemGetInfo_v2)                   \
  X(cuMemAlloc_v2)                     \
  X(cuMemFree_v2)                      \
  X(cuMemcpyHtoDAsync_v2)              \
  X(cuMemcpyDtoHAsync_v2)              \
  X(cuMemcpyDtoDAsync_v2)              \
  X(cuMemsetD8Async)                   \
  X(cuMemsetD2D8Async)                 \
  X(cuMemsetD32Async)                  \
  X(cuPointerGetAttribute)             \
  X(cuStreamCreate)                    \
  X(cuStreamDestroy_v2)                \
  X(cuStreamSynchronize)               \
  X(cuStreamQuery)                     \
  X(cuStreamWaitEvent)                 \
  X(cuStreamGetCtx)                    \
  X(cuStreamIsCapturing)               \
  X(cuStreamBeginCapture_v2)           \
  X(cuStreamEndCapture)                \
  X(cuThreadExchangeStreamCaptureMode) \
  X(cuGraphInstantiateWithFlags)       \
  X(cuGraphLaunch)                     \
  X(cuGraphExecDestroy)                \
  X(cuGraphDestroy)                    \
  X(cuEventCreate)                     \
  X(cuEventDestroy_v2)                 \
  X(cuEventRecord)                     \
  X(cuEventQuery)                      \
  X(cuEventSynchronize)                \
  X(cuEventElapsedTime)                \
  X(cuLibraryLoadData)                 \
  X(cuLibraryUnload)                   \
  X(cuLibraryGetKernel)                \
  X(cuKernelGetFunction)               \
  X(cuKernelGetAttribute)              \
  X(cuKernelSetAttribute)              \
  X(cuLaunchKernelEx)                  \
  X(cuTensorMapEncodeTiled)
