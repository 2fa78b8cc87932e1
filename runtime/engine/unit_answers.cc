#include "runtime/engine/unit_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "generator/core/layout.h"
#include "generator/core/sum_bits.h"
#include "runtime/reference/cast.h"

namespace octile {
namespace {

// A GEMM that a unit computes.
struct Form {
  std::string_view problem, what;  // what: before what is wrong
  std::size_t m = 64;
  std::string_view config = {};  // empty: the default one
  int sm_limit = 0;              // so that a thread block has several tiles; 0: none
  int times = 1;
};
// With promoted sums every unit, with scales in the instruction those that have it.
constexpr std::array kForms{
    Form{"gemm m=? n=64 k=256 a=e4m3:1x128 b=e4m3:128x128 d=fp32 acc=0 promote=128", ""},
    Form{"gemm m=? n=64 k=256 a=e4m3:1x32 b=e4m3:1x32 d=fp32 acc=0 promote=none",
         "with scales in the instruction "}};
// Units that no card is known to compute right by: more K-blocks than the ring has stages and
// slots, several tiles a thread block, tails, one and two strips and consumers, scales of one and
// two groups of rows and columns in tensor memory, again and again.
constexpr std::array kMoreForms{
    Form{"gemm m=? n=272 k=1664 a=e4m3:1x128 b=e4m3:128x128 d=fp32 acc=0 promote=128", "", 320,
         "tile=128x128x128 stages=3 wg=2 inflight=2 unit=tcgen05", 2, 20},
    Form{"gemm m=? n=272 k=1664 a=e4m3:1x128 b=e4m3:128x128 d=fp32 acc=0 promote=128", "", 320,
         "tile=256x128x128 stages=3 wg=2 inflight=2 unit=tcgen05", 2, 20},
    Form{"gemm m=? n=400 k=1664 a=e4m3:1x128 b=e4m3:128x128 d=fp32 acc=0 promote=128", "", 320,
         "tile=128x256x128 stages=3 wg=2 inflight=2 unit=tcgen05", 2, 20},
    Form{"gemm m=? n=272 k=1664 a=e4m3:1x128 b=e4m3:128x128 d=fp32 acc=0 promote=128", "", 200,
         "tile=64x256x128 stages=3 wg=1 inflight=1 unit=tcgen05", 2, 20},
    Form{"gemm m=? n=240 k=1664 a=e4m3:1x128 b=e4m3:128x128 d=fp32 acc=0 promote=64", "", 200,
         "tile=128x112x128 stages=3 wg=2 inflight=1 store=direct promote=64 unit=tcgen05", 2, 20},
    Form{"gemm m=? n=144 k=1664 a=e4m3:1x128 b=e4m3:128x128 d=fp32 acc=0 promote=128", "", 200,
         "tile=64x48x128 stages=4 wg=1 inflight=2 store=direct splits=3 unit=tcgen05", 4, 20},
    Form{"gemm m=? n=96 k=1664 a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=0 promote=128", "", 65,
         "tile=16x32x128 stages=3 wg=1 inflight=2 store=direct unit=tcgen05", 3, 20},
    Form{"gemm m=? n=144 k=1664 a=e4m3:row b=e4m3:row d=fp32 acc=0 promote=256", "", 200,
         "tile=128x64x128 stages=3 wg=1 inflight=2 promote=256 unit=tcgen05", 2, 20},
    Form{"gemm m=? n=144 k=1664 a=e4m3:row b=e4m3:row d=fp32 acc=0 promote=none", "", 200,
         "tile=128x128x128 stages=3 wg=2 inflight=2 promote=none unit=tcgen05", 2, 20},
    Form{"gemm m=? n=272 k=1664 a=e4m3:1x128 b=e4m3:128x128 d=e4m3:1x128 acc=0 promote=128",
         "with FP8 D ", 320, "tile=128x128x128 stages=3 wg=1 inflight=2 unit=tcgen05", 2, 20},
    Form{"gemm m=? n=272 k=1664 a=e4m3:1x128:pow2 b=e4m3:128x128:pow2 d=fp32 acc=0 promote=none",
         "", 320, "tile=128x192x128 stages=3 wg=2 inflight=2 promote=none unit=tcgen05", 2, 20},
    Form{"gemm m=? n=400 k=1664 a=e4m3:1x128:pow2 b=e4m3:1x128:pow2 d=fp32 acc=0 promote=none", "",
         320, "tile=128x256x128 stages=3 wg=2 inflight=1 promote=none unit=tcgen05", 2, 20},
    Form{"gemm m=? n=272 k=1664 a=e4m3:1x32 b=e4m3:1x32 d=fp32 acc=0 promote=none", "", 320,
         "tile=256x128x128 stages=3 wg=2 inflight=1 promote=none unit=tcgen05", 2, 20},
};
constexpr std::size_t kScaleBlock = 128, kMxBlock = 32;
constexpr std::uint8_t kUntouched = 0xa5;

// Rows of A with something else than integers, which the last column of B probes.
constexpr std::size_t kNanRow = 60, kSubnormalRow = 61;

// Two products of a probe: 2^4 * 2^4 is the first element of row and column, and 2^-exponent times
// itself is at `k`. A unit that keeps `bits` and more behind the point of the first keeps the
// second.
struct Probe {
  std::size_t row, k;
  int exponent, bits;
};
constexpr Probe kCoarse{62, 1, 3, 14};
constexpr Probe kFine{63, 2, 6, 20};
constexpr float kLarge = 16;

float small_of(const Probe& probe) { return std::ldexp(1.0F, -probe.exponent); }

// An integer whose sums 13 bits hold exactly: those of 128 products are below 2^13.
float integer_at(std::size_t row, std::size_t k, std::size_t step) {
  return static_cast<float>((row * 5 + k * step + row * k) % 15) - 7;
}

float a_at(std::size_t row, std::size_t k) {
  for (const Probe& probe : {kCoarse, kFine}) {
    if (row == probe.row) return k == 0 ? kLarge : k == probe.k ? small_of(probe) : 0.0F;
  }
  if (row == kNanRow && k == kScaleBlock + 2) return std::nanf("");
  const float value = integer_at(row, k, 3);
  if (value == 0) return k % 2 == 0 ? 0.0F : -0.0F;
  return row == kSubnormalRow ? std::ldexp(value, -9) : value;
}

float b_at(std::size_t row, std::size_t k, bool is_probed) {
  if (!is_probed) return integer_at(row, k, 7);
  return k == 0 ? kLarge : k == kCoarse.k ? small_of(kCoarse) : k == kFine.k ? small_of(kFine) : 0;
}

// Odd numbers, or powers of two where the instruction multiplies scales. Those of a row differ by
// so little that all sums are exact.
float scale_of(std::size_t step, bool is_power) {
  return is_power ? std::ldexp(1.0F, static_cast<int>(step) - 1) : static_cast<float>(2 * step + 1);
}
float scale_of_a(std::size_t row, std::size_t block, bool is_power) {
  return scale_of((row + 3 * block) % 4, is_power);
}
// part: the column, or the block of 128 columns.
float scale_of_b(std::size_t part, std::size_t block, bool is_power) {
  return scale_of((1 + part + block) % 3, is_power);
}

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

constexpr std::string_view kResult = "D", kResultScales = "the scales of D";

std::size_t in_fours(std::size_t count) { return (count + 3) / 4 * 4; }

// One call's operands and result, which is fp32, or FP8 with a scale for each row and 128 columns.
struct Call {
  Places places;
  std::size_t a = 0, a_scale = 0, b = 0, b_scale = 0, d = 0, d_scale = 0;
  std::size_t a_scale_ld = 0, scale_blocks = 0;  // [scale_blocks][a_scale_ld]; along K also of B
  std::size_t b_parts = 0, b_step_of_part = 0, b_step_of_block = 0, columns_of_part = 1;
  bool is_mx = false, has_codes = false, has_powers = false;
  std::size_t m = 0, n = 0, k_count = 0;
  int sm_limit = 0;
  std::vector<std::uint8_t> memory;

