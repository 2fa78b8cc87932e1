#include "runtime/prove/gemm/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "generator/core/layout.h"
#include "generator/core/sum_bits.h"
#include "runtime/prove/gemm/tensor_arguments.h"
#include "runtime/reference/cast.h"

namespace octile::tuner {
namespace {

constexpr std::uint8_t kPoison = 0xFF;         // equal to the poison in templates/bench/inspect.cu
constexpr std::uint8_t kFaint = 0x01;          // bytes of a D that is added to: 2.4e-38
constexpr std::int64_t kGuardElements = 4096;  // keeps D 16-byte aligned
constexpr std::int64_t kRowGuardElements = 8;  // 16 bytes of bf16, the unit of TMA strides
constexpr std::int64_t kCodeGuardElements = 16;  // the same of FP8
constexpr std::int64_t kScaleGuard = 4;          // scales beside those of D, on all sides
constexpr int kScatteredWindows = 23;            // 32 with the nine at edges and centre
constexpr unsigned kInspectThreads = 256;
constexpr int kInspectBlocksPerSm = 8;

Verdict wrong(std::string why) { return {false, std::move(why), {}}; }

// The bytes of D before a call.
std::uint8_t before(const GemmProblem& problem) { return problem.accumulate ? kFaint : kPoison; }

// The constants of the kernel that inspects D.
Prologue inspector_of(const GemmProblem& problem) {
  const int bytes = size_of(problem.d.dtype);
  Prologue prologue;
  prologue.add_int("kThreads", kInspectThreads, "per block");
  prologue.add_int("kElementBytes", bytes, "problem: the type of D");
  prologue.add_int("kMantissaBits", reference::mantissa_bits(problem.d.dtype),
                   "problem: the type of D");
  const std::uint32_t byte = before(problem);
  const std::uint32_t unwritten = byte * (bytes == 1 ? 1U : bytes == 2 ? 0x0101U : 0x01010101U);
  prologue.add_text(fmt::format("constexpr unsigned kUnwritten = {:#x};", unwritten),
                    fmt::format("kUnwritten = {:#x}", unwritten), "problem: D before a call");
  prologue.add_bool("kAdds", problem.accumulate, "problem: a sum of zero leaves D as it is");
  return prologue;
}

}  // namespace

Result<GemmVerifier> GemmVerifier::create(const GpuSession& gpu, LoadedTemplates& templates,
                                          const GemmProblem& problem, const GemmSlot& slot,
                                          std::uint64_t seed) {
  auto inspect = templates.get(inspector_of(problem), "bench/inspect.cu", "octile_bench_inspect");
  if (!inspect) return tl::unexpected<Error>(inspect.error());
  GemmVerifier verifier(gpu, **inspect, problem, args_of(slot));
  verifier.rows_ = matrices_of(problem, slot.tokens).d_rows;
  verifier.group_rows_ = slot.groups.host;
  Status ok = verifier.allocate();
  if (ok && slot.groups_are_masked) ok = verifier.fill_masked_groups(slot.tokens);
  if (!ok) return tl::unexpected<Error>(ok.error());
  auto host_a = HostRows::of(gpu, slot.a);
  if (!host_a) return tl::unexpected<Error>(host_a.error());
  auto host_b = HostRows::of(gpu, slot.b);
  if (!host_b) return tl::unexpected<Error>(host_b.error());
  verifier.a_ = std::make_unique<HostRows>(std::move(*host_a));
  verifier.b_ = std::make_unique<HostRows>(std::move(*host_b));
  if (problem.bias) {
    auto bias = download(gpu, slot.bias);
    if (!bias) return tl::unexpected<Error>(bias.error());
    verifier.bias_ = std::move(*bias);
  }
  const auto operands = verifier.operands();
  if (!operands) return tl::unexpected<Error>(operands.error());
  for (const auto& window : windows_of(problem, *operands, kScatteredWindows, seed)) {
    if (ok) ok = verifier.fetch(window);
  }
  if (!ok) return tl::unexpected<Error>(ok.error());
  auto samples = sample_gemm(problem, *operands, kScatteredWindows, seed);
  if (!samples) return tl::unexpected<Error>(samples.error());
  verifier.samples_ = std::move(*samples);
  double largest = 0;
  for (const Sample& sample : verifier.samples_)
    largest = std::max(largest, *std::max_element(sample.s.begin(), sample.s.end()));
  // Either result may differ from FP64 by the tolerance. S varies between elements; twice the
  // largest sampled S serves as its bound. That is still far below the error of a wrong tile.
  const double c = reference::tolerance_c(problem.promote, k_at(problem, slot.tokens),
                                          coarsest_sums(gpu.spec()));
  verifier.apart_allowed_ = 2 * c * 0x1p-13 * 2 * largest;
  return verifier;
}

// Every element of D is looked at, so every row of every group exists in the calls that are
// checked.
Status GemmVerifier::fill_masked_groups(std::int64_t rows) {
  auto groups = make_groups(
      *gpu_, std::vector<std::int32_t>(group_rows_.size(), static_cast<std::int32_t>(rows)));
  if (!groups) return tl::unexpected<Error>(groups.error());
  whole_groups_ = std::move(*groups);
  group_rows_ = whole_groups_.host;
  args_.groups.counts = static_cast<const std::int32_t*>(whole_groups_.device.pointer());
  return {};
}

Result<GemmCall> GemmVerifier::operands() const {
  const GemmAddends addends{bias_.data(), 0, args_.tokens, group_rows_.data()};
  return oracle_call(problem_, a_->operand(), b_->operand(), addends);
}

Status GemmVerifier::fetch(const reference::Fp64Window& window) {
  // Panels of a batch lie elsewhere.
  if (is_batched(problem_)) {
    const Status ok = a_->fetch_all();
    return ok ? b_->fetch_all() : ok;
  }
  if (groups_k(problem_)) {
    Status ok = b_->fetch(window.col0, window.cols);
    for (std::int64_t row = window.row0; ok && row < window.row0 + window.rows; ++row)
      ok = a_->fetch(row % problem_.m, 1);
    return ok;
  }
  Status ok = a_->fetch(window.row0, window.rows);
  for (std::int64_t row = window.row0; ok && row < window.row0 + window.rows; ++row)
    ok = b_->fetch(group_of(row) * problem_.n + window.col0, window.cols);
  return ok;
}

// Returns the group that a row of D belongs to.
std::int64_t GemmVerifier::group_of(std::int64_t row) const {
  if (problem_.grouping == Grouping::kMasked) return row / args_.tokens;
  if (!is_grouped(problem_)) return 0;
  const auto behind = std::ranges::upper_bound(group_rows_, row);
  return std::min<std::int64_t>(behind - group_rows_.begin(), problem_.groups) - 1;
}

std::int64_t GemmVerifier::elements() const { return rows_ * args_.ldd + 2 * kGuardElements; }

Status GemmVerifier::allocate() {
  const bool fp8 = is_fp8(problem_.d.dtype);
  args_.ldd =
      default_ld(problem_.d.dtype, problem_.n) + (fp8 ? kCodeGuardElements : kRowGuardElements);
  const auto bytes = static_cast<std::size_t>(elements() * size_of(problem_.d.dtype));
  for (DeviceBuffer* buffer : {&d_, &first_, &accepted_}) {
    auto made = gpu_->allocate(bytes);
    if (!made) return tl::unexpected<Error>(made.error());
    *buffer = std::move(*made);
  }
  auto report = gpu_->allocate(sizeof(Report));
  if (!report) return tl::unexpected<Error>(report.error());
  report_ = std::move(*report);
  if (fp8) {
    args_.d_scales.scale_ld = packed_scale_ld(problem_.d, rows_, problem_.n) + kScaleGuard;
    const std::int64_t scales =
        ceil_div(problem_.n, 128) * args_.d_scales.scale_ld + 2 * kScaleGuard;
    auto made = gpu_->allocate(static_cast<std::size_t>(scales) * sizeof(float));
    if (!made) return tl::unexpected<Error>(made.error());
    d_scale_ = std::move(*made);
    args_.d_scales.scale = static_cast<float*>(d_scale_.pointer()) + kScaleGuard;
  }
  return {};
}

Result<Verdict> GemmVerifier::check(const Run& run, MatrixUnit unit) {
  sums_ = sum_precision(gpu_->spec(), unit);
  auto verdict = launch_on(before(problem_), run);
  if (!verdict || !verdict->right) return verdict;
  std::swap(d_, first_);
  const auto first_scales = read_scales();
  if (!first_scales) return tl::unexpected<Error>(first_scales.error());
  verdict = launch_on(before(problem_), run);
  if (!verdict || !verdict->right) return verdict;
  auto scales = read_scales();
  if (!scales) return tl::unexpected<Error>(scales.error());
  scales_ = std::move(*scales);

  const auto report = inspect(&first_);
  if (!report) return tl::unexpected<Error>(report.error());
  verdict = check_extent(*report);
  if (!verdict->right) return verdict;
  if (report->differing > 0)
    return wrong(fmt::format("{} elements differ between two launches on the same operands",
                             report->differing));
  verdict = check_scales(*first_scales, scales_);
  if (verdict->right) verdict = check_values();
  if (!verdict || !verdict->right) return verdict;
  verdict = compare_in_full();
  if (!verdict || !verdict->right || !problem_.accumulate) return verdict;
  return check_addition(run);
}

Result<Verdict> GemmVerifier::spot_check(const Run& run, MatrixUnit unit) {
  sums_ = sum_precision(gpu_->spec(), unit);
  auto verdict = launch_on(before(problem_), run);
  if (!verdict || !verdict->right) return verdict;
  auto scales = read_scales();
  if (!scales) return tl::unexpected<Error>(scales.error());
  scales_ = std::move(*scales);
  const auto report = inspect(nullptr);
  if (!report) return tl::unexpected<Error>(report.error());
  verdict = check_extent(*report);
  if (verdict->right) verdict = check_scales(scales_, scales_);
  return verdict->right ? check_values() : verdict;
}

Verdict GemmVerifier::check_extent(const Report& report) const {
  // If the device did not run the check, the other counts mean nothing.
  if (report.looked_at != static_cast<std::uint64_t>(elements()))
    return wrong(
        fmt::format("the check itself looked at {} of {} elements", report.looked_at, elements()));
  if (report.outside > 0)
    return wrong(fmt::format("{} elements outside the output were written", report.outside));
  const auto left = static_cast<std::uint64_t>(elements_left(problem_, group_rows_.data()));
  if (report.unwritten > left)
    return wrong(
        fmt::format("{} elements of the output were not written", report.unwritten - left));
  if (report.unwritten < left)
    return wrong(
        fmt::format("{} elements of groups without tokens were written", left - report.unwritten));
  return {};
}

// Checks samples of the last D and of its codes.
Result<Verdict> GemmVerifier::check_values() {
  Result<Verdict> verdict;
  for (std::size_t i = 0; verdict && verdict->right && i < samples_.size(); ++i)
    verdict = check_codes(samples_[i]);
  if (!verdict || !verdict->right) return verdict;
  return check_samples(problem_.accumulate ? samples_on(kFaint) : samples_);
}

// Launches on a D whose bytes are `byte`, within poison. Returns a wrong verdict if the launch is
// refused, which is the candidate's failure. Returns an Error if the launch breaks the device.
Result<Verdict> GemmVerifier::launch_on(std::uint8_t byte, const Run& run) {
  const auto element = static_cast<std::size_t>(size_of(problem_.d.dtype));
  args_.d = static_cast<char*>(d_.pointer()) + kGuardElements * size_of(problem_.d.dtype);
  Status ok = d_.fill(byte, gpu_->stream());
  if (ok && d_scale_.bytes() > 0) ok = d_scale_.fill(kPoison, gpu_->stream());
  if (ok && byte != kPoison) ok = poison_guards(element);
  if (!ok) return tl::unexpected<Error>(ok.error());
  const Status launched = run(args_, gpu_->stream());
  ok = gpu_->synchronize();
  if (!ok) return tl::unexpected<Error>(ok.error());
  if (!launched) return wrong(launched.error().message);
  return Verdict{};
}

// Poisons the memory beside D, in elements of this size in bytes.
Status GemmVerifier::poison_guards(std::size_t element) {
  const auto fill = [&](std::int64_t first, std::int64_t pitch, std::int64_t width,
                        std::int64_t rows) {
    return gpu_->driver()->check(
        (*gpu_->driver())
            ->cuMemsetD2D8Async(d_.get() + static_cast<std::size_t>(first) * element,
                                static_cast<std::size_t>(pitch) * element, kPoison,
                                static_cast<std::size_t>(width) * element,
                                static_cast<std::size_t>(rows), gpu_->stream()),
        "cuMemsetD2D8Async");
  };
  const std::int64_t behind = kGuardElements + rows_ * args_.ldd;
  Status ok = fill(0, kGuardElements, kGuardElements, 1);
  if (ok) ok = fill(behind, kGuardElements, kGuardElements, 1);
  if (ok) ok = fill(kGuardElements + problem_.n, args_.ldd, args_.ldd - problem_.n, rows_);
  return ok;
}

Status GemmVerifier::copy(const DeviceBuffer& from, DeviceBuffer& to) const {
  return gpu_->driver()->check(
      (*gpu_->driver())->cuMemcpyDtoDAsync(to.get(), from.get(), from.bytes(), gpu_->stream()),
      "cuMemcpyDtoDAsync");
}

Result<GemmVerifier::Report> GemmVerifier::inspect(const DeviceBuffer* other) const {
  const CUstream stream = gpu_->stream();
  CUdeviceptr buffer = d_.get();
  CUdeviceptr reference = other == nullptr ? 0 : other->get();
  CUdeviceptr report = report_.get();
  long long count = elements();
  long long first = kGuardElements;
  long long rows = rows_;
  long long cols = problem_.n;
  long long stride = args_.ldd;
  double allowed = apart_allowed_;
  std::array<void*, 9> parameters{&buffer, &reference, &count,   &first, &rows,
                                  &cols,   &stride,    &allowed, &report};
  Report seen;
  Status ok = gpu_->driver()->check(
      (*gpu_->driver())->cuMemsetD8Async(report_.get(), 0, sizeof(Report), stream),
      "cuMemsetD8Async");
  const auto blocks = static_cast<unsigned>(kInspectBlocksPerSm * gpu_->spec().sm_count);
  if (ok) ok = inspect_->launch(blocks, kInspectThreads, parameters.data(), stream);
  if (ok) ok = report_.download(&seen, sizeof seen, stream);
  if (ok) ok = gpu_->synchronize();
  if (!ok) return tl::unexpected<Error>(ok.error());
  return seen;
}

Result<std::vector<float>> GemmVerifier::read_scales() const {
  std::vector<float> scales(d_scale_.bytes() / sizeof(float));
  if (scales.empty()) return scales;
  Status ok = d_scale_.download(scales.data(), d_scale_.bytes(), gpu_->stream());
  if (ok) ok = gpu_->synchronize();
  if (!ok) return tl::unexpected<Error>(ok.error());
  return scales;
}

// Checks the scales of FP8 D that two launches wrote: all of them and the padding, nothing beside
// them, and twice the same.
Verdict GemmVerifier::check_scales(const std::vector<float>& first,
                                   const std::vector<float>& second) const {
  const std::int64_t padded = round_up(rows_, 4);
  const auto blocks = ceil_div(problem_.n, 128);
  for (std::size_t i = 0; i < second.size(); ++i) {
    const std::int64_t at = static_cast<std::int64_t>(i) - kScaleGuard;
    const std::int64_t row = at < 0 ? padded : at % args_.d_scales.scale_ld;
    const bool written = at >= 0 && at / args_.d_scales.scale_ld < blocks && row < padded;
    const auto bits = std::bit_cast<std::uint32_t>(second[i]);
    if (!written && bits != kPoison * 0x01010101U)
      return wrong(fmt::format("memory {} scales after D's first scale was written", at));
    if (!written) continue;
    if (bits != std::bit_cast<std::uint32_t>(first[i]))
      return wrong(
          fmt::format("scale {} of D differs between two launches on the same operands", at));
    // No scale is negative, infinite, a NaN or zero; the poison is a NaN.
    if (!(second[i] > 0.0F) || !std::isfinite(second[i]))
      return wrong(fmt::format("scale {} of D is {}", at, second[i]));
    if (row >= rows_ && second[i] != 1.0F)
      return wrong(fmt::format("scale {} of D, which is padding, is {}, not 1", at, second[i]));
  }
  return {};
}

// Checks that the codes of the sample's first row and block use the range of their scale.
Result<Verdict> GemmVerifier::check_codes(const Sample& sample) const {
  if (!is_fp8(problem_.d.dtype)) return Verdict{};
  const std::int64_t row = sample.window.row0;
  const std::int64_t column = sample.window.col0 / 128 * 128;
  std::vector<std::uint8_t> codes(
      static_cast<std::size_t>(std::min<std::int64_t>(problem_.n - column, 128)));
  Status ok = d_.download(codes.data(), codes.size(), gpu_->stream(),
                          static_cast<std::size_t>(kGuardElements + row * args_.ldd + column));
  if (ok) ok = gpu_->synchronize();
  if (!ok) return tl::unexpected<Error>(ok.error());
  float largest = 0;
  for (const std::uint8_t code : codes)
    largest = std::max(largest, std::fabs(reference::from_fp8(code, problem_.d.dtype)));
  // A power of two leaves up to a factor of two unused.
  const float most = max_finite(problem_.d.dtype);
  const float least = problem_.d.scale == ScaleFormat::kF32Pow2 ? most / 2 : most;
  if (largest >= least && largest <= most) return Verdict{};
  return wrong(
      fmt::format("the largest code of row {} from column {} on is {}; allowed is {} to {}", row,
                  column, largest, least, most));
}

Status GemmVerifier::check_window(const Sample& sample, const DeviceBuffer& d,
                                  const std::vector<float>& scales, SumPrecision sums,
                                  GemmCheck& check) const {
  const auto element = static_cast<std::size_t>(size_of(problem_.d.dtype));
  const reference::Fp64Window& w = sample.window;
  const auto span = static_cast<std::size_t>((w.rows - 1) * args_.ldd + w.cols);
  const auto first = static_cast<std::size_t>(kGuardElements + w.row0 * args_.ldd + w.col0);
  std::vector<std::uint8_t> host(span * element);
  Status ok = d.download(host.data(), host.size(), gpu_->stream(), first * element);
  if (ok) ok = gpu_->synchronize();
  const float* first_scale = scales.empty() ? nullptr : scales.data() + kScaleGuard;
  if (ok)
    check_sample(problem_, sample, host.data(), args_.ldd, check,
                 scales_of(w, first_scale, args_.d_scales.scale_ld), sums);
  return ok;
}

// Checks the sums of a launch on a D that matters.
Result<Verdict> GemmVerifier::check_addition(const Run& run) {
  auto verdict = launch_on(kAddendByte, run);
  if (!verdict || !verdict->right) return verdict;
  return check_samples(samples_on(kAddendByte));
}

// Returns the samples of a launch that adds to a D whose bytes are `byte`.
std::vector<Sample> GemmVerifier::samples_on(std::uint8_t byte) const {
  const auto before = static_cast<double>(value_of_bytes(problem_, byte));
  std::vector<Sample> sums = samples_;
  for (Sample& sample : sums) {
    for (double& r : sample.r) r += before;
  }
  return sums;
}

Result<Verdict> GemmVerifier::check_samples(const std::vector<Sample>& samples) const {
  GemmCheck check;
  for (const Sample& sample : samples) {
    if (Status ok = check_window(sample, d_, scales_, sums_, check); !ok)
      return tl::unexpected<Error>(ok.error());
  }
  if (check.ok) return Verdict{};
  return wrong(check.worst.to_text());
}

Result<Verdict> GemmVerifier::compare_in_full() {
  if (has_accepted_) {
    const auto report = inspect(&accepted_);
    if (!report) return tl::unexpected<Error>(report.error());
    return report->apart == 0 ? Verdict{} : settle(*report);
  }
  if (Status ok = copy(d_, accepted_); !ok) return tl::unexpected<Error>(ok.error());
  accepted_scales_ = scales_;
  accepted_sums_ = sums_;
  has_accepted_ = true;
  return Verdict{};
}

// Decides by FP64 on one element for which candidate and accepted result differ.
Result<Verdict> GemmVerifier::settle(const Report& report) {
  const std::int64_t at = static_cast<std::int64_t>(report.last_apart) - 1 - kGuardElements;
  const reference::Fp64Window element{at / args_.ldd, 1, at % args_.ldd, 1};
  if (Status ok = fetch(element); !ok) return tl::unexpected<Error>(ok.error());
  const auto call = operands();
  if (!call) return tl::unexpected<Error>(call.error());
  const auto sample = sample_window(problem_, *call, element);
  if (!sample) return tl::unexpected<Error>(sample.error());
  GemmCheck mine;
  GemmCheck first;
  Status ok = check_window(*sample, d_, scales_, sums_, mine);
  if (ok) ok = check_window(*sample, accepted_, accepted_scales_, accepted_sums_, first);
  if (ok && mine.ok && !first.ok) {
    ok = copy(d_, accepted_);
    accepted_scales_ = scales_;
    accepted_sums_ = sums_;
  }
  if (!ok) return tl::unexpected<Error>(ok.error());
  if (!mine.ok) return wrong(fmt::format("{} elements, {}", report.apart, mine.worst.to_text()));
  Verdict verdict;
  if (!first.ok)
    verdict.first_is_wrong = fmt::format("{} elements, {}", report.apart, first.worst.to_text());
  return verdict;
}

}  // namespace octile::tuner
