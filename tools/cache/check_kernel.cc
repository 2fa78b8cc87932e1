#include "tools/cache/check_kernel.h"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <utility>

#include "generator/core/device_spec.h"
#include "runtime/compiler/cubin.h"

namespace octile::tools {
namespace {

// Bounds of a launch on any device (device_spec.h): CUDA C++ Programming Guide, "Technical
// Specifications per Compute Capability".
constexpr int kMostThreads = 1024;
constexpr int kMostStackBytes = 512 * 1024;  // local memory of a thread
// A compiler counts each store and load of the code, so that no device bounds these.
constexpr int kMostSpillBytes = std::numeric_limits<int>::max();

struct Range {
  const char* field;
  int value;
  int least;
  int most;
};

tl::unexpected<Error> refuse_kernel(std::string message) {
  return fail(ErrorCode::kInternal, std::move(message));
}

Status check_ranges(const cache::Metadata& m, const CubinKernel& kernel) {
  const int most_threads = kernel.max_threads > 0 ? kernel.max_threads : kMostThreads;
  const std::array ranges{
      Range{"threads", m.threads, 1, most_threads},
      Range{"cluster_size", m.cluster_size, 1, kMostCluster},
      Range{"registers", m.registers, kernel.registers, kernel.registers},
      Range{"static_smem_bytes", m.static_smem_bytes, kernel.static_smem_bytes,
            kernel.static_smem_bytes},
      Range{"dynamic_smem_bytes", m.dynamic_smem_bytes, 0,
            kMostSmemPerBlock - kernel.static_smem_bytes},
      Range{"stack_bytes", m.stack_bytes, kernel.frame_bytes, kMostStackBytes},
      Range{"spill_store_bytes", m.spill_store_bytes, 0, kMostSpillBytes},
      Range{"spill_load_bytes", m.spill_load_bytes, 0, kMostSpillBytes},
  };
  for (const Range& range : ranges) {
    if (range.value >= range.least && range.value <= range.most) continue;
    return refuse_kernel(range.least == range.most
                             ? fmt::format("the metadata has {} {}, the ELF image {}", range.field,
                                           range.value, range.least)
                             : fmt::format("the metadata has {} {}; allowed: {} to {}", range.field,
                                           range.value, range.least, range.most));
  }
  return {};
}

}  // namespace

Status check_kernel(const cache::Entry& entry) {
  const Status valid = validate_cubin(entry.cubin, entry.identity.architecture,
                                      entry.identity.entry_name, entry.metadata.parameter_bytes);
  if (!valid) return refuse_kernel(valid.error().message);
  const auto cubin = read_cubin(entry.cubin);
  if (!cubin) return refuse_kernel(cubin.error().message);
  const CubinKernel* kernel = cubin->find(entry.identity.entry_name);
  if (kernel == nullptr) {
    return refuse_kernel(fmt::format("the ELF image has no kernel {}", entry.identity.entry_name));
  }
  return check_ranges(entry.metadata, *kernel);
}

}  // namespace octile::tools