  Call(const GemmProblem& problem, const Form& form)
      : is_mx(octile::is_mx(problem.a)),
        has_codes(is_fp8(problem.d.dtype)),
        has_powers(has_scales_inside(problem)),
        m(form.m),
        n(static_cast<std::size_t>(problem.n)),
        k_count(static_cast<std::size_t>(problem.k)),
        sm_limit(form.sm_limit) {
    const std::size_t mx_blocks = k_count / kMxBlock;
    scale_blocks = problem.a.granularity == Granularity::kPerRow ? 1 : k_count / kScaleBlock;
    a_scale_ld = in_fours(m);
    const bool of_blocks = problem.b.granularity == Granularity::k128x128;
    columns_of_part = of_blocks ? kScaleBlock : 1;
    b_parts = (n + columns_of_part - 1) / columns_of_part;
    b_step_of_part = of_blocks ? in_fours(scale_blocks) : 1;
    b_step_of_block = of_blocks ? 1 : in_fours(n);
    a = places.take(m * k_count, "A");
    a_scale = places.take(is_mx ? m * mx_blocks : scale_blocks * a_scale_ld * sizeof(float),
                          "the scales of A");
    b = places.take(n * k_count, "B");
    const std::size_t b_scales =
        of_blocks ? b_parts * b_step_of_part : scale_blocks * b_step_of_block;
    b_scale = places.take(is_mx ? n * mx_blocks : b_scales * sizeof(float), "the scales of B");
    d = places.take(m * n * (has_codes ? 1 : sizeof(float)), kResult);
    if (has_codes) d_scale = places.take(scales_of_d() * sizeof(float), kResultScales);
    memory.assign(places.bytes(), kUntouched);
    for (std::size_t k = 0; k < k_count; ++k) {
      for (std::size_t row = 0; row < m; ++row) {
        memory[a + row * k_count + k] = reference::to_fp8(a_at(row, k), DType::kE4M3);
      }
      for (std::size_t row = 0; row < n; ++row) {
        memory[b + row * k_count + k] = reference::to_fp8(b_at(row, k, row == n - 1), DType::kE4M3);
      }
    }
    for (std::size_t block = 0; is_mx && block < mx_blocks; ++block) {
      for (std::size_t row = 0; row < m; ++row)
        memory[a_scale + row * mx_blocks + block] = code_of_a(row, block);
      for (std::size_t row = 0; row < n; ++row)
        memory[b_scale + row * mx_blocks + block] = code_of_b(row, block);
    }
    for (std::size_t block = 0; !is_mx && block < scale_blocks; ++block) {
      for (std::size_t row = 0; row < m; ++row)
        put(a_scale + (block * a_scale_ld + row) * sizeof(float),
            scale_of_a(row, block, has_powers));
      for (std::size_t part = 0; part < b_parts; ++part)
        put(b_scale + (part * b_step_of_part + block * b_step_of_block) * sizeof(float),
            scale_of_b(part, block, has_powers));
    }
  }

