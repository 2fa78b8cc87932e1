#include "tools/bench/linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "generator/core/layout.h"
#include "generator/gemm/passes.h"
#include "runtime/families/gemm/tensor_arguments.h"
#include "runtime/measure/random_operands.h"
#include "tools/bench/peers.h"
#include "tools/demo/quantizing.h"

namespace octile::tools {
namespace {

constexpr std::array kPasses{Pass::kFprop, Pass::kDgrad, Pass::kWgrad};
constexpr std::array kPassNames{"fprop", "dgrad", "wgrad"};
constexpr std::array kTensorNames{"quantise X", "quantise W", "quantise dY"};
constexpr int kStepsInARow = 8;  // of the call-by-call timing

// A tensor of the layer: bf16, and its two quantised copies.
struct Quantised {
  std::int64_t rows = 0, cols = 0;
  DeviceBuffer x;
  DeviceTensor rowwise, transposed;
};

Result<DeviceTensor> empty_tensor(const GpuSession& gpu, const TensorType& type, std::int64_t rows,
                                  std::int64_t cols, bool transposed) {
  const auto layout = quantized_layout(type, rows, cols, 0, transposed);
  if (!layout) return tl::unexpected<Error>(layout.error());
  auto data = gpu.allocate(static_cast<std::size_t>(layout->data.bytes()));
  if (!data) return tl::unexpected<Error>(data.error());
  auto scales = gpu.allocate(static_cast<std::size_t>(layout->scales.bytes()));
  if (!scales) return tl::unexpected<Error>(scales.error());
  return DeviceTensor{type, transposed ? cols : rows, transposed ? rows : cols, std::move(*data),
                      std::move(*scales)};
}

Result<Quantised> make_tensor(const GpuSession& gpu, const TensorType& type, std::int64_t rows,
                              std::int64_t cols, std::uint64_t seed) {
  auto x = random_bf16(gpu, rows * cols, seed);
  if (!x) return tl::unexpected<Error>(x.error());
  auto rowwise = empty_tensor(gpu, type, rows, cols, false);
  if (!rowwise) return tl::unexpected<Error>(rowwise.error());
  auto transposed = empty_tensor(gpu, type, rows, cols, true);
  if (!transposed) return tl::unexpected<Error>(transposed.error());
  return Quantised{rows, cols, std::move(*x), std::move(*rowwise), std::move(*transposed)};
}

// One step's tensors, results and plans. Parts are numbered in the order of the step: X, W, dY,
// fprop, dgrad, wgrad.
class LinearStep {
 public:
  static Result<LinearStep> create(const BenchContext& context, const Recipe& recipe,
                                   const LinearShape& shape) {
    LinearStep step;
    step.shape_ = shape;
    const auto [m, n, k] = shape;
    const std::array extents{std::pair(m, k), std::pair(n, k), std::pair(m, n)};
    const std::array types{recipe.activation, recipe.weight, recipe.gradient};
    for (std::size_t i = 0; i < extents.size(); ++i) {
      const auto [rows, cols] = extents[i];
      auto tensor = make_tensor(context.gpu, types[i], rows, cols, 10 + i);
      if (!tensor) return tl::unexpected<Error>(tensor.error());
      step.tensors_.push_back(std::move(*tensor));
      QuantizeProblem problem = quantize_problem(cols, types[i]);
      problem.output = QuantizeOutput::kBoth;
      auto prepared = prepare_plan(context, problem, rows, rows);
      if (!prepared) return tl::unexpected<Error>(prepared.error());
      step.plans_.push_back(std::move(prepared->plan));
    }
    for (const Pass pass : kPasses) {
      auto prepared = prepare_plan(context, gemm_problem(recipe, pass, kDynamic, n, k), m, m);
      if (!prepared) return tl::unexpected<Error>(prepared.error());
      step.plans_.push_back(std::move(prepared->plan));
      const GemmProblem problem = gemm_problem(recipe, pass, m, n, k);
      step.problems_.push_back(problem);
      auto d = context.gpu.allocate(
          static_cast<std::size_t>(problem.m * problem.n * size_of(problem.d.dtype)));
      if (!d) return tl::unexpected<Error>(d.error());
      step.results_.push_back(std::move(*d));
    }
    return step;
  }

  std::size_t parts() const { return plans_.size(); }
  static std::string name_of(std::size_t part) {
    return part < 3 ? kTensorNames[part] : kPassNames[part - 3];
  }
  const GemmProblem& problem(std::size_t pass) const { return problems_[pass]; }

