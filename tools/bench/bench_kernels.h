// The yardsticks of `octile bench`: a stream of a read:write mix, and a kernel that does nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/measure/gpu_session.h"
#include "runtime/measure/loaded_template.h"
#include "runtime/measure/timing.h"

namespace octile::tools {

// Reads `reads` bytes for every `writes` it writes; a thread has as many vectors of each, over
// `divisor`, which divides both. A unit of the caller's is `divisor` of the kernel's.
class StreamKernel {
 public:
  static Result<StreamKernel> create(const GpuSession& gpu, int reads, int writes, int divisor);
  // Sizes rounded up to whole tiles, for `units` times (reads, writes) bytes.
  std::size_t in_bytes(std::int64_t units) const;
  std::size_t out_bytes(std::int64_t units) const;
  // Buffers of at least those sizes, of this divisor or of 1.
  Status run(const DeviceBuffer& in, const DeviceBuffer& out, std::int64_t units,
             CUstream stream) const;

 private:
  StreamKernel(LoadedTemplate kernel, int reads, int writes, int divisor)
      : kernel_(std::move(kernel)), reads_(reads), writes_(writes), divisor_(divisor) {}
  std::int64_t tiles(std::int64_t units) const;
  LoadedTemplate kernel_;
  int reads_, writes_, divisor_;
};

Result<LoadedTemplate> load_empty_kernel(const GpuSession& gpu);
// Its microseconds as a graph node.
Result<Timing> time_empty_kernel(const GpuSession& gpu, int rounds);

}  // namespace octile::tools
