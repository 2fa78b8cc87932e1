// Launches that are written down, to be done by another process.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/launch/kernel_build.h"
#include "runtime/launch/kernel_registry.h"
#include "runtime/launch/launch_kernel.h"
#include "runtime/proof/messages.h"

namespace octile {

// Stands for a stream and for a loaded kernel, in the thread that made it: one of a thread at a
// time. Whatever a family enqueues at site() with kernels() is kept as fields of a "run" message,
// in order, and the driver is not called. A tensor map is encoded by the other process, in whose
// memory it points. Whatever a message cannot say is CUDA_ERROR_NOT_SUPPORTED.
class LaunchRecorder {
 public:
  LaunchRecorder(const Driver& driver, const KernelBuild& build);
  ~LaunchRecorder();
  LaunchRecorder(const LaunchRecorder&) = delete;
  LaunchRecorder& operator=(const LaunchRecorder&) = delete;

  LoadedKernel kernels() const;
  LaunchSite site() const { return {driver_, nullptr, false}; }
  const std::vector<std::string>& launches() const { return launches_; }

 private:
  static CUresult CUDAAPI record_launch(const CUlaunchConfig* config, CUfunction function,
                                        void** parameters, void** extra);
  static CUresult CUDAAPI record_clear(CUdeviceptr address, std::size_t pitch, unsigned char value,
                                       std::size_t width, std::size_t height, CUstream stream);
  static CUresult CUDAAPI record_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                     void* address, const cuuint64_t* dims,
                                     const cuuint64_t* strides, const cuuint32_t* box,
                                     const cuuint32_t* element_strides,
                                     CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                     CUtensorMapL2promotion promotion,
                                     CUtensorMapFloatOOBfill fill);
  void add_launch(const RecordedLaunch& launch, const void* parameter, std::size_t bytes);

  const Driver driver_;                       // with these three functions in place of its own
  std::vector<std::size_t> parameter_bytes_;  // of the kernel and its companions
  std::vector<std::pair<const void*, RecordedMap>> maps_;  // since the last launch, by their place
  std::vector<std::string> launches_;
};

}  // namespace octile