  Status run(std::size_t part, CUstream stream) const {
    return part < 3 ? quantise(part, stream) : multiply(part - 3, stream);
  }
  Status run_all(CUstream stream) const {
    Status ok;
    for (std::size_t part = 0; ok && part < parts(); ++part) ok = run(part, stream);
    return ok;
  }

  // Runs one step from a dW of zeros and compares its results with FP64.
  Result<std::vector<GemmCheck>> check(const GpuSession& gpu) {
    Status ok;
    for (DeviceBuffer& d : results_) {
      if (ok) ok = d.fill(0, gpu.stream());
    }
    if (ok) ok = run_all(gpu.stream());
    if (ok) ok = gpu.synchronize();
    if (!ok) return tl::unexpected<Error>(ok.error());
    std::vector<GemmCheck> checks;
    for (std::size_t pass = 0; pass < problems_.size(); ++pass) {
      const auto [a, b] = operands(pass);
      const auto host_a = download(gpu, *a);
      if (!host_a) return tl::unexpected<Error>(host_a.error());
      const auto host_b = download(gpu, *b);
      if (!host_b) return tl::unexpected<Error>(host_b.error());
      const auto d = download(gpu, results_[pass]);
      if (!d) return tl::unexpected<Error>(d.error());
      auto check = check_gemm(problems_[pass], *host_a, *host_b, d->data());
      if (!check) return tl::unexpected<Error>(check.error());
      checks.push_back(std::move(*check));
    }
    return checks;
  }

 private:
  Status quantise(std::size_t i, CUstream stream) const {
    const Quantised& t = tensors_[i];
    octile_quantize_args args{};
    args.rows = t.rows;
    args.x = t.x.pointer();
    args.q = t.rowwise.data.pointer();
    args.scale = t.rowwise.scales.pointer();
    args.q_transposed = t.transposed.data.pointer();
    args.scale_transposed = t.transposed.scales.pointer();
    return plans_[i].run(args, stream);
  }

  std::pair<const DeviceTensor*, const DeviceTensor*> operands(std::size_t pass) const {
    const Quantised &x = tensors_[0], &w = tensors_[1], &dy = tensors_[2];
    switch (kPasses.at(pass)) {
      case Pass::kFprop:
        return {&x.rowwise, &w.rowwise};
      case Pass::kDgrad:
        return {&dy.rowwise, &w.transposed};
      default:
        return {&dy.transposed, &x.transposed};
    }
  }

  Status multiply(std::size_t pass, CUstream stream) const {
    const auto [a, b] = operands(pass);
    GemmArguments args = gemm_args(*a, *b, results_[pass].pointer());
    args.tokens = shape_.m;
    return plans_[3 + pass].run(args.call(), stream);
  }

