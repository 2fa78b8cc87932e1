#include "runtime/prove/gemm/operands.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "generator/core/layout.h"
#include "generator/core/sum_bits.h"
#include "runtime/measure/random_operands.h"
#include "runtime/prove/gemm/tensor_arguments.h"
#include "runtime/reference/synthetic.h"

namespace octile {
namespace {

constexpr std::uint8_t kPoison = 0xFF;  // two such bytes are a NaN of 16-bit D

// Returns `tensors` operands, one behind the other, whose rows are as far apart as octile_gemm_args
// takes them by default. Several have room for the scales of each, whose rows are padded to
// `multiple`.
Result<DeviceTensor> random_operand(const GpuSession& gpu, const TensorType& type,
                                    std::int64_t tensors, std::int64_t rows, std::int64_t multiple,
                                    std::int64_t k, std::uint64_t seed) {
  const std::int64_t padded = tensors > 1 ? tensors * round_up(rows, multiple) : rows;
  auto tensor = random_tensor(gpu, type, padded, round_up(k, 16), seed);
  if (tensor) tensor->cols = k;
  return tensor;
}

// Returns how many tokens each group begins behind, and the end of the last. Those of K are whole
// scale blocks, but for the last group's.
std::vector<std::int32_t> uneven_offsets(const GemmProblem& p, std::int64_t tokens,
                                         std::uint64_t seed) {
  const std::int64_t unit = groups_k(p) ? kGroupAlign : 1;
  std::vector<std::int32_t> offsets{0};
  for (std::int64_t g = 1; g < p.groups; ++g) {
    const std::int64_t mean = tokens * g / p.groups;
    const std::int64_t spread = tokens / p.groups / 2;
    const auto shift =
        static_cast<std::int64_t>(reference::random_bits(seed, static_cast<std::uint64_t>(g)) %
                                  static_cast<std::uint64_t>(spread + 1));
    const std::int64_t at = (mean - spread / 2 + shift) / unit * unit;
    offsets.push_back(static_cast<std::int32_t>(std::max<std::int64_t>(at, offsets.back())));
  }
  offsets.push_back(static_cast<std::int32_t>(tokens));
  return offsets;
}

// Returns the rows that there is room for in a masked group, or the tokens of any other problem.
std::int64_t room_for(const GemmProblem& p, std::int64_t tokens) {
  return p.grouping == Grouping::kMasked ? tokens + ceil_div(tokens, 2) : tokens;
}

// Returns the rows of masked groups, in pairs that have 2 * `tokens` together.
std::vector<std::int32_t> uneven_counts(const GemmProblem& p, std::int64_t tokens,
                                        std::uint64_t seed) {
  std::vector<std::int32_t> counts;
  for (std::int64_t g = 0; g < p.groups; ++g) {
    const std::uint64_t bits = reference::random_bits(seed, static_cast<std::uint64_t>(g / 2));
    const auto more = static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(tokens / 2 + 1));
    const bool lone = g % 2 == 0 && g + 1 == p.groups;
    const std::int64_t shift = lone ? 0 : g % 2 == 0 ? more : -more;
    counts.push_back(static_cast<std::int32_t>(tokens + shift));
  }
  return counts;
}

Status add_groups(const GpuSession& gpu, const GemmProblem& problem, std::int64_t tokens,
                  std::uint64_t seed, GemmSlot& slot) {
  if (!is_grouped(problem)) return {};
  auto groups = make_groups(gpu, problem.grouping == Grouping::kMasked
                                     ? uneven_counts(problem, tokens, seed)
                                     : uneven_offsets(problem, tokens, seed));
  if (!groups) return tl::unexpected<Error>(groups.error());
  slot.groups = std::move(*groups);
  return {};
}

// The columns behind the last group's tokens are zero, as a quantiser leaves them.
Status clear_padding(const GpuSession& gpu, const GemmProblem& problem, std::int64_t tokens,
                     DeviceTensor& operand) {
  if (!groups_k(problem)) return {};
  const auto ld = static_cast<std::size_t>(round_up(operand.cols, 16));
  const std::int64_t begin = round_up(tokens / kGroupAlign * kGroupAlign, kGroupAlign);
  const auto first = static_cast<std::size_t>(begin + tokens % kGroupAlign);
  if (first >= ld) return {};
  return gpu.driver()->check(
      (*gpu.driver())
          ->cuMemsetD2D8Async(operand.data.get() + first, ld, 0, ld - first,
                              static_cast<std::size_t>(operand.rows), gpu.stream()),
      "cuMemsetD2D8Async");
}

// Replaces the scale of an operand that has one for all of K by one for each group.
Status give_each_group_a_scale(const GpuSession& gpu, const GemmProblem& problem,
                               std::uint64_t seed, DeviceTensor& operand) {
  if (!is_grouped(problem) || operand.type.granularity != Granularity::kPerTensor) return {};
  TensorType of_rows = operand.type;
  of_rows.granularity = Granularity::kPerRow;
  auto scales = random_tensor(gpu, of_rows, problem.groups, 16, seed);
  if (!scales) return tl::unexpected<Error>(scales.error());
  operand.scales = std::move(scales->scales);
  return {};
}

// Makes A and B.
Result<GemmSlot> first_slot(const GpuSession& gpu, const GemmProblem& problem, std::int64_t tokens,
                            std::uint64_t seed) {
  const GemmShape shape = shape_of(problem, tokens);
  const GemmMatrices all = matrices_of(problem, tokens);
  const std::int64_t of_a = whole_gemms(problem);
  const std::int64_t of_b = groups_rows(problem) ? problem.groups : whole_gemms(problem);
  GemmSlot slot;
  auto a = random_operand(gpu, problem.a, of_a, shape.m, 4, all.k, 2 * seed);
  if (!a) return tl::unexpected<Error>(a.error());
  auto b = random_operand(gpu, problem.b, of_b, shape.n, 128, all.k, 2 * seed + 1);
  if (!b) return tl::unexpected<Error>(b.error());
  slot.a = std::move(*a);
  slot.b = std::move(*b);
  Status ok = clear_padding(gpu, problem, tokens, slot.a);
  if (ok) ok = clear_padding(gpu, problem, tokens, slot.b);
  if (ok) ok = give_each_group_a_scale(gpu, problem, 2 * seed, slot.a);
  if (ok) ok = give_each_group_a_scale(gpu, problem, 2 * seed + 1, slot.b);
  if (!ok) return tl::unexpected<Error>(ok.error());
  return slot;
}

Result<GemmSlot> copy_operands(const GpuSession& gpu, const GemmSlot& from) {
  GemmSlot slot;
  auto a = copy_of(gpu, from.a);
  if (!a) return tl::unexpected<Error>(a.error());
  auto b = copy_of(gpu, from.b);
  if (!b) return tl::unexpected<Error>(b.error());
  slot.a = std::move(*a);
  slot.b = std::move(*b);
  return slot;
}

// Makes what the slot has beside A and B.
Status add_outputs(const GpuSession& gpu, const GemmProblem& problem, std::int64_t m,
                   std::uint64_t seed, GemmSlot& slot) {
  const auto make = [&](std::int64_t bytes, DeviceBuffer& to) -> Status {
    auto buffer = gpu.allocate(static_cast<std::size_t>(bytes));
    if (!buffer) return tl::unexpected<Error>(buffer.error());
    to = std::move(*buffer);
    return to.fill(0, gpu.stream());
  };
  Status ok = make(m * default_ld(problem.d.dtype, problem.n) * size_of(problem.d.dtype), slot.d);
  if (ok && has_sentry(problem)) ok = make(sizeof(octile_squares), slot.sentry);
  if (ok && is_fp8(problem.d.dtype)) {
    ok =
        make(ceil_div(problem.n, 128) * packed_scale_ld(problem.d, m, problem.n) * 4, slot.d_scale);
  }
  if (!ok || !problem.bias) return ok;
  auto bias = random_values(gpu, *problem.bias, problem.n, seed, Values::kNormal);
  if (!bias) return tl::unexpected<Error>(bias.error());
  slot.bias = std::move(*bias);
  return {};
}

Result<std::vector<std::uint8_t>> nothing() { return std::vector<std::uint8_t>(); }

// D of the slot against FP64 on the slot's operands.
Result<GemmCheck> check_slot(const GpuSession& gpu, const GemmProblem& problem,
                             const GemmSlot& slot) {
  const auto a = download(gpu, slot.a);
  if (!a) return tl::unexpected<Error>(a.error());
  const auto b = download(gpu, slot.b);
  if (!b) return tl::unexpected<Error>(b.error());
  const auto d = download(gpu, slot.d);
  if (!d) return tl::unexpected<Error>(d.error());
  const auto bias = problem.bias ? download(gpu, slot.bias) : nothing();
  if (!bias) return tl::unexpected<Error>(bias.error());
  const auto scales = is_fp8(problem.d.dtype) ? download(gpu, slot.d_scale) : nothing();
  if (!scales) return tl::unexpected<Error>(scales.error());
  const GemmAddends addends{bias->data(), addend_of(problem), slot.tokens, slot.groups.host.data()};
  return check_gemm(problem, *a, *b, d->data(), addends,
                    reinterpret_cast<const float*>(scales->data()), coarsest_sums(gpu.spec()));
}

}  // namespace

