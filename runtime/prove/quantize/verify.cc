#include "runtime/prove/quantize/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "generator/core/layout.h"
#include "runtime/measure/tensor.h"
#include "runtime/reference/quantize/reference.h"

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
    const bool has = transposed ? has_transposed(problem_.output) : has_rowwise(problem_.output);
    const auto sizes = has ? output_bytes(problem_, rows, transposed) : OutputBytes();
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

Result<QuantizeVerifier> QuantizeVerifier::create(const GpuSession& gpu,
                                                  const QuantizeProblem& problem,
                                                  const QuantizeSlot& timed, std::uint64_t seed) {
  QuantizeVerifier verifier(gpu, problem, timed);
  auto image = verifier.image_of(timed.rows);
  if (!image) return tl::unexpected<Error>(image.error());
  verifier.timed_image_ = std::move(*image);
  auto outputs = gpu.allocate(static_cast<std::size_t>(verifier.timed_image_.bytes));
  if (!outputs) return tl::unexpected<Error>(outputs.error());
  verifier.timed_outputs_ = std::move(*outputs);
  const std::int64_t tensors = problem.grouping == Grouping::kMasked ? groups_of(problem) : 1;
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
  trials_.push_back(
      {std::move(*input), std::move(*image), std::move(*outputs), std::move(*expected)});
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
  if (Status ok = reference::quantize(problem_, reference_args(args)); !ok)
    return tl::unexpected<Error>(ok.error());
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

// Returns the refusal if the launch is refused, which is the candidate's failure. Returns an Error
// if the launch breaks the device.
Result<QuantizeVerifier::Left> QuantizeVerifier::launch(const Run& run, const QuantizeSlot& input,
                                                        const Image& image,
                                                        DeviceBuffer& outputs) const {
  if (Status ok = clear(outputs, image); !ok) return tl::unexpected<Error>(ok.error());
  QuantizeArguments args = args_of(input);
  image.point(args, outputs.pointer());
  const Status launched = run(args, gpu_->stream());
  if (Status ok = gpu_->synchronize(); !ok) return tl::unexpected<Error>(ok.error());
  if (!launched) return Left{{}, launched.error().message};
  return download(*gpu_, outputs).map([](Bytes bytes) { return Left{std::move(bytes), {}}; });
}

Result<Verdict> QuantizeVerifier::check(const Run& run) {
  for (Trial& trial : trials_) {
    for (int i = 0; i < kLaunches; ++i) {
      const auto left = launch(run, trial.input, trial.image, trial.outputs);
      if (!left) return tl::unexpected<Error>(left.error());
      if (!left->refused.empty()) return wrong(left->refused);
      if (left->bytes != trial.expected)
        return wrong(trial.image.difference(left->bytes, trial.expected));
    }
  }
  auto left = launch(run, *timed_, timed_image_, timed_outputs_);
  if (!left) return tl::unexpected<Error>(left.error());
  if (!left->refused.empty()) return wrong(left->refused);
  return compare_in_full(std::move(left->bytes));
}

Result<Verdict> QuantizeVerifier::compare_in_full(Bytes left) {
  if (accepted_.empty()) {
    accepted_ = std::move(left);
    return Verdict{};
  }
  if (left == accepted_) return Verdict{};
  const auto right = reference(*timed_, timed_image_);
  if (!right) return tl::unexpected<Error>(right.error());
  if (left != *right) return wrong(timed_image_.difference(left, *right));
  Verdict verdict;
  verdict.first_is_wrong = timed_image_.difference(accepted_, *right);
  accepted_ = std::move(left);
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
