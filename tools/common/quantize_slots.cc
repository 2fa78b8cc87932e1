#include "tools/common/quantize_slots.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "generator/fused_source.h"
#include "generator/quantize_config.h"
#include "generator/quantize_layout.h"
#include "runtime/measure/tensor.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/quantize.h"
#include "runtime/reference/quantize_scale.h"
#include "tools/common/quantizing.h"

namespace octile::tools {
namespace {

constexpr std::uint64_t kSeed = 3;
constexpr float kGivenEncode = 96.0F;  // room for 4.7 standard deviations

// Groups of unlike sizes, a third to four thirds of the mean, as a router leaves them.
constexpr std::int64_t kGroups = 32;

// Offsets of packed groups, which share out `rows`; counts of masked ones, of at most `rows` each.
// Empty without groups.
std::vector<std::int32_t> group_table(const QuantizeProblem& p, std::int64_t rows) {
  std::vector<std::int32_t> table;
  const auto unlike = [](std::int64_t g) { return 3 * g % 9 - 4; };  // -4 to 4
  if (p.grouping == Grouping::kPacked) {
    for (std::int64_t g = 0; g <= kGroups; ++g) {
      const bool end = g == 0 || g == kGroups;
      const std::int64_t moved = end ? 0 : unlike(g) * rows / (kGroups * 9);
      table.push_back(static_cast<std::int32_t>(g * rows / kGroups + moved));
    }
  } else if (p.grouping == Grouping::kMasked) {
    for (std::int64_t g = 0; g < kGroups; ++g) {
      table.push_back(static_cast<std::int32_t>(rows / 2 + unlike(g) * rows / 9));
    }
  }
  return table;
}

std::int64_t groups_of(const QuantizeProblem& p) {
  return p.grouping == Grouping::kNone ? 0 : kGroups;
}

// Rows of x, whether a group has them or not.
std::int64_t rows_of_x(const QuantizeProblem& p, std::int64_t rows) {
  return p.grouping == Grouping::kMasked ? rows * kGroups : rows;
}

// Columns of the inputs of a source.
std::int64_t input_cols(const QuantizeProblem& p) {
  return source_shape(p.source).halves ? p.cols / 2 : p.cols;
}

// N(0, 1), rounded to bf16 first, in the type of the problem's x; as a quantiser leaves it in FP8.
std::vector<std::uint8_t> random_input(DType type, std::int64_t rows, std::int64_t cols) {
  constexpr float kSpread = 96.0F;
  const std::vector<std::uint16_t> bf16 = random_matrix(rows, cols, kSeed);
  const auto size = static_cast<std::size_t>(size_of(type));
  std::vector<std::uint8_t> bytes(bf16.size() * size);
  if (is_fp8(type)) {
    std::ranges::transform(bf16, bytes.begin(), [&](std::uint16_t bits) {
      return reference::to_fp8(kSpread * reference::bf16_to_float(bits), type);
    });
    return bytes;
  }
  if (type == DType::kBF16) std::memcpy(bytes.data(), bf16.data(), bytes.size());
  for (std::size_t i = 0; i < bf16.size() && type != DType::kBF16; ++i) {
    const float value = reference::bf16_to_float(bf16[i]);
    const std::uint16_t fp16 = reference::float_to_fp16(value);
    const void* element = type == DType::kFP32 ? static_cast<const void*>(&value) : &fp16;
    std::memcpy(&bytes[i * size], element, size);
  }
  return bytes;
}

Status allocate(const GpuSession& gpu, std::int64_t bytes, DeviceBuffer& buffer) {
  auto made = gpu.allocate(static_cast<std::size_t>(bytes));
  if (!made) return tl::unexpected<Error>(made.error());
  buffer = std::move(*made);
  return {};
}

// The scales of FP8 x; empty of other x.
Result<std::vector<std::uint8_t>> unit_scales(const QuantizeProblem& p, std::int64_t rows) {
  if (!is_fp8(p.x.dtype)) return std::vector<std::uint8_t>();
  const auto layout = quantized_layout(p.x, rows, p.cols);
  if (!layout) return tl::unexpected<Error>(layout.error());
  std::vector<std::uint8_t> scales(static_cast<std::size_t>(layout->scales.bytes()));
  reference::fill_scales_with_ones(*layout, p.x, 0, scales.data());
  return scales;
}

// Data and scales of an output; no scales of one that is dequantised.
struct OutputBytes {
  std::int64_t data = 0, scales = 0;
};
Result<OutputBytes> output_bytes(const QuantizeProblem& p, std::int64_t rows, bool transposed) {
  if (!is_fp8(p.q.dtype)) return OutputBytes{rows * p.cols * size_of(p.q.dtype), 0};
  return quantized_layout(p, rows, groups_of(p), transposed).map([](const QuantizedLayout& l) {
    return OutputBytes{l.data.bytes(), l.scales.bytes()};
  });
}

Status allocate_output(const GpuSession& gpu, const QuantizeProblem& p, std::int64_t rows,
                       bool transposed, DeviceBuffer& q, DeviceBuffer& scale) {
  const auto bytes = output_bytes(p, rows, transposed);
  if (!bytes) return tl::unexpected<Error>(bytes.error());
  if (Status ok = allocate(gpu, bytes->data, q); !ok) return ok;
  // What no group has is not written, and compared all the same.
  if (Status ok = q.fill(0, gpu.stream()); !ok) return ok;
  if (bytes->scales == 0) return {};
  if (Status ok = allocate(gpu, bytes->scales, scale); !ok) return ok;
  return scale.fill(0, gpu.stream());
}

// What the source reads beside x, the same values, and what is left beside the codes.
Status make_source(const GpuSession& gpu, const QuantizeProblem& p,
                   const std::vector<std::uint8_t>& input, QuantizeSlot& slot) {
  const SourceShape source = source_shape(p.source);
  for (int i = 1; i < source.inputs; ++i) {
    auto x = gpu.upload(input.data(), input.size());
    if (!x) return tl::unexpected<Error>(x.error());
    slot.more.push_back(std::move(*x));
  }
  constexpr std::int64_t kBytes = sizeof(float);
  if (source.rms_norm) {
    if (Status ok = allocate(gpu, slot.rows * kBytes, slot.rstd); !ok) return ok;
  }
  return p.bias_gradient ? allocate(gpu, p.cols * kBytes, slot.bias_gradient) : Status{};
}

struct HostOutput {
  std::vector<std::uint8_t> q, scale;
};

Result<HostOutput> host_output(const QuantizeProblem& p, std::int64_t rows, bool transposed) {
  return output_bytes(p, rows, transposed).map([](const OutputBytes& bytes) {
    return HostOutput{std::vector<std::uint8_t>(static_cast<std::size_t>(bytes.data)),
                      std::vector<std::uint8_t>(static_cast<std::size_t>(bytes.scales))};
  });
}

Result<bool> same(const GpuSession& gpu, const DeviceBuffer& q, const DeviceBuffer& scale,
                  const HostOutput& host) {
  const auto codes = download(gpu, q);
  if (!codes) return tl::unexpected<Error>(codes.error());
  if (host.scale.empty()) return *codes == host.q;
  const auto scales = download(gpu, scale);
  if (!scales) return tl::unexpected<Error>(scales.error());
  return *codes == host.q && *scales == host.scale;
}

}  // namespace

octile_quantize_args args_of(const QuantizeSlot& slot) {
  octile_quantize_args args{};
  args.rows = slot.rows;
  args.x = slot.x.pointer();
  args.x_scale = slot.x_scale.pointer();
  args.q = slot.q.pointer();
  args.scale = slot.scale.pointer();
  args.q_transposed = slot.q_transposed.pointer();
  args.scale_transposed = slot.scale_transposed.pointer();
  const std::array<const void**, 3> more{&args.x1, &args.x2, &args.x3};
  for (std::size_t i = 0; i < slot.more.size(); ++i) *more[i] = slot.more[i].pointer();
  args.rstd = static_cast<float*>(slot.rstd.pointer());
  args.bias_gradient = static_cast<float*>(slot.bias_gradient.pointer());
  args.workspace = slot.workspace.pointer();
  args.workspace_bytes = slot.workspace_bytes;
  const std::int64_t scales = std::max<std::int64_t>(1, slot.groups);
  if (auto* given = static_cast<float*>(slot.given.pointer()); given != nullptr) {
    args.encode = given;
    args.amax = given + scales;
  }
  const auto* table = static_cast<const std::int32_t*>(slot.group_table.pointer());
  (slot.packed ? args.offsets : args.counts) = table;
  args.groups = slot.groups;
  return args;
}

Result<std::vector<QuantizeSlot>> make_quantize_slots(const GpuSession& gpu, const PlanHandle& plan,
                                                      const QuantizeProblem& problem,
                                                      std::int64_t rows, int count) {
  const auto workspace = plan.workspace_bytes(rows);
  if (!workspace) return tl::unexpected<Error>(workspace.error());
  const std::vector<std::uint8_t> input =
      random_input(problem.x.dtype, rows_of_x(problem, rows), input_cols(problem));
  const auto scales = unit_scales(problem, rows);
  if (!scales) return tl::unexpected<Error>(scales.error());
  const std::vector<std::int32_t> table = group_table(problem, rows);
  std::vector<QuantizeSlot> slots;
  for (int i = 0; i < count; ++i) {
    QuantizeSlot slot;
    slot.rows = rows;
    auto x = gpu.upload(input.data(), input.size());
    if (!x) return tl::unexpected<Error>(x.error());
    slot.x = std::move(*x);
    if (Status ok = make_source(gpu, problem, input, slot); !ok) {
      return tl::unexpected<Error>(ok.error());
    }
    if (!scales->empty()) {
      auto x_scale = gpu.upload(scales->data(), scales->size());
      if (!x_scale) return tl::unexpected<Error>(x_scale.error());
      slot.x_scale = std::move(*x_scale);
    }
    slot.workspace_bytes = *workspace;
    Status ok = allocate(gpu, static_cast<std::int64_t>(*workspace), slot.workspace);
    if (ok && has_rowwise(problem.output)) {
      ok = allocate_output(gpu, problem, rows, false, slot.q, slot.scale);
    }
    if (ok && has_transposed(problem.output)) {
      ok = allocate_output(gpu, problem, rows, true, slot.q_transposed, slot.scale_transposed);
    }
    slot.groups = groups_of(problem);
    slot.packed = problem.grouping == Grouping::kPacked;
    if (ok && !table.empty()) {
      auto on_device = gpu.upload(table.data(), table.size() * sizeof table.front());
      if (!on_device) return tl::unexpected<Error>(on_device.error());
      slot.group_table = std::move(*on_device);
    }
    if (ok && problem.policy == ScalePolicy::kDelayed) {
      std::vector<float> values(2 * std::max<std::size_t>(1, static_cast<std::size_t>(slot.groups)),
                                0.0F);  // then the records, of no amax yet
      std::fill_n(values.begin(), values.size() / 2, kGivenEncode);
      auto given = gpu.upload(values.data(), values.size() * sizeof(float));
      if (!given) return tl::unexpected<Error>(given.error());
      slot.given = std::move(*given);
    }
    if (!ok) return tl::unexpected<Error>(ok.error());
    slots.push_back(std::move(slot));
  }
  return slots;
}

Result<bool> equals_reference(const GpuSession& gpu, const QuantizeProblem& problem,
                              const QuantizeSlot& slot) {
  const auto x = download(gpu, slot.x);
  if (!x) return tl::unexpected<Error>(x.error());
  auto row = host_output(problem, slot.rows, false);
  if (!row) return tl::unexpected<Error>(row.error());
  auto transposed = is_fp8(problem.q.dtype) ? host_output(problem, slot.rows, true) : HostOutput();
  if (!transposed) return tl::unexpected<Error>(transposed.error());
  const auto scales = unit_scales(problem, slot.rows);
  if (!scales) return tl::unexpected<Error>(scales.error());
  reference::QuantizeArgs args;
  args.rows = slot.rows;
  args.x = x->data();
  args.x_scale = scales->data();
  args.q = row->q.data();
  args.scale = row->scale.data();
  args.q_transposed = transposed->q.data();
  args.scale_transposed = transposed->scale.data();
  for (std::size_t i = 0; i < slot.more.size(); ++i) args.more[i] = x->data();
  std::vector<float> rstd(static_cast<std::size_t>(slot.rows));
  std::vector<float> bias(static_cast<std::size_t>(problem.cols));
  if (source_shape(problem.source).rms_norm) args.rstd = rstd.data();
  if (problem.bias_gradient) args.bias_gradient = bias.data();
  const std::vector<float> encode(static_cast<std::size_t>(kGroups), kGivenEncode);
  const std::vector<std::int32_t> table = group_table(problem, slot.rows);
  args.encode = encode.data();
  (slot.packed ? args.offsets : args.counts) = table.data();
  args.groups = slot.groups;
  if (Status ok = reference::quantize(problem, args); !ok) return tl::unexpected<Error>(ok.error());
  if (has_rowwise(problem.output)) {
    const auto equal = same(gpu, slot.q, slot.scale, *row);
    if (!equal || !*equal) return equal;
  }
  if (!has_transposed(problem.output)) return true;
  return same(gpu, slot.q_transposed, slot.scale_transposed, *transposed);
}

std::int64_t rows_in_all(const QuantizeProblem& problem, std::int64_t rows) {
  if (problem.grouping != Grouping::kMasked) return rows;
  const std::vector<std::int32_t> counts = group_table(problem, rows);
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

std::int64_t bytes_moved(const QuantizeProblem& problem, std::int64_t rows) {
  const std::int64_t in_all = rows_in_all(problem, rows);
  std::int64_t columns = in_all;  // of the transposed copy, whose groups are padded
  const std::vector<std::int32_t> table = group_table(problem, rows);
  if (problem.grouping == Grouping::kPacked) {
    columns = 0;
    for (std::size_t g = 1; g < table.size(); ++g) {
      columns += round_up(table[g] - table[g - 1], kGroupAlign);
    }
  }
  return problem.cols * (in_all * read_bytes_of(problem) +
                         (has_rowwise(problem.output) ? in_all * size_of(problem.q.dtype) : 0) +
                         (has_transposed(problem.output) ? columns : 0));
}

int read_bytes_of(const QuantizeProblem& problem) {
  const std::vector<Companion> companions = companions_of(problem);
  const auto has = [&](Companion c) { return std::ranges::count(companions, c); };
  const auto passes = 1 + has(Companion::kFirstPass);
  const SourceShape source = source_shape(problem.source);
  const int tensors = source.rms_norm ? 1 : source.inputs;  // a weight is one row
  const auto all = size_of(problem.x.dtype) * (tensors * passes + has(Companion::kRowNorm));
  return static_cast<int>(source.halves ? all / 2 : all);
}

int written_bytes_of(const QuantizeProblem& problem) {
  return problem.output == QuantizeOutput::kBoth ? 2 : size_of(problem.q.dtype);
}

}  // namespace octile::tools