float value_of_bytes(const GemmProblem& problem, std::uint8_t byte) {
  return std::bit_cast<float>(byte * (problem.d.dtype == DType::kFP32 ? 0x01010101U : 0x01010000U));
}

float addend_of(const GemmProblem& problem) { return value_of_bytes(problem, kAddendByte); }

std::int64_t bytes_moved(const GemmProblem& problem, std::int64_t tokens) {
  const GemmMatrices all = matrices_of(problem, tokens);
  const std::int64_t bytes_of_d =
      std::int64_t{size_of(problem.d.dtype)} * (problem.accumulate ? 2 : 1);
  return (all.a_rows + all.b_rows) * all.k + all.d_rows * problem.n * bytes_of_d;
}

std::int64_t bytes_touched(const GemmProblem& problem, std::int64_t tokens) {
  const GemmMatrices all = matrices_of(problem, tokens);
  return (all.a_rows + all.b_rows) * all.k + all.d_rows * problem.n * size_of(problem.d.dtype);
}

Result<GemmGroups> make_groups(const GpuSession& gpu, std::vector<std::int32_t> host) {
  auto device = gpu.upload(host.data(), host.size() * sizeof(std::int32_t));
  if (!device) return tl::unexpected<Error>(device.error());
  return GemmGroups{std::move(host), std::move(*device)};
}