  GemmArguments at(void* base) const {
    GemmArguments args;
    args.tokens = static_cast<std::int64_t>(m);
    args.sm_limit = sm_limit;
    args.a = placed(base, a);
    args.a_scale = placed<const float>(base, a_scale);
    args.b = placed(base, b);
    args.b_scale = placed<const float>(base, b_scale);
    args.d = placed(base, d);
    if (has_codes) args.d_scales = {sizeof args.d_scales, placed<float>(base, d_scale), 0};
    return args;
  }
  std::size_t scales_of_d() const { return (n + kScaleBlock - 1) / kScaleBlock * in_fours(m); }
  int code(std::size_t row, std::size_t column) const { return memory[d + row * n + column]; }
  float result_scale(std::size_t i) const { return float_at(d_scale + i * sizeof(float)); }
  float result(std::size_t row, std::size_t column) const {
    return float_at(d + (row * n + column) * sizeof(float));
  }
  // Returns the factor of the products of a probe.
  float scale_of(const Probe& probe) const {
    if (!is_mx) {
      return scale_of_a(probe.row, 0, has_powers) *
             scale_of_b((n - 1) / columns_of_part, 0, has_powers);
    }
    return std::ldexp(1.0F, code_of_a(probe.row, 0) + code_of_b(n - 1, 0) - 2 * kOne);
  }

