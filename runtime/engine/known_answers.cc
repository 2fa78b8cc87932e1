#include "runtime/engine/known_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "generator/quantize/layout.h"
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

constexpr std::string_view kWorkspace = "the workspace";

// One piece of memory for a call.
struct QuantizePlaces {
  Places parts;
  std::size_t x = 0, q = 0, scale = 0, q_transposed = 0, scale_transposed = 0, workspace = 0;
  std::size_t workspace_bytes = 0;
  bool has_copy = false;  // the transposed one

  QuantizeArguments at(void* base) const {
    QuantizeArguments args;
    args.rows = kRows;
    args.x = placed(base, x);
    args.q = placed(base, q);
    args.scale = placed(base, scale);
    if (has_copy) args.q_transposed = placed(base, q_transposed);
    if (has_copy) args.scale_transposed = placed(base, scale_transposed);
    if (workspace_bytes > 0) args.workspace = placed(base, workspace);
    args.workspace_bytes = workspace_bytes;
    return args;
  }
};

Result<QuantizePlaces> place(const QuantizeProblem& problem, std::size_t x_bytes,
                             std::size_t workspace_bytes) {
  QuantizePlaces places;
  places.x = places.parts.take(x_bytes, "x");
  const auto take = [&](std::int64_t bytes, std::string_view name) {
    return places.parts.take(static_cast<std::size_t>(bytes), name);
  };
  const auto rowwise = quantized_layout(problem, kRows, 1, false);
  if (!rowwise) return tl::unexpected<Error>(rowwise.error());
  places.q = take(rowwise->data.bytes(), "the codes");
  places.scale = take(rowwise->scales.bytes(), "the scales");
  places.has_copy = has_transposed(problem.output);
  if (places.has_copy) {
    const auto transposed = quantized_layout(problem, kRows, 1, true);
    if (!transposed) return tl::unexpected<Error>(transposed.error());
    places.q_transposed = take(transposed->data.bytes(), "the transposed codes");
    places.scale_transposed = take(transposed->scales.bytes(), "the transposed scales");
  }
  places.workspace = places.parts.take(workspace_bytes, kWorkspace);
  places.workspace_bytes = workspace_bytes;
  return places;
}

// Returns 0, because a quantiser keeps no sums.
Result<int> compare(const Places& parts, const std::vector<std::uint8_t>& found,
                    const std::vector<std::uint8_t>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (found[i] == expected[i] || parts.name_of(i) == kWorkspace) continue;
    return fail(ErrorCode::kDeviceError,
                fmt::format("a byte of {} is {:#04x}, and the host executor's is {:#04x}",
                            parts.name_of(i), found[i], expected[i]));
  }
  return 0;
}

Answer test(ProofRun& run, const Target& target, std::string_view text) {
  const auto internal = [](const Error& error) {
    return Answer{Answer::Kind::kUnknown, tl::unexpected<Error>(error), {}, false};
  };
  const auto parsed = parse_problem(text);
  if (!parsed) return internal(parsed.error());
  const QuantizeProblem& problem = *problem_as<QuantizeProblem>(*parsed);
  const QuantizeConfig config = default_config(problem, kRows, target.spec);
  const std::vector<std::uint16_t> x = make_x();
  const std::size_t x_bytes = x.size() * sizeof x[0];
  const auto places = place(problem, x_bytes,
                            static_cast<std::size_t>(workspace_bytes(problem, target.spec, kRows)));
  if (!places) return internal(places.error());
  std::vector<std::uint8_t> expected(places->parts.bytes(), kPoison);
  std::memcpy(placed(expected.data(), places->x), x.data(), x_bytes);
  const std::vector<std::uint8_t> given = expected;
  const auto compute_expected = [&]() -> Status {
    const auto call = complete(problem, places->at(expected.data()));
    return call ? run_on_host(problem, *call) : tl::unexpected<Error>(call.error());
  };
  Answer answer = run.test(
      "quantisers", problem, config, target.spec, given, compute_expected, 1,
      [&](void* base) { return places->at(base); },
      [&](const std::vector<std::uint8_t>& found) {
        return compare(places->parts, found, expected);
      });
  if (answer.kind == Answer::Kind::kWrong)
    answer.status =
        fail(ErrorCode::kDeviceError, fmt::format("'{}': {}", text, answer.status.error().message));
  return answer;
}

}  // namespace

Answer test_known_answers(ProofRun& run, const Target& target) {
  Answer answer;
  for (const std::string_view problem : kProblems) {
    answer = test(run, target, problem);
    if (answer.kind != Answer::Kind::kRight) return answer;
  }
  return answer;
}

}  // namespace octile
