#include "runtime/engine/unit_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include "runtime/reference/cast.h"

namespace octile {
namespace {

constexpr std::size_t kScaleBlock = 128, kMxBlock = 32;
constexpr std::uint8_t kUntouched = 0xa5;
constexpr std::string_view kResult = "D", kResultScales = "the scales of D", kSentry = "the sentry";
// The launches in a row of a test that is repeated (ProofRun). Each of them adds to D if the
// problem does.
constexpr int kLaunchesInARow = 3;

// Rows of A with something else than integers, which the last column of B probes.
constexpr std::size_t kNanRow = 60, kSubnormalRow = 61;
constexpr float kLarge = 16;
constexpr int kMostBits = 25;  // of a unit that keeps kFine.bits or more

// Codes of MX scales. Rows of A and of B that an instruction multiplies together have scales of
// their own, and so have the four blocks whose codes share a word. Within a row they differ by so
// little that all sums are exact. One of each operand is NaN.
constexpr std::size_t kNanScaleOfA = 59, kNanScaleOfB = 61;
constexpr std::uint8_t kOne = 127, kNanCode = 255;
std::uint8_t code_of_a(std::size_t row, std::size_t block) {
  if (row == kNanScaleOfA && block == 3) return kNanCode;
  return static_cast<std::uint8_t>(kOne - 18 + row * 11 % 37 + (row + 3 * block) % 4);
}
std::uint8_t code_of_b(std::size_t row, std::size_t block) {
  if (row == kNanScaleOfB && block == 6) return kNanCode;
  return static_cast<std::uint8_t>(kOne - 14 + row * 5 % 29 + (2 * row + 3 * block) % 5);
}

// An integer whose sums 13 bits hold exactly: those of 128 products are below 2^13.
float integer_at(std::size_t row, std::size_t k, std::size_t step) {
  return static_cast<float>((row * 5 + k * step + row * k) % 15) - 7;
}

// Exponents of scales that are powers of two; others are odd numbers. Those of a row differ by so
// little that all sums are exact. part: the row, or the block of rows.
std::size_t step_of_a(std::size_t part, std::size_t block) { return (part + 3 * block) % 4; }
std::size_t step_of_b(std::size_t part, std::size_t block) { return (1 + part + block) % 3; }
float scale_of_step(std::size_t step, bool is_power) {
  return is_power ? std::ldexp(1.0F, static_cast<int>(step) - 1) : static_cast<float>(2 * step + 1);
}

template <typename T>
void put(std::vector<std::uint8_t>& memory, std::size_t at, T value) {
  std::memcpy(memory.data() + at, &value, sizeof value);
}
template <typename T>
T value_at(const std::vector<std::uint8_t>& memory, std::size_t at) {
  T value;
  std::memcpy(&value, memory.data() + at, sizeof value);
  return value;
}

}  // namespace

// Two products of a probe: 2^4 * 2^4 is the first element of row and column, and 2^-exponent times
// itself is at `k`. A unit that keeps `bits` and more behind the point of the first keeps the
// second.
struct UnitCall::Probe {
  std::size_t row, k;
  int exponent, bits;
  float small() const { return std::ldexp(1.0F, -exponent); }
};
const UnitCall::Probe UnitCall::kCoarse{62, 1, 3, 14};
const UnitCall::Probe UnitCall::kFine{63, 2, 6, 20};

UnitCall::UnitCall(const GemmProblem& problem, const UnitForm& form)
    : problem_(problem),
      m_(form.m),
      n_(form.n),
      tokens_(form.sums_tokens ? form.k : form.m),
      sm_limit_(form.sm_limit),
      launches_(form.times > 1 ? kLaunchesInARow : 1),
      has_probes_(problem.d.dtype == DType::kFP32 && !problem.accumulate && !problem.bias &&
                  !has_several_gemms(problem)),
      has_powers_(has_scales_inside(problem)) {
  const GemmMatrices all = matrices_of(problem, static_cast<std::int64_t>(tokens_));
  columns_ = static_cast<std::size_t>(all.k);
  fill_groups();
  a_ = place(Side::kA, all.a_rows, whole_gemms(problem));
  b_ = place(Side::kB, all.b_rows, groups_rows(problem) ? problem.groups : whole_gemms(problem));
  d_elements_ = static_cast<std::size_t>(all.d_rows) * n_;
  place_results();
  memory_.assign(places_.bytes(), kUntouched);
  for (const Side side : {Side::kA, Side::kB}) {
    fill_codes(side == Side::kA ? a_ : b_, side);
    fill_scales(side == Side::kA ? a_ : b_, side);
  }
  fill_results();
}

UnitCall::Operand UnitCall::place(Side side, std::int64_t all_rows, std::int64_t matrices) {
  const bool is_a = side == Side::kA;
  Operand operand;
  operand.type = is_a ? problem_.a : problem_.b;
  operand.rows = static_cast<std::size_t>(all_rows / matrices);
  operand.matrices = static_cast<std::size_t>(matrices);
  const auto columns = static_cast<std::int64_t>(columns_);
  operand.layout = quantized_layout(operand.type, all_rows / matrices, columns).value();
  operand.ld = static_cast<std::size_t>(operand.layout.data.ld);
  operand.codes = places_.take(static_cast<std::size_t>(all_rows) * operand.ld, is_a ? "A" : "B");
  operand.scales =
      places_.take(operand.matrices * static_cast<std::size_t>(operand.layout.scales.bytes()),
                   is_a ? "the scales of A" : "the scales of B");
  return operand;
}

void UnitCall::place_results() {
  d_ = places_.take(d_elements_ * static_cast<std::size_t>(size_of(problem_.d.dtype)), kResult);
  if (is_fp8(problem_.d.dtype)) {
    const auto rows = static_cast<std::int64_t>(d_elements_ / n_);
    const ArrayShape scales =
        quantized_layout(problem_.d, rows, static_cast<std::int64_t>(n_)).value().scales;
    d_scales_ = static_cast<std::size_t>(scales.outer * scales.ld);
    d_scale_ = places_.take(static_cast<std::size_t>(scales.bytes()), kResultScales);
  }
  if (problem_.bias)
    bias_ = places_.take(n_ * static_cast<std::size_t>(size_of(*problem_.bias)), "the bias");
  if (has_sentry(problem_)) sentry_ = places_.take(sizeof(std::uint32_t), kSentry);
  if (!group_rows_.empty())
    groups_ = places_.take(group_rows_.size() * sizeof group_rows_[0], "the groups");
}

// A group without tokens, and tokens behind the last group, or rows that a group lacks.
void UnitCall::fill_groups() {
  const auto tokens = static_cast<std::int32_t>(tokens_);
  if (problem_.grouping == Grouping::kMasked) {
    group_rows_ = {tokens, 0, tokens / 2 + 3};
  } else if (is_grouped(problem_)) {
    group_rows_ = {0, tokens / 3, tokens / 3, tokens - 10};
  }
}

// Returns whether a column of A and B belongs to a group of K. Others of its last K-block are zero.
bool UnitCall::has_tokens_at(std::size_t column) const {
  if (!groups_k(problem_)) return true;
  std::size_t begin = 0;
  for (std::size_t g = 0; g + 1 < group_rows_.size(); ++g) {
    const auto count = static_cast<std::size_t>(group_rows_[g + 1] - group_rows_[g]);
    if (column >= begin && column < begin + count) return true;
    begin += (count + kScaleBlock - 1) / kScaleBlock * kScaleBlock;
  }
  return false;
}

void UnitCall::fill_codes(const Operand& operand, Side side) {
  const auto a_at = [](std::size_t row, std::size_t k) {
    for (const Probe& probe : {kCoarse, kFine})
      if (row == probe.row) return k == 0 ? kLarge : k == probe.k ? probe.small() : 0.0F;
    if (row == kNanRow && k == kScaleBlock + 2) return std::nanf("");
    const float value = integer_at(row, k, 3);
    if (value == 0) return k % 2 == 0 ? 0.0F : -0.0F;
    return row == kSubnormalRow ? std::ldexp(value, -9) : value;
  };
  const auto b_at = [&](std::size_t row, std::size_t k) {
    if (!has_probes_ || row != n_ - 1) return integer_at(row, k, 7);
    return k == 0 ? kLarge : k == kCoarse.k ? kCoarse.small() : k == kFine.k ? kFine.small() : 0.0F;
  };
  // The columns that a weight gradient's tokens have, or all.
  const std::size_t columns = groups_k(problem_) || !has_tokens_in_k(problem_) ? columns_ : tokens_;
  for (std::size_t row = 0; row < operand.rows * operand.matrices; ++row) {
    for (std::size_t k = 0; k < columns; ++k) {
      const float value = !has_tokens_at(k) ? 0.0F : side == Side::kA ? a_at(row, k) : b_at(row, k);
      memory_[operand.codes + row * operand.ld + k] = reference::to_fp8(value, operand.type.dtype);
    }
  }
}

void UnitCall::fill_scales(const Operand& operand, Side side) {
  const bool is_a = side == Side::kA;
  const auto& layout = operand.layout;
  const auto ld = static_cast<std::size_t>(layout.scales.ld);
  const auto step_of = [&](std::size_t part, std::size_t block) {
    return is_a ? step_of_a(part, block) : step_of_b(part, block);
  };
  const bool of_blocks = operand.type.granularity == Granularity::k128x128;
  const bool is_whole = operand.type.granularity == Granularity::kPerTensor ||
                        operand.type.granularity == Granularity::kPerRow;
  const std::size_t parts = of_blocks ? static_cast<std::size_t>(layout.scale_rows)
                            : operand.type.granularity == Granularity::kPerTensor ? 1
                                                                                  : operand.rows;
  const std::size_t blocks = is_whole ? 1 : (columns_ + kScaleBlock - 1) / kScaleBlock;
  for (std::size_t matrix = 0; matrix < operand.matrices; ++matrix) {
    const std::size_t base =
        operand.scales + matrix * static_cast<std::size_t>(layout.scales.bytes());
    if (is_mx(operand.type)) {
      for (std::size_t row = 0; row < static_cast<std::size_t>(layout.scale_rows); ++row)
        for (std::size_t block = 0; block < columns_ / kMxBlock; ++block)
          memory_[base + row * ld + block] = is_a ? code_of_a(row, block) : code_of_b(row, block);
      continue;
    }
    for (std::size_t part = 0; part < parts; ++part) {
      for (std::size_t block = 0; block < blocks; ++block) {
        const std::size_t step = step_of(part + matrix * parts, block);
        const std::size_t at = of_blocks ? part * ld + block : block * ld + part;
        if (operand.type.scale == ScaleFormat::kUe8m0x4) {
          memory_[base + (block / 4 * ld + part) * 4 + block % 4] =
              static_cast<std::uint8_t>(kOne + step - 1);
        } else {
          put(memory_, base + at * sizeof(float), scale_of_step(step, has_powers_));
        }
      }
    }
  }
}

// Fills the bias, the sentry, the groups, and a D that is added to, which has small integers.
void UnitCall::fill_results() {
  for (std::size_t i = 0; problem_.accumulate && i < d_elements_; ++i) {
    const float value = static_cast<float>(i % 11) - 5;
    if (problem_.d.dtype == DType::kFP32) {
      put(memory_, d_ + i * sizeof value, value);
    } else {
      put(memory_, d_ + i * sizeof(std::uint16_t), reference::float_to_bf16(value));
    }
  }
  for (std::size_t i = 0; problem_.bias && i < n_; ++i)
    put(memory_, bias_ + i * sizeof(float), static_cast<float>(i % 13) - 6);
  if (has_sentry(problem_)) put(memory_, sentry_, std::uint32_t{0});
  for (std::size_t i = 0; i < group_rows_.size(); ++i)
    put(memory_, groups_ + i * sizeof group_rows_[i], group_rows_[i]);
}

GemmArguments UnitCall::at(void* base) const {
  GemmArguments args;
  args.tokens = static_cast<std::int64_t>(tokens_);
  args.sm_limit = sm_limit_;
  args.a = placed(base, a_.codes);
  args.a_scale = placed(base, a_.scales);
  args.b = placed(base, b_.codes);
  args.b_scale = placed(base, b_.scales);
  args.d = placed(base, d_);
  if (problem_.bias) args.bias = placed(base, bias_);
  if (is_fp8(problem_.d.dtype))
    args.d_scales = {sizeof args.d_scales, placed<float>(base, d_scale_), 0};
  if (has_sentry(problem_))
    args.monitor = {sizeof args.monitor, placed<std::uint32_t>(base, sentry_)};
  if (is_grouped(problem_)) {
    const auto* rows = placed<const std::int32_t>(base, groups_);
    args.groups.struct_size = sizeof args.groups;
    (problem_.grouping == Grouping::kMasked ? args.groups.counts : args.groups.offsets) = rows;
  }
  return args;
}

Status UnitCall::run_on_host() {
  const auto call = complete(problem_, at(memory_.data()));
  if (!call) return tl::unexpected<Error>(call.error());
  Status ok;
  for (int i = 0; ok && i < (problem_.accumulate ? launches_ : 1); ++i)
    ok = octile::run_on_host(problem_, *call);
  return ok;
}

Result<int> UnitCall::judge(const std::vector<std::uint8_t>& found) const {
  if (Status ok = check_elsewhere(found); !ok) return tl::unexpected<Error>(ok.error());
  return is_fp8(problem_.d.dtype) ? compare_codes(found) : compare(found);
}

// Returns the factor of the products of a probe.
float UnitCall::scale_of(const Probe& probe) const {
  if (!is_mx(problem_.a)) {
    const bool of_blocks = problem_.b.granularity == Granularity::k128x128;
    const std::size_t part = of_blocks ? (n_ - 1) / kScaleBlock : n_ - 1;
    return scale_of_step(step_of_a(probe.row, 0), has_powers_) *
           scale_of_step(step_of_b(part, 0), has_powers_);
  }
  return std::ldexp(1.0F, code_of_a(probe.row, 0) + code_of_b(n_ - 1, 0) - 2 * kOne);
}

float UnitCall::result(const std::vector<std::uint8_t>& memory, std::size_t element) const {
  return reference::load_as_float(memory.data() + d_, problem_.d.dtype,
                                  static_cast<std::int64_t>(element));
}

// Returns whether the unit kept the second product of a probe, or neither if D is anything else.
std::optional<bool> UnitCall::keeps(const Probe& probe,
                                    const std::vector<std::uint8_t>& found) const {
  if (!has_probes_) return std::nullopt;
  const float d = result(found, probe.row * n_ + n_ - 1), scale = scale_of(probe);
  if (d == scale * kLarge * kLarge) return false;
  if (d == scale * (kLarge * kLarge + probe.small() * probe.small())) return true;
  return std::nullopt;
}

// Returns the first byte outside of D that was written.
Status UnitCall::check_elsewhere(const std::vector<std::uint8_t>& found) const {
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    const std::string_view name = places_.name_of(i);
    if (found[i] == memory_[i] || name == kResult || name == kResultScales || name == kSentry)
      continue;
    return fail(ErrorCode::kDeviceError, fmt::format("it writes to {}", name));
  }
  if (!has_sentry(problem_)) return {};
  const auto is = value_at<std::uint32_t>(found, sentry_);
  const auto right = value_at<std::uint32_t>(memory_, sentry_);
  if (is == right) return {};
  return fail(ErrorCode::kDeviceError,
              fmt::format("the sentry is {}, and the host executor's is {}", is, right));
}

