// The yardsticks of `octile bench`: a stream of reads and writes, and an empty kernel.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/measure/gpu_session.h"
#include "runtime/measure/loaded_template.h"
#include "tools/bench/measurement.h"

namespace octile::tools {

// Reads `reads` bytes for every `writes` bytes that it writes. A thread moves reads / divisor
// vectors in and writes / divisor out; `divisor` divides both. One unit of the caller is `divisor`
// units of the kernel.
class StreamKernel {
 public:
  // The templates outlive the stream.
  static Result<StreamKernel> create(LoadedTemplates& templates, int reads, int writes,
                                     int divisor);
  // Return `units` times the bytes read or written, rounded up to whole tiles.
  std::size_t in_bytes(std::int64_t units) const;
  std::size_t out_bytes(std::int64_t units) const;
  // The buffers have at least those sizes, for this divisor or for 1.
  Status run(const DeviceBuffer& in, const DeviceBuffer& out, std::int64_t units,
             CUstream stream) const;

 private:
  StreamKernel(const LoadedTemplate* kernel, int reads, int writes, int divisor)
      : kernel_(kernel), reads_(reads), writes_(writes), divisor_(divisor) {}
  std::int64_t tiles(std::int64_t units) const;
  const LoadedTemplate* kernel_;
  int reads_, writes_, divisor_;
};

Result<const LoadedTemplate*> empty_kernel(LoadedTemplates& templates);
// Returns the microseconds that the empty kernel takes as a node of a graph.
Result<Record> time_empty_kernel(const BenchContext& context);

}  // namespace octile::tools
