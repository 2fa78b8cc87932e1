#include "tools/demo/forward.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cmath>
#include <utility>

#include "generator/gemm/passes.h"
#include "runtime/prove/gemm/tensor_arguments.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/parallel.h"
#include "runtime/reference/synthetic.h"
#include "tools/common/terminal.h"
#include "tools/demo/quantizing.h"

namespace octile::tools {
namespace {

std::vector<std::uint8_t> output_of(const Layer& layer) {
  return std::vector<std::uint8_t>(static_cast<std::size_t>(layer.m * layer.n) *
                                   sizeof(std::uint16_t));
}

double dot(const std::uint16_t* x, const std::uint16_t* w, std::int64_t k) {
  double sum = 0;
  for (std::int64_t i = 0; i < k; ++i) {
    sum += static_cast<double>(reference::bf16_to_float(x[i])) *
           static_cast<double>(reference::bf16_to_float(w[i]));
  }
  return sum;
}

// Compares four rows of Y with FP64 on X and W before quantising.
double relative_error(const Layer& layer, const std::vector<std::uint8_t>& y) {
  const std::array<std::int64_t, 4> rows{0, layer.m / 3, 2 * layer.m / 3, layer.m - 1};
  std::vector<double> noise(static_cast<std::size_t>(layer.n));
  std::vector<double> signal(static_cast<std::size_t>(layer.n));
  reference::parallel_for(layer.n, 16, 0, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t col = begin; col < end; ++col) {
      for (const std::int64_t row : rows) {
        const double r =
            dot(layer.x.data() + row * layer.k, layer.w.data() + col * layer.k, layer.k);
        const double error = static_cast<double>(reference::load_as_float(
                                 y.data(), layer.problem.d.dtype, row * layer.n + col)) -
                             r;
        noise[static_cast<std::size_t>(col)] += error * error;
        signal[static_cast<std::size_t>(col)] += r * r;
      }
    }
  });
  double all_noise = 0;
  double all_signal = 0;
  for (std::size_t i = 0; i < noise.size(); ++i) {
    all_noise += noise[i];
    all_signal += signal[i];
  }
  return std::sqrt(all_noise / all_signal);
}

double tflops_of(const Layer& layer, double us) {
  return 2.0 * static_cast<double>(layer.m) * static_cast<double>(layer.n) *
         static_cast<double>(layer.k) / us * 1e-6;
}

// Times one call on the host, whose clock does not drift enough to need rounds.
template <typename Work>
auto timed(std::vector<Timing>& timings, const char* name, const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  auto result = work();
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  timings.push_back({name, {took.count()}, took.count()});
  return result;
}

// What one call reads and writes. Calls rotate over several slots, so that none finds its operands
// in L2.
struct Slot {
  DeviceBuffer x, w;
  DeviceTensor a, b;
  DeviceBuffer d;
};

Result<Slot> make_slot(const LibraryHandle& library, const GpuSession& gpu, const Layer& layer) {
  auto x = gpu.upload(layer.x.data(), layer.x.size() * sizeof(std::uint16_t));
  if (!x) return tl::unexpected<Error>(x.error());
  auto w = gpu.upload(layer.w.data(), layer.w.size() * sizeof(std::uint16_t));
  if (!w) return tl::unexpected<Error>(w.error());
  auto a = quantize_on_gpu(library, gpu, layer.problem.a, *x, layer.m, layer.k);
  if (!a) return tl::unexpected<Error>(a.error());
  auto b = quantize_on_gpu(library, gpu, layer.problem.b, *w, layer.n, layer.k);
  if (!b) return tl::unexpected<Error>(b.error());
  auto d = gpu.allocate(output_of(layer).size());
  if (!d) return tl::unexpected<Error>(d.error());
  return Slot{std::move(*x), std::move(*w), std::move(*a), std::move(*b), std::move(*d)};
}

Result<std::vector<Slot>> make_slots(const LibraryHandle& library, const GpuSession& gpu,
                                     const Layer& layer) {
  const std::int64_t fp8_bytes = layer.m * layer.k + layer.n * layer.k;
  const std::int64_t count = 2 * gpu.spec().l2_bytes / fp8_bytes + 2;
  std::vector<Slot> slots;
  for (std::int64_t i = 0; i < count; ++i) {
    auto slot = make_slot(library, gpu, layer);
    if (!slot) return tl::unexpected<Error>(slot.error());
    slots.push_back(std::move(*slot));
  }
  return slots;
}

