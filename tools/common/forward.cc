#include "tools/common/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <utility>

#include "generator/core/sum_bits.h"
#include "generator/gemm/passes.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/parallel.h"
#include "runtime/reference/synthetic.h"
#include "tools/common/terminal.h"

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

// The layer on a GPU or on the host, prepared for the forward pass, with a workspace.
class LayerCalls {
 public:
  // gpu: null for the host.
  static Result<LayerCalls> create(const LibraryHandle& library, const GpuSession* gpu,
                                   const Layer& layer) {
    auto handle = forward_layer(library, gpu == nullptr ? "host" : gpu->device(), layer.recipe,
                                layer.n, layer.k);
    if (!handle) return tl::unexpected<Error>(handle.error());
    if (Status ok = handle->prepare(layer.m, kForwardUses); !ok)
      return tl::unexpected<Error>(ok.error());
    const auto bytes = handle->workspace_bytes(layer.m, kForwardUses);
    if (!bytes) return tl::unexpected<Error>(bytes.error());
    auto on_gpu = gpu == nullptr ? DeviceBuffer() : gpu->allocate(*bytes);
    if (!on_gpu) return tl::unexpected<Error>(on_gpu.error());
    LayerCalls calls;
    calls.layer_ = std::move(*handle);
    calls.tokens_ = layer.m;
    calls.on_gpu_ = std::move(*on_gpu);
    if (gpu == nullptr) calls.on_host_.resize(*bytes);
    calls.workspace_ = gpu == nullptr ? calls.on_host_.data() : calls.on_gpu_.pointer();
    calls.workspace_bytes_ = *bytes;
    return calls;
  }

  // Returns the sizes of the row-wise copy of X or W.
  Result<octile_quantized_layout> layout(octile_layer_tensor tensor) const {
    return layer_.copy_layout(tensor, false, tokens_);
  }

  Status quantise(octile_layer_tensor tensor, const void* source, octile_layer_copy to,
                  CUstream stream) const {
    const octile_layer_operand operand = layer_operand(OCTILE_LAYER_QUANTIZE, source, to);
    octile_layer_quantize_args args{};
    args.tensor = tensor;
    args.tokens = tokens_;
    args.operand = &operand;
    args.workspace = workspace_;
    args.workspace_bytes = workspace_bytes_;
    return layer_.run(args, stream);
  }

  Status multiply(octile_layer_copy x, octile_layer_copy w, void* y, CUstream stream) const {
    const octile_layer_operand of_x = layer_operand(OCTILE_LAYER_CURRENT, nullptr, x),
                               of_w = layer_operand(OCTILE_LAYER_CURRENT, nullptr, w);
    octile_layer_forward_args args{};
    args.tokens = tokens_;
    args.x = &of_x;
    args.w = &of_w;
    args.y = y;
    args.workspace = workspace_;
    args.workspace_bytes = workspace_bytes_;
    return layer_.run(args, stream);
  }

 private:
  LayerHandle layer_;
  std::int64_t tokens_ = 0;
  DeviceBuffer on_gpu_;
  std::vector<std::uint8_t> on_host_;
  void* workspace_ = nullptr;
  std::size_t workspace_bytes_ = 0;
};

octile_layer_copy copy_in(const DeviceTensor& tensor) {
  return {tensor.data.pointer(), tensor.scales.pointer()};
}
octile_layer_copy copy_in(HostTensor& tensor) { return {tensor.data.data(), tensor.scales.data()}; }

Result<HostTensor> quantise_on_host(const LayerCalls& host, const Layer& layer,
                                    octile_layer_tensor tensor) {
  const auto layout = host.layout(tensor);
  if (!layout) return tl::unexpected<Error>(layout.error());
  const bool is_x = tensor == OCTILE_LAYER_X;
  HostTensor copy{is_x ? layer.problem.a : layer.problem.b, is_x ? layer.m : layer.n, layer.k,
                  std::vector<std::uint8_t>(static_cast<std::size_t>(layout->data_bytes)),
                  std::vector<std::uint8_t>(static_cast<std::size_t>(layout->scale_bytes))};
  const Status ok =
      host.quantise(tensor, (is_x ? layer.x : layer.w).data(), copy_in(copy), nullptr);
  if (!ok) return tl::unexpected<Error>(ok.error());
  return copy;
}

Result<DeviceTensor> empty_copy(const GpuSession& gpu, const LayerCalls& calls, const Layer& layer,
                                octile_layer_tensor tensor) {
  const auto layout = calls.layout(tensor);
  if (!layout) return tl::unexpected<Error>(layout.error());
  auto data = gpu.allocate(static_cast<std::size_t>(layout->data_bytes));
  if (!data) return tl::unexpected<Error>(data.error());
  auto scales = gpu.allocate(static_cast<std::size_t>(layout->scale_bytes));
  if (!scales) return tl::unexpected<Error>(scales.error());
  const bool is_x = tensor == OCTILE_LAYER_X;
  return DeviceTensor{is_x ? layer.problem.a : layer.problem.b, is_x ? layer.m : layer.n, layer.k,
                      std::move(*data), std::move(*scales)};
}

// The buffers that one call reads and writes. Calls rotate over several slots, so that none finds
// its operands in L2.
struct Slot {
  DeviceBuffer x, w;
  DeviceTensor a, b;
  DeviceBuffer d;
};