GemmArguments args_of(const GemmSlot& slot) {
  GemmArguments args = gemm_args(slot.a, slot.b, slot.d.pointer());
  args.tokens = slot.tokens;
  args.groups.expected_tokens = slot.expected_tokens;
  args.bias = slot.bias.pointer();
  args.monitor.sentry = static_cast<std::uint32_t*>(slot.sentry.pointer());
  const auto* groups = static_cast<const std::int32_t*>(slot.groups.device.pointer());
  (slot.groups_are_masked ? args.groups.counts : args.groups.offsets) = groups;
  args.d_scales.scale = static_cast<float*>(slot.d_scale.pointer());
  return args;
}

Result<std::vector<GemmSlot>> make_slots(const GpuSession& gpu, const GemmProblem& problem,
                                         std::int64_t tokens, int slots, std::uint64_t seed) {
  std::vector<GemmSlot> made;
  const std::int64_t room = room_for(problem, tokens);
  for (int i = 0; i < slots; ++i) {
    auto slot = i == 0 ? first_slot(gpu, problem, room, seed) : copy_operands(gpu, made.front());
    if (!slot) return tl::unexpected<Error>(slot.error());
    slot->tokens = room;
    slot->groups_are_masked = problem.grouping == Grouping::kMasked;
    if (slot->groups_are_masked) slot->expected_tokens = tokens;
    Status ok = add_outputs(gpu, problem, matrices_of(problem, room).d_rows, seed, *slot);
    if (ok) ok = add_groups(gpu, problem, tokens, seed, *slot);
    if (!ok) return tl::unexpected<Error>(ok.error());
    made.push_back(std::move(*slot));
  }
  if (Status ok = gpu.synchronize(); !ok) return tl::unexpected<Error>(ok.error());
  return made;
}

Result<GemmCheck> run_and_check(const GpuSession& gpu, const GemmProblem& problem, GemmSlot& slot,
                                const std::function<Status()>& run) {
  Status ok = slot.d.fill(problem.accumulate ? kAddendByte : kPoison, gpu.stream());
  if (ok) ok = run();
  if (ok) ok = gpu.synchronize();
  if (!ok) return tl::unexpected<Error>(ok.error());
  return check_slot(gpu, problem, slot);
}

}  // namespace octile