Result<PlanHandle> prepared_plan(const LibraryHandle& library, const GpuSession& gpu,
                                 const Problem& problem, std::int64_t tokens) {
  auto plan = PlanHandle::create(library, gpu.device(), problem);
  if (!plan) return plan;
  if (Status ok = plan->prepare(tokens, tokens); !ok) return tl::unexpected<Error>(ok.error());
  return plan;
}

struct ForwardPlans {
  PlanHandle quantize_x, quantize_w, gemm;
};

Result<ForwardPlans> make_plans(const LibraryHandle& library, const GpuSession& gpu,
                                const Layer& layer) {
  auto x = prepared_plan(library, gpu, quantize_problem(layer.k, layer.problem.a), layer.m);
  if (!x) return tl::unexpected<Error>(x.error());
  auto w = prepared_plan(library, gpu, quantize_problem(layer.k, layer.problem.b), layer.n);
  if (!w) return tl::unexpected<Error>(w.error());
  auto gemm = prepared_plan(library, gpu, layer.problem, layer.m);
  if (!gemm) return tl::unexpected<Error>(gemm.error());
  return ForwardPlans{std::move(*x), std::move(*w), std::move(*gemm)};
}

Status quantize_again(const PlanHandle& plan, std::int64_t rows, const DeviceBuffer& x,
                      const DeviceTensor& q, CUstream stream) {
  octile_quantize_args args{};
  args.rows = rows;
  args.x = x.pointer();
  args.q = q.data.pointer();
  args.scale = q.scales.pointer();
  return plan.run(args, stream);
}

std::vector<Contender> contenders(const ForwardPlans& plans, const Layer& layer,
                                  const std::vector<Slot>& slots) {
  const auto at = [&slots](int slot) -> const Slot& {
    return slots[static_cast<std::size_t>(slot)];
  };
  return {{"quantise X",
           [&, at](int i, CUstream stream) {
             return quantize_again(plans.quantize_x, layer.m, at(i).x, at(i).a, stream);
           }},
          {"quantise W",
           [&, at](int i, CUstream stream) {
             return quantize_again(plans.quantize_w, layer.n, at(i).w, at(i).b, stream);
           }},
          {"GEMM", [&, at](int i, CUstream stream) {
             return plans.gemm.run(gemm_args(at(i).a, at(i).b, at(i).d.pointer()), stream);
           }}};
}

struct HostOperands {
  HostTensor a, b;
};

Result<HostOperands> quantize_both(const LibraryHandle& library, const Layer& layer,
                                   std::vector<Timing>& timings) {
  auto a = timed(timings, "quantise X", [&] {
    return quantize_on_host(library, layer.problem.a, layer.x.data(), layer.m, layer.k);
  });
  if (!a) return tl::unexpected<Error>(a.error());
  auto b = timed(timings, "quantise W", [&] {
    return quantize_on_host(library, layer.problem.b, layer.w.data(), layer.n, layer.k);
  });
  if (!b) return tl::unexpected<Error>(b.error());
  return HostOperands{std::move(*a), std::move(*b)};
}

bool equal(const HostTensor& x, const HostTensor& y) {
  return x.data == y.data && x.scales == y.scales;
}

// Compares codes and scales with the host reference, and Y with FP64.
Status verify(const LibraryHandle& library, const GpuSession& gpu, const Layer& layer,
              const Slot& slot, ForwardReport& report) {
  const auto a = download(gpu, slot.a);
  if (!a) return tl::unexpected<Error>(a.error());
  const auto b = download(gpu, slot.b);
  if (!b) return tl::unexpected<Error>(b.error());
  const auto y = download(gpu, slot.d);
  if (!y) return tl::unexpected<Error>(y.error());
  std::vector<Timing> ignored;
  const auto expected = quantize_both(library, layer, ignored);
  if (!expected) return tl::unexpected<Error>(expected.error());
  report.compared_codes = true;
  report.codes_equal = equal(*a, expected->a) && equal(*b, expected->b);
  const auto check = check_gemm(layer.problem, *a, *b, y->data());
  if (!check) return tl::unexpected<Error>(check.error());
  report.check = *check;
  report.relative_error = relative_error(layer, *y);
  return {};
}

}  // namespace

Layer make_layer(const Recipe& recipe, std::vector<std::uint16_t> x, std::int64_t m, std::int64_t n,
                 std::int64_t k) {
  return {m,
          n,
          k,
          gemm_problem(recipe, Pass::kFprop, kDynamic, n, k),
          std::move(x),
          reference::synthetic_weight(n, k)};
}

