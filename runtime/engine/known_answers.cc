#include "runtime/engine/known_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "generator/quantize/layout.h"
#include "runtime/families/families.h"

namespace octile {
namespace {

// A kernel of the operations and recipes that layers use.
struct Tested {
  std::string_view operation, x, q, out;  // words of its text
};
constexpr std::string_view kRow = "row", kBoth = "both", kColumns = "col";
constexpr std::array kTested{
    // A warp's tile, a thread block's tile with both copies, and two kernels that follow each
    // other.
    Tested{"quantize", "bf16", "e4m3:1x128", kRow},
    Tested{"quantize", "bf16", "e4m3:1x128", kBoth},
    Tested{"quantize", "bf16", "e4m3:tensor", kRow},
    // Weights, gradients, rows, MX and packed exponents.
    Tested{"quantize", "fp32", "e4m3:128x128:pow2", kBoth},
    Tested{"quantize", "bf16", "e5m2:1x128:pow2", kBoth},
    Tested{"quantize", "bf16", "e4m3:row", kRow},
    Tested{"quantize", "bf16", "e4m3:1x32", kBoth},
    Tested{"quantize", "bf16", "e4m3:1x128:ue8m0x4", kRow},
    // Codes that are read.
    Tested{"transpose", "e4m3:128x128", "e4m3:128x128", kColumns},
    Tested{"dequantize", "e4m3:1x128", "bf16", kRow},
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
std::vector<std::uint16_t> numbers_of_x() {
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

// Finite codes of FP8 and their scales, which are odd.
std::uint8_t code_of(std::size_t i) {
  constexpr std::uint8_t kFinite = 0x7b;  // magnitudes of both formats
  return static_cast<std::uint8_t>(i * 7 % kFinite + (i % 2 == 0 ? 0 : 0x80));
}
float scale_of(std::size_t i) { return static_cast<float>(2 * (i % 5) + 1); }

constexpr std::string_view kWorkspace = "the workspace";

// One piece of memory for a call.
struct QuantizeCallMemory {
  Places parts;
  std::optional<std::size_t> x_scale, q, scale, q_transposed, scale_transposed;
  std::size_t x = 0, workspace = 0, workspace_bytes = 0;
  std::vector<std::uint8_t> bytes;

  QuantizeArguments at(void* base) const {
    const auto of = [&](const std::optional<std::size_t>& place) {
      return place ? placed(base, *place) : nullptr;
    };
    QuantizeArguments args;
    args.rows = kRows;
    args.x = placed(base, x);
    args.q = of(q);
    args.scale = of(scale);
    args.q_transposed = of(q_transposed);
    args.scale_transposed = of(scale_transposed);
    if (x_scale) args.source_scales = {sizeof args.source_scales, of(x_scale), 0};
    if (workspace_bytes > 0) args.workspace = placed(base, workspace);
    args.workspace_bytes = workspace_bytes;
    return args;
  }
};

// Places x, and fills it.
Status make_x(const QuantizeProblem& problem, QuantizeCallMemory& memory) {
  constexpr auto kElements = static_cast<std::size_t>(kRows * kCols);
  const auto bytes = static_cast<std::size_t>(size_of(problem.x.dtype));
  memory.x = memory.parts.take(kElements * bytes, "x");
  if (!is_fp8(problem.x.dtype)) return {};
  const auto layout = quantized_layout(problem.x, kRows, kCols);
  if (!layout) return tl::unexpected<Error>(layout.error());
  memory.x_scale =
      memory.parts.take(static_cast<std::size_t>(layout->scales.bytes()), "the scales of x");
  return {};
}

void fill_x(const QuantizeProblem& problem, QuantizeCallMemory& memory) {
  const auto put = [&](std::size_t at, const auto& value) {
    std::memcpy(memory.bytes.data() + at, &value, sizeof value);
  };
  const std::vector<std::uint16_t> numbers = numbers_of_x();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (is_fp8(problem.x.dtype)) {
      put(memory.x + i, code_of(i));
    } else if (problem.x.dtype == DType::kFP32) {
      put(memory.x + i * sizeof(std::uint32_t), static_cast<std::uint32_t>(numbers[i]) << 16);
    } else {
      put(memory.x + i * sizeof numbers[i], numbers[i]);
    }
  }
  if (memory.x_scale) {
    const auto scales = quantized_layout(problem.x, kRows, kCols)->scales;
    for (std::size_t i = 0; i < static_cast<std::size_t>(scales.outer * scales.ld); ++i)
      put(*memory.x_scale + i * sizeof(float), scale_of(i));
  }
}

Result<QuantizeCallMemory> make_memory(const QuantizeProblem& problem, const DeviceSpec& device) {
  QuantizeCallMemory memory;
  if (Status ok = make_x(problem, memory); !ok) return tl::unexpected<Error>(ok.error());
  const auto take = [&](std::int64_t bytes, std::string_view name) {
    return memory.parts.take(static_cast<std::size_t>(bytes), name);
  };
  if (!is_fp8(problem.q.dtype)) {
    memory.q = take(kRows * kCols * size_of(problem.q.dtype), "q");
  } else {
    for (const bool transposed : {false, true}) {
      if (transposed ? !has_transposed(problem.output) : !has_rowwise(problem.output)) continue;
      const auto layout = quantized_layout(problem, kRows, 1, transposed);
      if (!layout) return tl::unexpected<Error>(layout.error());
      (transposed ? memory.q_transposed : memory.q) =
          take(layout->data.bytes(), transposed ? "the transposed codes" : "the codes");
      (transposed ? memory.scale_transposed : memory.scale) =
          take(layout->scales.bytes(), transposed ? "the transposed scales" : "the scales");
    }
  }
  memory.workspace_bytes = static_cast<std::size_t>(workspace_bytes(problem, device, kRows));
  memory.workspace = memory.parts.take(memory.workspace_bytes, kWorkspace);
  memory.bytes.assign(memory.parts.bytes(), kPoison);
  fill_x(problem, memory);
  return memory;
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

QuantizeProblem problem_of(const Tested& tested) {
  const auto problem =
      parse_problem(fmt::format("{} rows=? cols={} x={} q={} out={}", tested.operation, kCols,
                                tested.x, tested.q, tested.out));
  return *problem_as<QuantizeProblem>(problem.value());
}

QuantizeConfig config_of(const QuantizeProblem& problem, const DeviceSpec& device) {
  return default_config(problem, kRows, device);
}

Answer test(ProofRun& run, const DeviceSpec& device, const QuantizeProblem& problem) {
  const auto internal = [](const Error& error) {
    return Answer{Answer::Kind::kUnknown, tl::unexpected<Error>(error), {}, false};
  };
  const auto given = make_memory(problem, device);
  if (!given) return internal(given.error());
  std::vector<std::uint8_t> expected = given->bytes;
  const auto compute_expected = [&]() -> Status {
    const auto call = complete(problem, given->at(expected.data()));
    return call ? run_on_host(problem, *call) : tl::unexpected<Error>(call.error());
  };
  Answer answer = run.test(
      "quantisers", problem, config_of(problem, device), device, given->bytes, compute_expected, 1,
      [&](void* base) { return given->at(base); },
      [&](const std::vector<std::uint8_t>& found) {
        return compare(given->parts, found, expected);
      });
  if (answer.kind == Answer::Kind::kWrong)
    answer.status = fail(ErrorCode::kDeviceError,
                         fmt::format("'{}': {}", to_text(problem), answer.status.error().message));
  return answer;
}

}  // namespace

Answer test_known_answers(ProofRun& run, const Target& target) {
  Answer answer;
  for (const Tested& tested : kTested) {
    answer = test(run, target.spec, problem_of(tested));
    if (answer.kind != Answer::Kind::kRight) return answer;
  }
  return answer;
}

std::vector<TestKernel> kernels_of_known_answers(const DeviceSpec& device) {
  std::vector<TestKernel> kernels;
  for (const Tested& tested : kTested) {
    const QuantizeProblem problem = problem_of(tested);
    kernels.push_back({problem, config_of(problem, device), kRows});
  }
  return kernels;
}

}  // namespace octile