Result<Slot> make_slot(const GpuSession& gpu, const LayerCalls& calls, const Layer& layer) {
  auto x = gpu.upload(layer.x.data(), layer.x.size() * sizeof(std::uint16_t));
  if (!x) return tl::unexpected<Error>(x.error());
  auto w = gpu.upload(layer.w.data(), layer.w.size() * sizeof(std::uint16_t));
  if (!w) return tl::unexpected<Error>(w.error());
  auto a = empty_copy(gpu, calls, layer, OCTILE_LAYER_X);
  if (!a) return tl::unexpected<Error>(a.error());
  auto b = empty_copy(gpu, calls, layer, OCTILE_LAYER_W);
  if (!b) return tl::unexpected<Error>(b.error());
  auto d = gpu.allocate(output_of(layer).size());
  if (!d) return tl::unexpected<Error>(d.error());
  Status ok = calls.quantise(OCTILE_LAYER_X, x->pointer(), copy_in(*a), gpu.stream());
  if (ok) ok = calls.quantise(OCTILE_LAYER_W, w->pointer(), copy_in(*b), gpu.stream());
  if (!ok) return tl::unexpected<Error>(ok.error());
  return Slot{std::move(*x), std::move(*w), std::move(*a), std::move(*b), std::move(*d)};
}

Result<std::vector<Slot>> make_slots(const GpuSession& gpu, const LayerCalls& calls,
                                     const Layer& layer) {
  const std::int64_t fp8_bytes = layer.m * layer.k + layer.n * layer.k;
  const std::int64_t count = 2 * gpu.spec().l2_bytes / fp8_bytes + 2;
  std::vector<Slot> slots;
  for (std::int64_t i = 0; i < count; ++i) {
    auto slot = make_slot(gpu, calls, layer);
    if (!slot) return tl::unexpected<Error>(slot.error());
    slots.push_back(std::move(*slot));
  }
  return slots;
}

std::vector<Contender> contenders(const LayerCalls& calls, const std::vector<Slot>& slots) {
  const auto at = [&slots](int slot) -> const Slot& {
    return slots[static_cast<std::size_t>(slot)];
  };
  const int count = static_cast<int>(slots.size());
  return {{"quantise X",
           [&calls, at](int i, CUstream stream) {
             return calls.quantise(OCTILE_LAYER_X, at(i).x.pointer(), copy_in(at(i).a), stream);
           },
           count},
          {"quantise W",
           [&calls, at](int i, CUstream stream) {
             return calls.quantise(OCTILE_LAYER_W, at(i).w.pointer(), copy_in(at(i).b), stream);
           },
           count},
          {"GEMM",
           [&calls, at](int i, CUstream stream) {
             return calls.multiply(copy_in(at(i).a), copy_in(at(i).b), at(i).d.pointer(), stream);
           },
           count}};
}

struct HostOperands {
  HostTensor a, b;
};

Result<HostOperands> quantise_both(const LayerCalls& host, const Layer& layer,
                                   std::vector<Timing>& timings) {
  auto a =
      timed(timings, "quantise X", [&] { return quantise_on_host(host, layer, OCTILE_LAYER_X); });
  if (!a) return tl::unexpected<Error>(a.error());
  auto b =
      timed(timings, "quantise W", [&] { return quantise_on_host(host, layer, OCTILE_LAYER_W); });
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
  const auto host = LayerCalls::create(library, nullptr, layer);
  if (!host) return tl::unexpected<Error>(host.error());
  std::vector<Timing> ignored;
  const auto expected = quantise_both(*host, layer, ignored);
  if (!expected) return tl::unexpected<Error>(expected.error());
  report.compared_codes = true;
  report.codes_equal = equal(*a, expected->a) && equal(*b, expected->b);
  const auto check =
      check_gemm(layer.problem, *a, *b, y->data(), {}, nullptr, coarsest_sums(gpu.spec()));
  if (!check) return tl::unexpected<Error>(check.error());
  report.check = *check;
  report.relative_error = relative_error(layer, *y);
  return {};
}

}  // namespace

Result<LayerHandle> forward_layer(const LibraryHandle& library, const std::string& device,
                                  const std::string& recipe, std::int64_t n, std::int64_t k) {
  octile_layer_desc desc{};
  desc.recipe = recipe.c_str();
  desc.n = n;
  desc.k = k;
  desc.dtype = OCTILE_BF16;
  return LayerHandle::create(library, device, desc);
}

Layer make_layer(const Recipe& recipe, std::vector<std::uint16_t> x, std::int64_t m, std::int64_t n,
                 std::int64_t k) {
  return {std::string(recipe.name),
          m,
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
  const auto host = LayerCalls::create(library, nullptr, layer);
  if (!host) return tl::unexpected<Error>(host.error());
  began("quantising on the host");
  auto operands = quantise_both(*host, layer, report.timings);
  if (!operands) return tl::unexpected<Error>(operands.error());
  std::vector<std::uint8_t> y = output_of(layer);
  began("multiplying on the host");
  const Status ran = timed(report.timings, "GEMM", [&] {
    return host->multiply(copy_in(operands->a), copy_in(operands->b), y.data(), nullptr);
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
  const auto calls = LayerCalls::create(library, &gpu, layer);
  if (!calls) return tl::unexpected<Error>(calls.error());
  began("quantising on the GPU");
  auto slots = make_slots(gpu, *calls, layer);
  if (!slots) return tl::unexpected<Error>(slots.error());
  const Slot& first = slots->front();
  constexpr std::uint8_t kPoison = 0xFF;  // two of them are a bf16 NaN
  Status ran = slots->front().d.fill(kPoison, gpu.stream());
  if (ran)
    ran = calls->multiply(copy_in(first.a), copy_in(first.b), first.d.pointer(), gpu.stream());
  if (ran) ran = gpu.synchronize();
  began("checking against the host reference and FP64");
  if (ran) ran = verify(library, gpu, layer, first, report);
  if (!ran) return tl::unexpected<Error>(ran.error());
  began("timing");
  auto timings = measure(gpu, contenders(*calls, *slots), {});
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
