#include "tools/bench/suite.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace octile::tools {
namespace {

struct Shape {
  std::int64_t rows = 0, cols = 0;
};

// Problems of a suite: every text at every shape.
struct SuitePart {
  std::vector<Shape> shapes;
  const char* operation;
  std::vector<const char*> texts;  // what follows rows and cols
};

// 230 MB of bf16, the same by narrower rows, a quarter of it, and the size of a launch.
constexpr Shape kLarge{16384, 7168};
constexpr Shape kTall{32768, 4096};
constexpr Shape kMedium{4096, 7168};
constexpr Shape kSmall{128, 7168};

std::vector<SuitePart> quantize_suite() {
  const std::vector<Shape> fp8_shapes{kLarge, kMedium, kSmall};
  return {
      // Every granularity: the row-wise copy, the transposed one, and both.
      {{kLarge, kTall, kMedium, kSmall},
       "quantize",
       {"x=bf16 q=e4m3:1x128 out=row", "x=bf16 q=e4m3:1x128 out=col",
        "x=bf16 q=e4m3:1x128 out=both", "x=bf16 q=e4m3:128x128 out=row",
        "x=bf16 q=e4m3:128x128 out=col", "x=bf16 q=e4m3:128x128 out=both",
        "x=bf16 q=e4m3:1x32 out=row", "x=bf16 q=e4m3:1x32 out=both", "x=bf16 q=e4m3:32x32 out=row",
        "x=bf16 q=e4m3:32x32 out=both", "x=bf16 q=e4m3:row out=row", "x=bf16 q=e4m3:row out=both",
        "x=bf16 q=e4m3:tensor out=row", "x=bf16 q=e4m3:tensor out=both",
        "x=bf16 q=e4m3:tensor out=row policy=delayed",
        "x=bf16 q=e4m3:tensor out=both policy=delayed"}},
      // Fused sources.
      {{kLarge, kTall, kMedium},
       "quantize",
       {"x=bf16 q=e4m3:1x128 out=row src=silu_mul", "x=bf16 q=e4m3:1x128 out=both src=silu_mul",
        "x=bf16 q=e4m3:1x128 out=row src=dsilu_mul", "x=bf16 q=e4m3:1x128 out=both src=dsilu_mul",
        "x=bf16 q=e4m3:1x128 out=row src=gelu_tanh", "x=bf16 q=e4m3:1x128 out=row src=rmsnorm",
        "x=bf16 q=e4m3:1x32 out=row src=rmsnorm", "x=bf16 q=e4m3:row out=row src=rmsnorm",
        "x=bf16 q=e4m3:1x128 out=both dbias=1"}},
      // Other scale formats and input types.
      {{kLarge},
       "quantize",
       {"x=bf16 q=e4m3:1x32 out=col", "x=bf16 q=e4m3:1x128:ue8m0x4 out=row",
        "x=bf16 q=e4m3:1x128:ue8m0x4 out=both", "x=bf16 q=e5m2:1x128:bf16 out=row",
        "x=fp16 q=e4m3:1x128 out=both", "x=fp32 q=e4m3:1x128 out=row",
        "x=fp32 q=e4m3:1x128 out=both", "x=fp32 q=e4m3:128x128 out=row",
        "x=fp32 q=e4m3:128x128 out=both"}},
      // 32 groups of different sizes.
      {{kLarge, kMedium},
       "quantize",
       {"x=bf16 q=e4m3:1x128 out=row group=contiguous",
        "x=bf16 q=e4m3:1x128 out=col group=contiguous",
        "x=bf16 q=e4m3:1x128 out=both group=contiguous",
        "x=bf16 q=e4m3:1x32 out=both group=contiguous",
        "x=bf16 q=e4m3:tensor out=row group=contiguous",
        "x=bf16 q=e4m3:tensor out=both policy=delayed group=contiguous"}},
      // 32 groups of up to 1024 rows, half of which exist.
      {{{1024, 7168}},
       "quantize",
       {"x=bf16 q=e4m3:1x128 out=row group=masked", "x=bf16 q=e4m3:row out=row group=masked"}},
      // FP8 in.
      {fp8_shapes,
       "quantize",
       {"x=e4m3:1x128 q=e4m3:1x128 out=col", "x=e4m3:1x128:pow2 q=e4m3:1x128:pow2 out=col",
        "x=e4m3:1x32 q=e4m3:1x32 out=col", "x=e4m3:1x128 q=e4m3:1x128 out=both"}},
      {fp8_shapes,
       "dequantize",
       {"x=e4m3:1x128 q=bf16 out=row", "x=e4m3:1x128 q=fp32 out=row",
        "x=e4m3:128x128 q=bf16 out=row", "x=e4m3:1x32 q=bf16 out=row"}},
      {fp8_shapes, "transpose", {"x=e4m3:128x128 q=e4m3:128x128 out=col"}},
  };
}

bool is_selected(const std::string& text, const std::vector<std::string>& selected) {
  return selected.empty() || std::ranges::any_of(selected, [&](const std::string& word) {
           return text.find(word) != std::string::npos;
         });
}

void add_part(const SuitePart& part, const std::vector<std::string>& selected,
              std::vector<Work>& works) {
  for (const Shape& shape : part.shapes) {
    for (const char* rest : part.texts) {
      const std::string text =
          fmt::format("{} rows={} cols={} {}", part.operation, shape.rows, shape.cols, rest);
      if (!is_selected(text, selected)) continue;
      works.push_back({"", parse_problem(text).value(), {{shape.rows, shape.rows}}});
    }
  }
}

}  // namespace

std::string suite_names() { return "quantize"; }

Result<std::vector<Work>> suite(const std::string& name, const std::vector<std::string>& selected) {
  if (name != "quantize") {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--suite is '{}'; allowed: {}", name, suite_names()));
  }
  std::vector<Work> works;
  for (const SuitePart& part : quantize_suite()) add_part(part, selected, works);
  if (!works.empty()) return works;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("--select is '{}', which no problem of the suite {} contains",
                          fmt::join(selected, ","), name));
}

}  // namespace octile::tools
