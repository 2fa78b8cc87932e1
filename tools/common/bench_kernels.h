// The yardsticks of `octile bench`: a stream of a read:write mix, and a kernel that does nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "generator/prologue.h"
#include "tools/common/gpu_session.h"
#include "tools/common/timing.h"

namespace octile::tools {

// A kernel compiled from a template and loaded; unloaded by its scope.
class LoadedTemplate {
 public:
  static Result<LoadedTemplate> compile(const GpuSession& gpu, const Prologue& prologue,
                                        const std::string& path, const std::string& name);
  ~LoadedTemplate();
  LoadedTemplate(LoadedTemplate&& other) noexcept;
  LoadedTemplate& operator=(LoadedTemplate&&) = delete;
  Status launch(unsigned blocks, unsigned threads, void** parameters, CUstream stream) const;

 private:
  LoadedTemplate(std::shared_ptr<const Driver> driver, CUlibrary library, CUkernel kernel)
      : driver_(std::move(driver)), library_(library), kernel_(kernel) {}
  std::shared_ptr<const Driver> driver_;
  CUlibrary library_ = nullptr;
  CUkernel kernel_ = nullptr;
};

// Reads `reads` bytes for every `writes` it writes.
class StreamKernel {
 public:
  static Result<StreamKernel> create(const GpuSession& gpu, int reads, int writes);
  // Sizes rounded up to whole tiles, for `units` times (reads, writes) bytes.
  std::size_t in_bytes(std::int64_t units) const;
  std::size_t out_bytes(std::int64_t units) const;
  // Buffers of at least those sizes.
  Status run(const DeviceBuffer& in, const DeviceBuffer& out, std::int64_t units,
             CUstream stream) const;

 private:
  StreamKernel(LoadedTemplate kernel, int reads, int writes)
      : kernel_(std::move(kernel)), reads_(reads), writes_(writes) {}
  std::int64_t tiles(std::int64_t units) const;
  LoadedTemplate kernel_;
  int reads_, writes_;
};

// Microseconds of an empty kernel as a graph node.
Result<Timing> time_empty_kernel(const GpuSession& gpu, int rounds);

}  // namespace octile::tools