Result<int> UnitCall::compare(const std::vector<std::uint8_t>& found) const {
  const auto coarse = keeps(kCoarse, found), fine = keeps(kFine, found);
  for (std::size_t i = 0; i < d_elements_; ++i) {
    const std::size_t row = i / n_, column = i % n_;
    const float is = result(found, i), right = result(memory_, i);
    if (is == right || (std::isnan(is) && std::isnan(right))) continue;
    const bool is_last = column == n_ - 1;
    if (is_last && ((coarse && row == kCoarse.row) || (fine && row == kFine.row))) continue;
    return fail(ErrorCode::kDeviceError, fmt::format("D[{}][{}] is {}, and the host executor's "
                                                     "is {}",
                                                     row, column, is, right));
  }
  if (!has_probes_) return 0;
  return fine.value_or(false) ? kMostBits : coarse.value_or(false) ? kCoarse.bits : kFewestSumBits;
}

// Compares codes and their scales.
Result<int> UnitCall::compare_codes(const std::vector<std::uint8_t>& found) const {
  for (std::size_t i = 0; i < d_elements_; ++i) {
    const int is = found[d_ + i], right = memory_[d_ + i];
    if (is == right) continue;
    return fail(ErrorCode::kDeviceError,
                fmt::format("the code D[{}][{}] is {:#04x}, and the host executor's is {:#04x}",
                            i / n_, i % n_, is, right));
  }
  const std::size_t rows = (d_elements_ / n_ + 3) / 4 * 4;
  for (std::size_t i = 0; i < d_scales_; ++i) {
    const auto is = value_at<float>(found, d_scale_ + i * sizeof(float));
    const auto right = value_at<float>(memory_, d_scale_ + i * sizeof(float));
    if (is == right) continue;
    return fail(ErrorCode::kDeviceError,
                fmt::format("the scale of D's row {} is {}, and the host executor's is {}",
                            i % rows, is, right));
  }
  return 0;
}

}  // namespace octile
