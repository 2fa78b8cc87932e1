#include "runtime/prove/quantize/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "generator/core/layout.h"
#include "runtime/families/quantize/complete.h"
#include "runtime/measure/tensor.h"

namespace octile::tuner {
namespace {

constexpr std::uint8_t kPoison = 0xA5;
constexpr std::int64_t kGuardBytes = 1024;  // keeps the alignment of a buffer's start
// The trial has a whole tile of every template and a tail. It has fewer rows if a row is long,
// because the reference takes about a second for 2^25 elements.
constexpr std::int64_t kTrialRows = 293;
constexpr std::int64_t kTrialElements = std::int64_t{1} << 22;
constexpr int kLaunches = 2;

// The order of the regions of an Image.
enum RegionIndex : std::size_t { kQ, kScale, kQTransposed, kScaleTransposed, kAmax, kNonfinite };

Verdict wrong(std::string why) { return {false, std::move(why), {}}; }

constexpr unsigned kInspectThreads = 256;
constexpr int kInspectBlocksPerSm = 8;
constexpr std::size_t kReportBytes = 6 * sizeof(std::uint64_t);  // of templates/bench/inspect.cu

// The constants of the kernel that compares outputs, as words of any meaning.
Prologue comparison() {
  Prologue prologue;
  prologue.add_int("kThreads", kInspectThreads, "per block");
  prologue.add_int("kElementBytes", 4, "a word of outputs");
  prologue.add_int("kMantissaBits", 23, "not asked for");
  prologue.add_text("constexpr unsigned kUnwritten = 0;", "kUnwritten = 0", "not asked for");
  prologue.add_bool("kAdds", false, "not asked for");
  return prologue;
}

}  // namespace

void QuantizeVerifier::Image::point(QuantizeArguments& args, void* base) const {
  const auto place = [&](std::size_t region) -> void* {
    const Region& r = regions[region];
    return r.bytes == 0 ? nullptr : static_cast<char*>(base) + r.at;
  };
  args.q = place(kQ);
  args.scale = place(kScale);
  args.q_transposed = place(kQTransposed);
  args.scale_transposed = place(kScaleTransposed);
  args.monitor.amax = static_cast<float*>(place(kAmax));
  args.monitor.nonfinite = static_cast<std::uint64_t*>(place(kNonfinite));
}

Result<QuantizeVerifier::Image> QuantizeVerifier::image_of(std::int64_t rows) const {
  const std::int64_t groups = groups_of(problem_);
  Image image;
  image.bytes = kGuardBytes;
  const auto add = [&](const char* name, std::int64_t bytes) {
    image.regions.push_back({name, image.bytes, bytes});
    image.bytes += round_up(bytes, kGuardBytes) + kGuardBytes;
  };
  for (const bool transposed : {false, true}) {
    const bool is_written =
        transposed ? has_transposed(problem_.output) : has_rowwise(problem_.output);
    const auto sizes = is_written ? output_bytes(problem_, rows, transposed) : OutputBytes();
    if (!sizes) return tl::unexpected<Error>(sizes.error());
    add(transposed ? "q_transposed" : "q", sizes->data);
    add(transposed ? "scale_transposed" : "scale", sizes->scales);
  }
  const bool keeps_amax = problem_.q.granularity == Granularity::kPerTensor;
  add("amax", keeps_amax ? 4 * std::max<std::int64_t>(1, groups) : 0);
  const bool counts = problem_.operation == QuantizeOperation::kQuantize;
  add("nonfinite", counts ? sizeof(std::uint64_t) : 0);
  return image;
}

Result<QuantizeVerifier> QuantizeVerifier::create(const GpuSession& gpu, LoadedTemplates& templates,
                                                  const QuantizeProblem& problem,
                                                  const QuantizeSlot& timed, std::uint64_t seed) {
  auto inspect = templates.get(comparison(), "bench/inspect.cu", "octile_bench_inspect");
  if (!inspect) return tl::unexpected<Error>(inspect.error());
  QuantizeVerifier verifier(gpu, **inspect, problem, timed);
  auto image = verifier.image_of(timed.rows);
  if (!image) return tl::unexpected<Error>(image.error());
  verifier.timed_image_ = std::move(*image);
  auto outputs = gpu.allocate(static_cast<std::size_t>(verifier.timed_image_.bytes));
  if (!outputs) return tl::unexpected<Error>(outputs.error());
  verifier.timed_outputs_ = std::move(*outputs);
  auto report = gpu.allocate(kReportBytes);
  if (!report) return tl::unexpected<Error>(report.error());
  verifier.report_ = std::move(*report);
  const bool behind_each_other =
      problem.grouping == Grouping::kMasked || problem.grouping == Grouping::kStacked;
  const std::int64_t tensors = behind_each_other ? groups_of(problem) : 1;
  const std::int64_t rows = std::clamp<std::int64_t>(
      kTrialElements / std::max<std::int64_t>(1, tensors * problem.cols), 1, kTrialRows);
  Status ok = verifier.add_trial(rows, seed + 1, Values::kNormal);
  if (ok) ok = verifier.add_trial(rows, seed + 2, Values::kSpecial);
  if (!ok) return tl::unexpected<Error>(ok.error());
  return verifier;
}

Status QuantizeVerifier::add_trial(std::int64_t rows, std::uint64_t seed, Values values) {
  auto input = make_input(*gpu_, problem_, rows, seed, values);
  if (!input) return tl::unexpected<Error>(input.error());
  auto image = image_of(rows);
  if (!image) return tl::unexpected<Error>(image.error());
  auto outputs = gpu_->allocate(static_cast<std::size_t>(image->bytes));
  if (!outputs) return tl::unexpected<Error>(outputs.error());
  auto expected = reference(*input, *image);
  if (!expected) return tl::unexpected<Error>(expected.error());
  auto on_device = gpu_->upload(expected->data(), expected->size());
  if (!on_device) return tl::unexpected<Error>(on_device.error());
  trials_.push_back({std::move(*input), std::move(*image), std::move(*outputs),
                     std::move(*expected), std::move(*on_device)});
  return {};
}

Result<QuantizeVerifier::Bytes> QuantizeVerifier::reference(const QuantizeSlot& input,
                                                            const Image& image) const {
  auto host = download_input(*gpu_, problem_, input);
  if (!host) return tl::unexpected<Error>(host.error());
  Bytes bytes(static_cast<std::size_t>(image.bytes), kPoison);
  for (const Region& r : {image.regions[kAmax], image.regions[kNonfinite]})
    std::fill_n(bytes.begin() + r.at, r.bytes, std::uint8_t{0});
  QuantizeArguments args = host->args();
  image.point(args, bytes.data());
  const auto call = complete(problem_, args);
  if (!call) return tl::unexpected<Error>(call.error());
  if (Status ok = run_on_host(problem_, *call); !ok) return tl::unexpected<Error>(ok.error());
  return bytes;
}

// Poisons the outputs, except those to which the kernel adds: they become zero.
Status QuantizeVerifier::clear(DeviceBuffer& outputs, const Image& image) const {
  Status ok = outputs.fill(kPoison, gpu_->stream());
  for (const Region& r : {image.regions[kAmax], image.regions[kNonfinite]}) {
    const Bytes zeros(static_cast<std::size_t>(r.bytes), 0);
    if (ok && r.bytes > 0)
      ok = outputs.upload(zeros.data(), zeros.size(), gpu_->stream(),
                          static_cast<std::size_t>(r.at));
  }
  return ok;
}

// A launch that is refused is the candidate's failure. Returns an Error if the launch breaks the
// device.
Result<std::string> QuantizeVerifier::launch(const Run& run, const QuantizeSlot& input,
                                             const Image& image, DeviceBuffer& outputs) const {
  if (Status ok = clear(outputs, image); !ok) return tl::unexpected<Error>(ok.error());
  QuantizeArguments args = args_of(input);
  image.point(args, outputs.pointer());
  const Status launched = run(args, gpu_->stream());
  if (Status ok = gpu_->synchronize(); !ok) return tl::unexpected<Error>(ok.error());
  return launched ? std::string() : launched.error().message;
}

Result<Verdict> QuantizeVerifier::check_trial(const Run& run, Trial& trial) {
  for (int i = 0; i < kLaunches; ++i) {
    const auto refused = launch(run, trial.input, trial.image, trial.outputs);
    if (!refused) return tl::unexpected<Error>(refused.error());
    if (!refused->empty()) return wrong(*refused);
    const auto other = differ(trial.outputs, trial.expected_on_device, trial.image);
    if (!other) return tl::unexpected<Error>(other.error());
    if (!*other) continue;
    const auto left = download(*gpu_, trial.outputs);
    if (!left) return tl::unexpected<Error>(left.error());
    if (*left != trial.expected) return wrong(trial.image.difference(*left, trial.expected));
  }
  return Verdict{};
}

Result<Verdict> QuantizeVerifier::spot_check(const Run& run) {
  for (Trial& trial : trials_) {
    auto verdict = check_trial(run, trial);
    if (!verdict || !verdict->right) return verdict;
  }
  return Verdict{};
}

Result<Verdict> QuantizeVerifier::check(const Run& run) {
  auto verdict = spot_check(run);
  if (!verdict || !verdict->right) return verdict;
  const auto refused = launch(run, *timed_, timed_image_, timed_outputs_);
  if (!refused) return tl::unexpected<Error>(refused.error());
  if (!refused->empty()) return wrong(*refused);
  return compare_in_full();
}

Result<bool> QuantizeVerifier::differ(const DeviceBuffer& left, const DeviceBuffer& right,
                                      const Image& image) {
  const CUstream stream = gpu_->stream();
  std::array<std::uint64_t, kReportBytes / sizeof(std::uint64_t)> seen{};
  CUdeviceptr buffer = left.get(), other = right.get(), to = report_.get();
  // One row of words.
  long long count = image.bytes / 4, first = 0, rows = 1;
  double allowed = 0;
  std::array<void*, 9> parameters{&buffer, &other, &count,   &first, &rows,
                                  &count,  &count, &allowed, &to};
  Status ok = report_.fill(0, stream);
  const auto blocks = static_cast<unsigned>(kInspectBlocksPerSm * gpu_->spec().sm_count);
  if (ok) ok = inspect_->launch(blocks, kInspectThreads, parameters.data(), stream);
  if (ok) ok = report_.download(seen.data(), sizeof seen, stream);
  if (ok) ok = gpu_->synchronize();
  if (!ok) return tl::unexpected<Error>(ok.error());
  const auto& [outside, unwritten, differing, apart, looked_at, last] = seen;
  // Words that the device did not look at count as different ones, which the host compares.
  return differing > 0 || looked_at != static_cast<std::uint64_t>(count);
}

Result<Verdict> QuantizeVerifier::compare_in_full() {
  if (accepted_.bytes() > 0) {
    const auto other = differ(timed_outputs_, accepted_, timed_image_);
    if (!other) return tl::unexpected<Error>(other.error());
    return *other ? settle() : Verdict{};
  }
  auto copy = copy_of(*gpu_, timed_outputs_);
  if (!copy) return tl::unexpected<Error>(copy.error());
  accepted_ = std::move(*copy);
  return Verdict{};
}

// Decides by the host reference whether this candidate's or the accepted outputs are wrong.
Result<Verdict> QuantizeVerifier::settle() {
  const auto left = download(*gpu_, timed_outputs_);
  if (!left) return tl::unexpected<Error>(left.error());
  const auto accepted = download(*gpu_, accepted_);
  if (!accepted) return tl::unexpected<Error>(accepted.error());
  if (*left == *accepted) return Verdict{};
  const auto right = reference(*timed_, timed_image_);
  if (!right) return tl::unexpected<Error>(right.error());
  if (*left != *right) return wrong(timed_image_.difference(*left, *right));
  Verdict verdict;
  verdict.first_is_wrong = timed_image_.difference(*accepted, *right);
  auto copy = copy_of(*gpu_, timed_outputs_);
  if (!copy) return tl::unexpected<Error>(copy.error());
  accepted_ = std::move(*copy);
  return verdict;
}

// Describes the first byte that differs and counts the other ones.
std::string QuantizeVerifier::Image::difference(const Bytes& left, const Bytes& expected) const {
  std::int64_t first = -1;
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < bytes; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (left[at] == expected[at]) continue;
    if (count++ == 0) first = i;
  }
  const auto region = std::ranges::find_if(
      regions, [&](const Region& r) { return first >= r.at && first < r.at + r.bytes; });
  const auto at = static_cast<std::size_t>(first);
  const std::string place = region == regions.end()
                                ? "outside of the outputs"
                                : fmt::format("byte {} of {}", first - region->at, region->name);
  return fmt::format(
      "{} bytes differ from the host reference; the first, {}, is {:#04x} for {:#04x}", count,
      place, left[at], expected[at]);
}

}  // namespace octile::tuner
