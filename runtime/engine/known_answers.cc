#include "runtime/engine/known_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "generator/quantize/layout.h"
#include "runtime/engine/answer_run.h"
#include "runtime/engine/library.h"
#include "runtime/families/families.h"

namespace octile {
namespace {

// A warp's tile, a thread block's tile with both copies, and two kernels that follow each other.
constexpr std::array<std::string_view, 3> kProblems{
    "quantize rows=? cols=256 x=bf16 q=e4m3:1x128 out=row",
    "quantize rows=? cols=256 x=bf16 q=e4m3:1x128 out=both",
    "quantize rows=? cols=256 x=bf16 q=e4m3:tensor out=row",
};
constexpr std::int64_t kRows = 32, kCols = 256, kBlock = 128;
constexpr std::uint8_t kPoison = 0xa5;

// bf16 by its bits.
constexpr std::uint16_t kLargest = 0x43e0;   // 448, the largest number of E4M3
constexpr std::uint16_t kSmallest = 0x3a80;  // 2^-10, half of its smallest number
constexpr std::uint16_t kSign = 0x8000;

std::uint16_t bf16_of_integer(int value) {
  const auto exact = static_cast<float>(value);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &exact, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}

// Even rows have integers. Odd rows have a scale of 1 in every block and all bf16 values between
// kSmallest and kLargest, of which every second or more lies halfway between two codes' values.
std::vector<std::uint16_t> make_x() {
  std::vector<std::uint16_t> x;
  int turn = 0;
  for (int row = 0; row < kRows; ++row) {
    for (int col = 0; col < kCols; ++col) {
      const bool leads = col % kBlock == 0;
      if (row % 2 == 0) {
        x.push_back(bf16_of_integer((31 * row + 7 * col) % 17 - 8));
      } else if (leads) {
        x.push_back(kLargest);
      } else {
        const int magnitude = kSmallest + turn % (kLargest - kSmallest + 1);
        x.push_back(static_cast<std::uint16_t>(magnitude | (turn % 2 == 0 ? 0 : kSign)));
        ++turn;
      }
    }
  }
  constexpr std::array<std::uint16_t, 5> kSpecial{0x7f80, 0xff80, 0x7fc0, kSign, 0};
  std::ranges::copy(kSpecial, x.begin() + 1);
  return x;
}

// One piece of memory for a call, with the same offsets on the host and on the device: x, the
// outputs, the workspace.
struct QuantizePlaces {
  std::size_t q = 0, scale = 0, q_transposed = 0, scale_transposed = 0, workspace = 0, bytes = 0;
  std::size_t workspace_bytes = 0;
  bool has_copy = false;  // the transposed one

  QuantizeArguments at(void* base) const {
    QuantizeArguments args;
    args.rows = kRows;
    args.x = base;
    args.q = placed(base, q);
    args.scale = placed(base, scale);
    if (has_copy) args.q_transposed = placed(base, q_transposed);
    if (has_copy) args.scale_transposed = placed(base, scale_transposed);
    if (workspace_bytes > 0) args.workspace = placed(base, workspace);
    args.workspace_bytes = workspace_bytes;
    return args;
  }
  // Returns the name of the output to which a byte belongs.
  std::string_view output_of(std::size_t byte) const {
    if (byte < scale) return "the codes";
    if (byte < q_transposed || !has_copy) return "the scales";
    return byte < scale_transposed ? "the transposed codes" : "the transposed scales";
  }
};

Result<QuantizePlaces> place(const QuantizeProblem& problem, std::size_t x_bytes,
                             std::size_t workspace_bytes) {
  QuantizePlaces places;
  Places offsets;
  offsets.take(x_bytes);
  const auto take = [&](std::int64_t bytes) {
    return offsets.take(static_cast<std::size_t>(bytes));
  };
  const auto rowwise = quantized_layout(problem, kRows, 1, false);
  if (!rowwise) return tl::unexpected<Error>(rowwise.error());
  places.q = take(rowwise->data.bytes());
  places.scale = take(rowwise->scales.bytes());
  places.has_copy = has_transposed(problem.output);
  if (places.has_copy) {
    const auto transposed = quantized_layout(problem, kRows, 1, true);
    if (!transposed) return tl::unexpected<Error>(transposed.error());
    places.q_transposed = take(transposed->data.bytes());
    places.scale_transposed = take(transposed->scales.bytes());
  }
  places.workspace = take(static_cast<std::int64_t>(workspace_bytes));
  places.workspace_bytes = workspace_bytes;
  places.bytes = offsets.bytes();
  return places;
}

Status compare(const Target& target, std::string_view problem, const QuantizePlaces& places,
               const std::vector<std::uint8_t>& found, const std::vector<std::uint8_t>& expected) {
  for (std::size_t i = places.q; i < places.workspace; ++i) {
    if (found[i] == expected[i]) continue;
    return fail(ErrorCode::kDeviceError,
                fmt::format("{} (compute capability {}) does not pass the known-answer test of "
                            "'{}': a byte of {} is {:#04x}, and the host executor's is {:#04x}; no "
                            "kernel is handed out for it",
                            target.spec.full_name, target.spec.capability(), problem,
                            places.output_of(i), found[i], expected[i]));
  }
  return {};
}

Status test(Library& library, const Target& target, std::string_view text) {
  const auto parsed = parse_problem(text);
  if (!parsed) return tl::unexpected<Error>(parsed.error());
  const QuantizeProblem& problem = *problem_as<QuantizeProblem>(*parsed);
  const QuantizeConfig config = default_config(problem, kRows, target.spec);
  const auto ready = build_and_load(library, target, problem, config, target.spec);
  if (!ready) return tl::unexpected<Error>(ready.error());
  const ResolvedQuantize kernel = resolve(problem, config, target.spec, ready->loaded);

  const std::vector<std::uint16_t> x = make_x();
  const std::size_t x_bytes = x.size() * sizeof x[0];
  const auto places =
      place(problem, x_bytes, static_cast<std::size_t>(kernel.workspace_bytes(kRows)));
  if (!places) return tl::unexpected<Error>(places.error());
  std::vector<std::uint8_t> expected(places->bytes, kPoison);
  std::memcpy(expected.data(), x.data(), x_bytes);
  std::vector<std::uint8_t> found = expected;
  const auto call = complete(problem, places->at(expected.data()));
  if (!call) return tl::unexpected<Error>(call.error());
  Status ok = run_on_host(problem, *call);
  if (ok)
    ok = run_on_device(
        target, ready->loaded, kernel, [&](void* base) { return places->at(base); }, found);
  return ok ? compare(target, text, *places, found, expected) : ok;
}

}  // namespace

Status test_known_answers(Library& library, const Target& target) {
  for (const std::string_view problem : kProblems) {
    if (Status ok = test(library, target, problem); !ok) return ok;
  }
  return {};
}

Status KnownAnswers::check(Library& library, const Target& target) {
  if (target.spec.is_proven) return {};
  const std::scoped_lock lock(mutex_);
  const std::pair key(target.driver.get(), target.ordinal);
  if (const auto found = results_.find(key); found != results_.end()) return found->second;
  Status result = test_known_answers(library, target);
  if (!result && (result.error().code == ErrorCode::kOffline ||
                  result.error().code == ErrorCode::kNoCompiler)) {
    library.logger.log(LogLevel::kWarning,
                       fmt::format("{} is used without a known-answer test: {}",
                                   target.spec.full_name, result.error().message));
    result = {};
  }
  results_.emplace(key, result);
  return result;
}

}  // namespace octile
