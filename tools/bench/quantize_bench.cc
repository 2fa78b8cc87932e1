// A quantiser's benchmark: checked against the host reference, timed beside a stream of the same
// bytes.
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "runtime/prove/quantize/bench.h"
#include "runtime/prove/quantize/operands.h"
#include "tools/bench/measurement.h"
#include "tools/bench/runner.h"
#include "tools/bench/yardsticks.h"

namespace octile::tools {
namespace {

constexpr std::uint64_t kQuantizeSeed = 3;  // the same operands every run
// The host reference takes about a second for as many elements; tests compare larger runs of the
// same kernels.
constexpr std::int64_t kMostChecked = std::int64_t{1} << 25;

// Runs on the slot and notes in the record whether it equals the host reference.
Status check_codes(const BenchContext& context, const Runner<QuantizeProblem>& run,
                   const QuantizeProblem& problem, const QuantizeSlot& slot, Record& record) {
  if (rows_in_all(problem, slot.rows) * problem.cols > kMostChecked) {
    record.check = "not compared at this size";
    return {};
  }
  if (Status ok = run(args_of(slot), context.gpu.stream()); !ok) return ok;
  if (Status ok = context.gpu.synchronize(); !ok) return ok;
  const auto equal = equals_reference(context.gpu, problem, slot);
  if (!equal) return tl::unexpected<Error>(equal.error());
  record.ok = *equal;
  record.check =
      record.ok ? "equal to the host reference, bit for bit" : "DIFFERS from the host reference";
  return {};
}

// Bytes that a stream reads and writes in one call.
struct StreamSlot {
  DeviceBuffer in, out;
};

// Streams of one mix of reads and writes, on slots of their own.
struct Streams {
  std::vector<StreamKernel> kernels;
  std::vector<StreamSlot> slots;
  std::int64_t elements = 0;
};

Result<std::vector<StreamSlot>> make_stream_slots(const GpuSession& gpu, const StreamKernel& kernel,
                                                  std::int64_t units, std::size_t count) {
  std::vector<StreamSlot> slots;
  for (std::size_t i = 0; i < count; ++i) {
    auto in = gpu.allocate(kernel.in_bytes(units));
    if (!in) return tl::unexpected<Error>(in.error());
    auto out = gpu.allocate(kernel.out_bytes(units));
    if (!out) return tl::unexpected<Error>(out.error());
    // Random bits cost power that zeros do not.
    if (Status ok = in->fill(static_cast<std::uint8_t>(37 * i + 91), gpu.stream()); !ok) {
      return tl::unexpected<Error>(ok.error());
    }
    slots.push_back({std::move(*in), std::move(*out)});
  }
  return slots;
}

// A thread of the stream moves as many vectors as an element has bytes, or as few as the mix
// allows. Either may be faster, and the faster one counts.
Result<Streams> make_streams(const BenchContext& context, int read_bytes, int written_bytes,
                             std::int64_t bytes, std::size_t slots) {
  Streams streams;
  streams.elements = bytes / (read_bytes + written_bytes);
  for (const int divisor : std::set{1, std::gcd(read_bytes, written_bytes)}) {
    auto kernel = StreamKernel::create(context.templates, read_bytes, written_bytes, divisor);
    if (!kernel) return tl::unexpected<Error>(kernel.error());
    streams.kernels.push_back(std::move(*kernel));
  }
  auto made = make_stream_slots(context.gpu, streams.kernels.front(), streams.elements, slots);
  if (!made) return tl::unexpected<Error>(made.error());
  streams.slots = std::move(*made);
  return streams;
}

// Ours first, then every stream. Valid as long as the arguments.
std::vector<Contender> contenders(const Runner<QuantizeProblem>& run,
                                  const std::vector<QuantizeSlot>& slots, const Streams& streams) {
  const int count = static_cast<int>(slots.size());
  std::vector<Contender> all{
      {"octile", [&](int i, CUstream on) { return run(args_of(slot_at(slots, i)), on); }, count}};
  for (const StreamKernel& kernel : streams.kernels) {
    all.push_back({"stream",
                   [&](int i, CUstream on) {
                     const StreamSlot& slot = slot_at(streams.slots, i);
                     return kernel.run(slot.in, slot.out, streams.elements, on);
                   },
                   count});
  }
  return all;
}

}  // namespace

std::string bench_label(const QuantizeProblem& problem) {
  constexpr const char* kOutputs[] = {"", "row", "col", "both"};
  std::string label = fmt::format("{}x{}", problem.rows, problem.cols);
  if (problem.operation != QuantizeOperation::kQuantize) {
    label += fmt::format(" {}", name_of(problem.operation));
  }
  if (!problem.source.empty()) label += " " + problem.source;
  label += fmt::format(" {} {} {}", to_text(problem.x), to_text(problem.q),
                       kOutputs[static_cast<int>(problem.output)]);
  if (problem.policy == ScalePolicy::kDelayed) label += " delayed";
  if (problem.grouping == Grouping::kContiguous) label += " contiguous";
  if (problem.grouping == Grouping::kMasked) label += " masked";
  if (problem.bias_gradient) label += " dbias";
  return label;
}

Result<Record> bench(const BenchContext& context, const QuantizeProblem& problem,
                     std::int64_t rows) {
  Record record = record_of(context, problem, rows);
  const auto scales = scale_bytes(problem, rows);
  if (!scales) return tl::unexpected<Error>(scales.error());
  const std::int64_t bytes = bytes_moved(problem, rows) + *scales;
  const auto run = make_runner(context, problem, rows, record);
  if (!run) return tl::unexpected<Error>(run.error());
  const int count = context.slots > 0
                        ? context.slots
                        : rotation_slots(context.gpu.spec(), bytes_touched(problem, rows));
  const auto slots = make_slots(context.gpu, problem, rows, count, kQuantizeSeed);
  if (!slots) return tl::unexpected<Error>(slots.error());
  if (Status ok = check_codes(context, *run, problem, slots->front(), record); !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  const auto streams = make_streams(context, read_bytes_of(problem), written_bytes_of(problem),
                                    bytes, slots->size());
  if (!streams) return tl::unexpected<Error>(streams.error());
  if (Status ok = compare(context, contenders(*run, *slots, *streams), "", record); !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  record.details.set("bytes", bytes);
  record.details.set("scale_bytes", *scales);
  return record;
}

Result<std::optional<Record>> host_overhead(const BenchContext&, const QuantizeProblem&) {
  return std::nullopt;
}

}  // namespace octile::tools
