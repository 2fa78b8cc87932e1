#include "tools/bench/yardsticks.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "generator/core/types.h"

namespace octile::tools {
namespace {

// The constants of templates/bench/stream.cu.
constexpr int kThreads = 256;
constexpr int kUnroll = 1;
constexpr int kVectorBytes = 16;

}  // namespace

Result<StreamKernel> StreamKernel::create(LoadedTemplates& templates, int reads, int writes,
                                          int divisor) {
  reads /= divisor;
  writes /= divisor;
  Prologue prologue;
  prologue.add_int("kThreads", kThreads, "per block");
  prologue.add_int("kReads", reads, "bytes read for kWrites written");
  prologue.add_int("kWrites", writes, "bytes written for kReads read");
  prologue.add_int("kUnroll", kUnroll, "loads in flight: kReads * kUnroll");
  const auto kernel = templates.get(prologue, "bench/stream.cu", "octile_bench_stream");
  if (!kernel) return tl::unexpected<Error>(kernel.error());
  return StreamKernel(*kernel, reads, writes, divisor);
}

std::int64_t StreamKernel::tiles(std::int64_t units) const {
  return ceil_div(units * divisor_, std::int64_t{kThreads} * kUnroll * kVectorBytes);
}

std::size_t StreamKernel::in_bytes(std::int64_t units) const {
  return static_cast<std::size_t>(tiles(units) * kThreads * kUnroll * kVectorBytes * reads_);
}

std::size_t StreamKernel::out_bytes(std::int64_t units) const {
  return static_cast<std::size_t>(tiles(units) * kThreads * kUnroll * kVectorBytes * writes_);
}

Status StreamKernel::run(const DeviceBuffer& in, const DeviceBuffer& out, std::int64_t units,
                         CUstream stream) const {
  CUdeviceptr source = in.get();
  CUdeviceptr target = out.get();
  long long count = tiles(units);
  std::array<void*, 3> parameters{&source, &target, &count};
  const auto blocks = static_cast<unsigned>(count);
  return kernel_->launch(blocks, kThreads, parameters.data(), stream);
}

Result<const LoadedTemplate*> empty_kernel(LoadedTemplates& templates) {
  return templates.get(Prologue(), "bench/empty.cu", "octile_bench_empty");
}

Result<Record> time_empty_kernel(const BenchContext& context) {
  const auto found = empty_kernel(context.templates);
  if (!found) return tl::unexpected<Error>(found.error());
  const LoadedTemplate* const kernel = *found;
  TimingOptions options;
  options.rounds = context.rounds;
  const auto timings =
      measure(context.gpu,
              {{"empty kernel",
                [&](int, CUstream stream) { return kernel->launch(1, 32, nullptr, stream); }}},
              options);
  if (!timings) return tl::unexpected<Error>(timings.error());
  Record record = new_record(context.tool, context.gpu);
  record.what = timings->front().name;
  record.protocol = replay_protocol(context.rounds, false);
  record.unit = "us";
  record.values = measured(timings->front().rounds_us);
  return record;
}

}  // namespace octile::tools