Result<ForwardReport> forward_on_host(const LibraryHandle& library, const Layer& layer,
                                      const Began& began) {
  ForwardReport report;
  report.executor = "host";
  began("quantising on the host");
  const auto operands = quantize_both(library, layer, report.timings);
  if (!operands) return tl::unexpected<Error>(operands.error());
  const auto plan = PlanHandle::create(library, "host", Problem(layer.problem));
  if (!plan) return tl::unexpected<Error>(plan.error());
  std::vector<std::uint8_t> y = output_of(layer);
  began("multiplying on the host");
  const Status ran = timed(report.timings, "GEMM", [&] {
    return plan->run(gemm_args(operands->a, operands->b, y.data()), nullptr);
  });
  if (!ran) return tl::unexpected<Error>(ran.error());
  report.tflops = tflops_of(layer, report.timings.back().median_us);
  began("checking against FP64");
  const auto check = check_gemm(layer.problem, operands->a, operands->b, y.data());
  if (!check) return tl::unexpected<Error>(check.error());
  report.check = *check;
  report.relative_error = relative_error(layer, y);
  return report;
}

Result<ForwardReport> forward_on_gpu(const LibraryHandle& library, const GpuSession& gpu,
                                     const Layer& layer, const Began& began) {
  ForwardReport report;
  report.executor = gpu.device();
  began("quantising on the GPU");
  auto slots = make_slots(library, gpu, layer);
  if (!slots) return tl::unexpected<Error>(slots.error());
  const auto plans = make_plans(library, gpu, layer);
  if (!plans) return tl::unexpected<Error>(plans.error());
  const Slot& first = slots->front();
  constexpr std::uint8_t kPoison = 0xFF;  // two of them are a bf16 NaN
  Status ran = slots->front().d.fill(kPoison, gpu.stream());
  if (ran) ran = plans->gemm.run(gemm_args(first.a, first.b, first.d.pointer()), gpu.stream());
  if (ran) ran = gpu.synchronize();
  began("checking against the host reference and FP64");
  if (ran) ran = verify(library, gpu, layer, first, report);
  if (!ran) return tl::unexpected<Error>(ran.error());
  began("timing");
  TimingOptions options;
  options.slots = static_cast<int>(slots->size());
  auto timings = measure(gpu, contenders(*plans, layer, *slots), options);
  if (!timings) return tl::unexpected<Error>(timings.error());
  report.timings = std::move(*timings);
  report.tflops = tflops_of(layer, report.timings.back().median_us);
  return report;
}

Json to_json(const ForwardReport& report) {
  Json timings = Json::array();
  for (const Timing& timing : report.timings)
    timings.push_back({{"name", timing.name}, {"median_us", timing.median_us}});
  const auto& worst = report.check.worst;
  return {
      {"executor", report.executor},
      {"timings", timings},
      {"tflops", report.tflops},
      {"codes_equal_reference", report.compared_codes ? Json(report.codes_equal) : Json(nullptr)},
      {"checked_elements", report.check.elements},
      {"within_tolerance", report.check.ok},
      {"worst_error_over_s", worst.worst_error_over_s},
      {"relative_error_of_fp8", report.relative_error},
      {"ok", report.ok()}};
}

std::string to_text(const ForwardReport& report) {
  std::string text;
  for (const Timing& timing : report.timings) {
    const bool short_enough = timing.median_us < 1e4;
    text += fmt::format("  {:<12} {:>8.1f} {}\n", timing.name,
                        short_enough ? timing.median_us : timing.median_us * 1e-3,
                        short_enough ? "us" : "ms");
  }
  text += fmt::format("  the GEMM runs at {:.3g} TFLOP/s\n", report.tflops);
  if (report.compared_codes) {
    text += fmt::format("  codes and scales {} those of the host reference\n",
                        report.codes_equal ? "equal, bit for bit," : "DIFFER FROM");
  }
  const auto sentence = [](const std::string& line) {
    return wrapped("  " + line, line_width(), 4) + "\n";
  };
  text += sentence(fmt::format(
      "against FP64 on the same FP8 operands: max |D - R| / S = {:.2e}, {} elements, {}",
      report.check.worst.worst_error_over_s, report.check.elements,
      report.check.ok ? "within tolerance" : "OUT OF TOLERANCE"));
  return text + sentence(fmt::format(
                    "against FP64 on X and W before quantising: relative error {:.2e}; that is "
                    "FP8, not the kernel",
                    report.relative_error));
}

}  // namespace octile::tools