  LinearShape shape_;
  std::vector<Quantised> tensors_;     // X, W, dY
  std::vector<PlanHandle> plans_;      // by part
  std::vector<GemmProblem> problems_;  // fprop, dgrad, wgrad, with all extents
  std::vector<DeviceBuffer> results_;
};

// The three GEMMs in bf16 by cuBLASLt, both operands K-major as ours. D has our type, and dW is
// added to as ours is.
Result<std::vector<Peer>> bf16_gemms(const BenchContext& context, const LinearStep& step) {
  std::vector<Peer> peers;
  for (std::size_t pass = 0; pass < kPasses.size(); ++pass) {
    const GemmProblem& problem = step.problem(pass);
    auto peer = Peer::bf16(context.cublaslt, context.gpu, problem, problem.m);
    if (!peer) return tl::unexpected<Error>(peer.error());
    peers.push_back(std::move(*peer));
  }
  return peers;
}

// Times steps that are enqueued call by call. A round is several steps in a row.
Result<Timing> time_call_by_call(const BenchContext& context, const LinearStep& step) {
  const GpuSession& gpu = context.gpu;
  const auto start = Event::create(gpu.driver());
  if (!start) return tl::unexpected<Error>(start.error());
  const auto stop = Event::create(gpu.driver());
  if (!stop) return tl::unexpected<Error>(stop.error());
  Timing timing{"step, call by call", {}, 0, 0, 0};
  for (int round = 0; round < context.rounds; ++round) {
    Status ok = start->record(gpu.stream());
    for (int i = 0; ok && i < kStepsInARow; ++i) ok = step.run_all(gpu.stream());
    if (ok) ok = stop->record(gpu.stream());
    if (ok) ok = stop->synchronize();
    if (!ok) return tl::unexpected<Error>(ok.error());
    const auto us = stop->elapsed_us_since(*start);
    if (!us) return tl::unexpected<Error>(us.error());
    timing.rounds_us.push_back(*us / kStepsInARow);
  }
  summarize(timing);
  return timing;
}

std::vector<LinearPart> with_shares(std::vector<Timing> timings) {
  double sum = 0;
  for (const Timing& timing : timings) sum += timing.median_us;
  std::vector<LinearPart> parts;
  for (Timing& timing : timings) {
    const double share = timing.median_us / sum;
    parts.push_back({std::move(timing), share});
  }
  return parts;
}

Json to_json(const std::vector<LinearPart>& parts) {
  Json all = Json::array();
  for (const LinearPart& part : parts) {
    Json one = octile::to_json(part.timing);
    one["share"] = part.share;
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace

Status check_linear_shape(const LinearShape& s) {
  for (const auto& [name, value] :
       {std::pair("M", s.m), std::pair("N", s.n), std::pair("K", s.k)}) {
    if (value > 0 && value % 16 == 0) continue;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is {}; allowed are positive multiples of 16: each dimension is the "
                            "sum's in one of the GEMMs",
                            name, value));
  }
  return {};
}

Status check_linear_supported(const Recipe& recipe, const LinearShape& shape) {
  for (const Pass pass : kPasses) {
    const GemmProblem problem = gemm_problem(recipe, pass, shape.m, shape.n, shape.k);
    if (Status ok = check_supported(Problem(problem)); !ok) return ok;
  }
  return {};
}

bool LinearReport::ok() const {
  return std::ranges::all_of(checks, [](const GemmCheck& check) { return check.ok; });
}

Json to_json(const LinearReport& r) {
  Json checks = Json::array();
  for (const GemmCheck& check : r.checks) checks.push_back(check.worst.to_text());
  return {{"recipe", r.recipe},
          {"m", r.shape.m},
          {"n", r.shape.n},
          {"k", r.shape.k},
          {"ok", r.ok()},
          {"checks", checks},
          {"step", octile::to_json(r.step)},
          {"call_by_call", octile::to_json(r.call_by_call)},
          {"bf16", octile::to_json(r.bf16_step)},
          {"speedup", r.speedup},
          {"parts", to_json(r.parts)},
          {"bf16_parts", to_json(r.bf16_parts)}};
}

Result<LinearReport> bench_linear(const BenchContext& context, const Recipe& recipe,
                                  const LinearShape& shape) {
  auto step = LinearStep::create(context, recipe, shape);
  if (!step) return tl::unexpected<Error>(step.error());
  LinearReport report;
  report.recipe = recipe.name;
  report.shape = shape;
  auto checks = step->check(context.gpu);
  if (!checks) return tl::unexpected<Error>(checks.error());
  report.checks = std::move(*checks);
  const auto peers = bf16_gemms(context, *step);
  if (!peers) return tl::unexpected<Error>(peers.error());

  // The step and the bf16 step first, then their parts; one run for all.
  std::vector<Contender> contenders{
      {"step", [&](int, CUstream stream) { return step->run_all(stream); }},
      {"bf16 step", [&](int, CUstream stream) {
         Status ok;
         for (const Peer& peer : *peers) {
           if (ok) ok = peer.run(0, stream);
         }
         return ok;
       }}};
  for (std::size_t part = 0; part < step->parts(); ++part) {
    contenders.push_back({LinearStep::name_of(part),
                          [&, part](int, CUstream stream) { return step->run(part, stream); }});
  }
  for (std::size_t pass = 0; pass < peers->size(); ++pass) {
    contenders.push_back(
        {fmt::format("bf16 {}", kPassNames.at(pass)),
         [&, pass](int, CUstream stream) { return (*peers)[pass].run(0, stream); }});
  }
  TimingOptions options;
  options.rounds = context.rounds;
  auto timings = measure(context.gpu, contenders, options);
  if (!timings) return tl::unexpected<Error>(timings.error());
  auto eager = time_call_by_call(context, *step);
  if (!eager) return tl::unexpected<Error>(eager.error());

  const auto parts_begin = timings->begin() + 2;
  const auto parts_end = parts_begin + static_cast<std::ptrdiff_t>(step->parts());
  report.parts = with_shares({parts_begin, parts_end});
  report.bf16_parts = with_shares({parts_end, timings->end()});
  report.step = std::move((*timings)[0]);
  report.bf16_step = std::move((*timings)[1]);
  report.speedup = median_ratio(report.bf16_step, report.step);
  report.call_by_call = std::move(*eager);
  return report;
}

}  // namespace octile::tools
