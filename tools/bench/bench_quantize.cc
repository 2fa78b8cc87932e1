#include <fmt/format.h>

#include <functional>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "runtime/families/quantize/bench.h"
#include "runtime/families/quantize/operands.h"
#include "tools/bench/bench_kernels.h"
#include "tools/bench/bench_run.h"

namespace octile::tools {
namespace {

// The host reference takes about a second for so many elements; larger runs of the same kernels
// are compared by tests.
constexpr std::uint64_t kOperandSeed = 3;  // the same operands every run
constexpr std::int64_t kMostChecked = std::int64_t{1} << 25;

template <typename Slot>
const Slot& at(const std::vector<Slot>& slots, int i) {
  return slots[static_cast<std::size_t>(i)];
}

// Our quantiser as it is to be timed: a plan's, or a search's winner.
using RunQuantize = std::function<Status(const QuantizeArguments&, CUstream)>;

Result<RunQuantize> runner(const BenchContext& context, const QuantizeProblem& problem,
                           BenchResult& result) {
  if (context.search != nullptr) {
    const auto winner = search_first(context, Problem(problem), result);
    if (!winner) return tl::unexpected<Error>(winner.error());
    const FixedKernel<QuantizeProblem>& kernel =
        tuner::bench_as<QuantizeProblem>(*context.search->bench()).kernel(*winner);
    return RunQuantize([&kernel](const QuantizeArguments& args, CUstream stream) {
      return kernel.run(args, stream);
    });
  }
  auto prepared = prepare_plan(context, problem, result.tokens, result.tokens);
  if (!prepared) return tl::unexpected<Error>(prepared.error());
  result.kernel = std::move(prepared->kernel);
  auto plan = std::make_shared<const PlanHandle>(std::move(prepared->plan));
  return RunQuantize([plan](const QuantizeArguments& args, CUstream stream) {
    return plan->run(args.call(), stream);
  });
}

struct StreamSlot {
  DeviceBuffer in, out;
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

// Runs the first slot and holds it against the host reference.
Status check_codes(const BenchContext& context, const RunQuantize& run,
                   const QuantizeProblem& problem, const QuantizeSlot& slot, BenchResult& result) {
  if (rows_in_all(problem, slot.rows) * problem.cols > kMostChecked) {
    result.check = "not compared at this size";
    return {};
  }
  if (Status ok = run(args_of(slot), context.gpu.stream()); !ok) return ok;
  if (Status ok = context.gpu.synchronize(); !ok) return ok;
  const auto equal = equals_reference(context.gpu, problem, slot);
  if (!equal) return tl::unexpected<Error>(equal.error());
  result.ok = *equal;
  result.check =
      result.ok ? "equal to the host reference, bit for bit" : "DIFFERS from the host reference";
  return {};
}

}  // namespace

Result<BenchResult> bench_quantize(const BenchContext& context, const QuantizeProblem& problem,
                                   std::int64_t rows) {
  BenchResult result;
  result.problem = problem;
  result.tokens = rows;
  const int read = read_bytes_of(problem);
  const int written = written_bytes_of(problem);
  const auto scales = scale_bytes(problem, rows);
  if (!scales) return tl::unexpected<Error>(scales.error());
  const std::int64_t bytes = bytes_moved(problem, rows) + *scales;
  const std::int64_t elements = bytes / (read + written);  // that a stream of this mix moves
  const auto run = runner(context, problem, result);
  if (!run) return tl::unexpected<Error>(run.error());
  const int count = rotation_slots(context.gpu, bytes_touched(problem, rows));
  const auto slots = make_slots(context.gpu, problem, rows, count, kOperandSeed);
  if (!slots) return tl::unexpected<Error>(slots.error());
  if (Status ok = check_codes(context, *run, problem, slots->front(), result); !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  // A thread of the stream moves as many vectors as an element has bytes, or as few as the mix
  // allows: now the one is faster, now the other, and the faster is what counts.
  std::vector<StreamKernel> streams;
  for (const int divisor : std::set{1, std::gcd(read, written)}) {
    auto kernel = StreamKernel::create(context.gpu, read, written, divisor);
    if (!kernel) return tl::unexpected<Error>(kernel.error());
    streams.push_back(std::move(*kernel));
  }
  const auto stream_slots =
      make_stream_slots(context.gpu, streams.front(), elements, slots->size());
  if (!stream_slots) return tl::unexpected<Error>(stream_slots.error());
  std::vector<Contender> contenders{
      {"octile", [&](int i, CUstream stream) { return (*run)(args_of(at(*slots, i)), stream); }}};
  for (const StreamKernel& kernel : streams) {
    contenders.push_back({"stream", [&](int i, CUstream on) {
                            const StreamSlot& s = at(*stream_slots, i);
                            return kernel.run(s.in, s.out, elements, on);
                          }});
  }
  if (Status ok = compare(context, contenders, slots->size(), result); !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  result.tbps = static_cast<double>(bytes) / result.ours.median_us * 1e-6;
  result.scale_share = static_cast<double>(*scales) / static_cast<double>(bytes);
  return result;
}

}  // namespace octile::tools