 private:
  void put(std::size_t at, float value) { std::memcpy(memory.data() + at, &value, sizeof value); }
  float float_at(std::size_t at) const {
    float value = 0;
    std::memcpy(&value, memory.data() + at, sizeof value);
    return value;
  }
};

bool is_probe(const Probe& probe, const Call& call, std::size_t row, std::size_t column) {
  return row == probe.row && column == call.n - 1;
}

// Returns whether the unit kept the second product of a probe, or neither if D is anything else.
std::optional<bool> keeps(const Probe& probe, const Call& call) {
  const float d = call.result(probe.row, call.n - 1), scale = call.scale_of(probe);
  if (d == scale * kLarge * kLarge) return false;
  if (d == scale * (kLarge * kLarge + small_of(probe) * small_of(probe))) return true;
  return std::nullopt;
}

// Compares codes and their scales, and returns 0: bits are not read off. The scale of a probe's row
// depends on the bits of its sum.
Result<int> compare_codes(const Call& found, const Call& expected) {
  const auto is_probed = [](std::size_t row) { return row == kCoarse.row || row == kFine.row; };
  for (std::size_t i = 0; i < found.m * found.n; ++i) {
    const std::size_t row = i / found.n, column = i % found.n;
    const int is = found.code(row, column), right = expected.code(row, column);
    if (is != right && !is_probed(row)) {
      return fail(ErrorCode::kDeviceError,
                  fmt::format("the code D[{}][{}] is {:#04x}, and the host executor's is {:#04x}",
                              row, column, is, right));
    }
  }
  for (std::size_t i = 0; i < found.scales_of_d(); ++i) {
    const std::size_t row = i % in_fours(found.m);
    const float is = found.result_scale(i), right = expected.result_scale(i);
    if (is != right && !is_probed(row)) {
      return fail(ErrorCode::kDeviceError,
                  fmt::format("the scale of D's row {} is {}, and the host executor's is {}", row,
                              is, right));
    }
  }
  return 0;
}

// Returns the bits behind the point that the unit keeps.
Result<int> compare(const Call& found, const Call& expected) {
  const auto coarse = keeps(kCoarse, found), fine = keeps(kFine, found);
  for (std::size_t row = 0; row < found.m; ++row) {
    for (std::size_t column = 0; column < found.n; ++column) {
      const float is = found.result(row, column), right = expected.result(row, column);
      if (is == right || (std::isnan(is) && std::isnan(right))) continue;
      if ((coarse && is_probe(kCoarse, found, row, column)) ||
          (fine && is_probe(kFine, found, row, column))) {
        continue;
      }
      return fail(ErrorCode::kDeviceError, fmt::format("D[{}][{}] is {}, and the host executor's "
                                                       "is {}",
                                                       row, column, is, right));
    }
  }
  return fine.value_or(false) ? 25 : coarse.value_or(false) ? kCoarse.bits : kFewestSumBits;
}

// Returns the first byte outside of D that was written.
Status check_untouched(const Call& found, const Call& expected) {
  for (std::size_t i = 0; i < expected.memory.size(); ++i) {
    const std::string_view name = expected.places.name_of(i);
    if (found.memory[i] == expected.memory[i] || name == kResult || name == kResultScales) continue;
    return fail(ErrorCode::kDeviceError, fmt::format("it writes to {}", name));
  }
  return {};
}

GemmProblem problem_of(const Form& form) {
  return *problem_as<GemmProblem>(*parse_problem(form.problem));
}

GemmConfig config_of(const Form& form, const GemmProblem& problem, const DeviceSpec& device) {
  if (form.config.empty())
    return default_config(problem, static_cast<std::int64_t>(form.m), device);
  return parse_gemm_config(form.config).value();
}

// Computes the form on the device, and finds the bits behind the point that the unit keeps.
Answer answer_of(ProofRun& run, const DeviceSpec& only, const Form& form) {
  const GemmProblem problem = problem_of(form);
  const MatrixUnit unit = only.units.front();
  const Call given(problem, form);
  Call expected = given;
  const auto compute_expected = [&]() -> Status {
    const auto call = complete(problem, expected.at(expected.memory.data()));
    return call ? run_on_host(problem, *call) : tl::unexpected<Error>(call.error());
  };
  return run.test(
      fmt::format("matrix unit {}", name_of(unit)), problem, config_of(form, problem, only), only,
      given.memory, compute_expected, form.times, [&](void* base) { return given.at(base); },
      [&](const std::vector<std::uint8_t>& memory) -> Result<int> {
        Call found = given;
        found.memory = memory;
        if (Status ok = check_untouched(found, expected); !ok)
          return tl::unexpected<Error>(ok.error());
        return found.has_codes ? compare_codes(found, expected) : compare(found, expected);
      });
}

// Tests the unit by these forms, as far as they are right.
UnitAnswer test_unit(ProofRun& run, const DeviceSpec& only, std::span<const Form> forms) {
  const MatrixUnit unit = only.units.front();
  const int described = octile::sum_bits(only, unit);
  UnitAnswer all;
  all.unit = unit;
  for (const Form& form : forms) {
    const Answer answer = answer_of(run, only, form);
    all.kind = answer.kind;
    all.is_remembered |= answer.is_remembered;
    const auto refuse = [&](std::string why) {
      all.kind = answer.kind == Answer::Kind::kUnknown ? answer.kind : Answer::Kind::kWrong;
      all.status = fail(ErrorCode::kDeviceError, fmt::format("{}{}", form.what, std::move(why)));
    };
    if (!answer.status) {
      refuse(answer.status.error().message);
      return all;
    }
    if (!answer.sum_bits) continue;
    const int bits = *answer.sum_bits;
    all.sum_bits = std::min(all.sum_bits.value_or(bits), bits);
    if (bits < described) {
      refuse(
          fmt::format("it keeps {} bits of a sum, and {} are taken for granted", bits, described));
      return all;
    }
  }
  return all;
}

}  // namespace

std::string name_of(const UnitAnswer& answer) {
  return fmt::format("{}{}", name_of(answer.unit),
                     answer.is_of_scales ? " with scales in the instruction" : "");
}

std::vector<UnitAnswer> test_units(ProofRun& run, const Target& target) {
  std::vector<UnitAnswer> answers;
  for (const MatrixUnit unit : target.spec.units) {
    DeviceSpec only = target.spec.with_all_units();
    only.units = {unit};
    if (!check_supported(problem_of(kForms.front()), only)) continue;
    std::vector<Form> forms;
    for (const Form& form : kForms)
      if (check_supported(problem_of(form), only)) forms.push_back(form);
    if (!target.spec.is_unused(unit)) {
      answers.push_back(test_unit(run, only, forms));
      continue;
    }
    forms.insert(forms.end(), kMoreForms.begin(), kMoreForms.end());
    const auto with_scales = std::ranges::stable_partition(
        forms, [](const Form& form) { return !has_scales_inside(problem_of(form)); });
    answers.push_back(test_unit(run, only, {forms.begin(), with_scales.begin()}));
    if (with_scales.empty() || answers.back().kind != Answer::Kind::kRight) continue;
    for (Form& form : with_scales) form.what = {};  // the answer's name says it
    UnitAnswer of_scales = test_unit(run, only, with_scales);
    of_scales.is_of_scales = true;
    answers.push_back(std::move(of_scales));
  }
  return answers;
}

}  // namespace octile
