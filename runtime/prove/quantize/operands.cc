#include "runtime/prove/quantize/operands.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "generator/quantize/config.h"
#include "generator/quantize/fused_source.h"
#include "generator/quantize/layout.h"
#include "generator/quantize/workspace.h"
#include "runtime/families/quantize/complete.h"
#include "runtime/measure/tensor.h"
#include "runtime/reference/quantize/reference_scale.h"

namespace octile {
namespace {

constexpr float kGivenEncode = 96.0F;  // saturates at 4.7 standard deviations

// The number of groups. Their sizes differ, from a third to four thirds of the mean, as a router's
// do.
constexpr std::int64_t kGroups = 32;
constexpr std::int64_t kStacked = 8;  // tensors, each of a weight's size

// Returns the offsets of contiguous groups, which share `rows` rows, or the counts of masked groups
// of at most `rows` rows each. Without groups it is empty.
std::vector<std::int32_t> group_table(const QuantizeProblem& p, std::int64_t rows) {
  std::vector<std::int32_t> table;
  const auto unlike = [](std::int64_t g) { return 3 * g % 9 - 4; };  // -4 to 4
  if (p.grouping == Grouping::kContiguous) {
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

// Returns the index of gathered rows, as far apart as rows of several ranks are.
std::vector<std::int32_t> gathered_rows(const QuantizeProblem& p, std::int64_t rows) {
  constexpr std::int64_t kRanks = 8;
  if (p.operation != QuantizeOperation::kGather) return {};
  std::vector<std::int32_t> index;
  for (std::int64_t rank = 0; rank < kRanks; ++rank)
    for (std::int64_t row = rank; row < rows; row += kRanks)
      index.push_back(static_cast<std::int32_t>(row));
  return index;
}

// Returns the layout of FP8 x.
Result<QuantizedLayout> source_layout(const QuantizeProblem& p, std::int64_t rows) {
  auto layout = quantized_layout(p.x, rows, p.cols);
  if (layout && p.operation == QuantizeOperation::kGather) lay_scales_by_row(*layout, rows, p.cols);
  if (layout && p.grouping == Grouping::kStacked) layout->scales.outer *= groups_of(p);
  return layout;
}

// Returns the rows of x, with those that no group has.
std::int64_t rows_of_x(const QuantizeProblem& p, std::int64_t rows) {
  const bool behind_each_other =
      p.grouping == Grouping::kMasked || p.grouping == Grouping::kStacked;
  return behind_each_other ? rows * groups_of(p) : rows;
}

Status allocate(const GpuSession& gpu, std::int64_t bytes, DeviceBuffer& buffer) {
  return gpu.allocate(static_cast<std::size_t>(bytes)).map([&](DeviceBuffer made) {
    buffer = std::move(made);
  });
}

template <typename T>
Status upload(const GpuSession& gpu, const std::vector<T>& values, DeviceBuffer& buffer) {
  if (values.empty()) return {};
  return gpu.upload(values.data(), values.size() * sizeof(T)).map([&](DeviceBuffer made) {
    buffer = std::move(made);
  });
}

// Return the number of tensors of x's size that the source reads, and their columns.
int inputs_of(const QuantizeProblem& p) {
  const SourceShape shape = source_shape(p.source);
  return shape.norms ? 1 : shape.inputs;
}
std::int64_t input_cols_of(const QuantizeProblem& p) {
  return source_shape(p.source).halves ? p.cols / 2 : p.cols;
}

// Makes codes and scales without special values.
Status make_fp8_input(const GpuSession& gpu, const QuantizeProblem& p, std::uint64_t seed,
                      QuantizeSlot& slot) {
  TensorType type = p.x;
  type.scale = ScaleFormat::kF32;
  type.granularity = Granularity::k1x128;  // has random scales here, which x does not take
  const bool keeps_random_scales = p.x.scale == ScaleFormat::kF32 &&
                                   p.operation != QuantizeOperation::kGather &&
                                   p.grouping == Grouping::kNone;
  auto made =
      random_tensor(gpu, keeps_random_scales ? p.x : type, rows_of_x(p, slot.rows), p.cols, seed);
  if (!made) return tl::unexpected<Error>(made.error());
  slot.x = std::move(made->data);
  if (keeps_random_scales) {
    slot.x_scale = std::move(made->scales);
    return {};
  }
  const auto layout = source_layout(p, slot.rows);
  if (!layout) return tl::unexpected<Error>(layout.error());
  std::vector<std::uint8_t> ones(static_cast<std::size_t>(layout->scales.bytes()));
  reference::fill_scales_with_ones(*layout, p.x, layout->scales.ld, ones.data());
  return upload(gpu, ones, slot.x_scale);
}

// Makes x, x1, ... of the source. Values depend on `seed` and the input's number.
Status make_inputs(const GpuSession& gpu, const QuantizeProblem& p, std::uint64_t seed,
                   Values values, QuantizeSlot& slot) {
  if (is_fp8(p.x.dtype)) return make_fp8_input(gpu, p, seed, slot);
  const SourceShape shape = source_shape(p.source);
  for (int i = 0; i < shape.inputs; ++i) {
    const auto input = static_cast<std::size_t>(i);
    const bool of_rows = shape.layer_norm && i == 3;  // fp32, one of each row
    const std::int64_t rows = shape.is_one_row(input) ? 1 : rows_of_x(p, slot.rows);
    auto made = random_values(gpu, of_rows ? DType::kFP32 : p.x.dtype,
                              rows * (of_rows ? 1 : input_cols_of(p)),
                              4 * seed + static_cast<std::uint64_t>(i), values);
    if (!made) return tl::unexpected<Error>(made.error());
    (i == 0 ? slot.x : slot.more[static_cast<std::size_t>(i - 1)]) = std::move(*made);
  }
  return {};
}

// Copies the inputs to another slot.
Status copy_inputs(const GpuSession& gpu, const QuantizeSlot& from, QuantizeSlot& to) {
  const auto copy = [&](const DeviceBuffer& source, DeviceBuffer& target) {
    return copy_of(gpu, source).map([&](DeviceBuffer made) { target = std::move(made); });
  };
  Status ok = copy(from.x, to.x);
  if (ok) ok = copy(from.x_scale, to.x_scale);
  for (std::size_t i = 0; i < from.more.size() && ok; ++i) ok = copy(from.more[i], to.more[i]);
  return ok;
}

Status allocate_output(const GpuSession& gpu, const QuantizeProblem& p, std::int64_t rows,
                       bool transposed, DeviceBuffer& q, DeviceBuffer& scale) {
  const auto bytes = output_bytes(p, rows, transposed);
  if (!bytes) return tl::unexpected<Error>(bytes.error());
  if (Status ok = allocate(gpu, bytes->data, q); !ok) return ok;
  // Elements of no group are not written, but they are compared.
  if (Status ok = q.fill(0, gpu.stream()); !ok) return ok;
  if (bytes->scales == 0) return {};
  if (Status ok = allocate(gpu, bytes->scales, scale); !ok) return ok;
  return scale.fill(0, gpu.stream());
}

Status allocate_outputs(const GpuSession& gpu, const QuantizeProblem& p, QuantizeSlot& slot) {
  if (has_rowwise(p.output)) {
    if (Status ok = allocate_output(gpu, p, slot.rows, false, slot.q, slot.scale); !ok) return ok;
  }
  if (!has_transposed(p.output)) return {};
  return allocate_output(gpu, p, slot.rows, true, slot.q_transposed, slot.scale_transposed);
}

// Returns the encode scales, then the amax records, which are 0.
std::vector<float> given_values(const QuantizeProblem& p) {
  if (p.policy != ScalePolicy::kDelayed) return {};
  const auto scales = static_cast<std::size_t>(std::max<std::int64_t>(1, groups_of(p)));
  std::vector<float> values(2 * scales, 0.0F);
  std::fill_n(values.begin(), scales, kGivenEncode);
  return values;
}

// Returns 1 / rms of rows that another kernel has normed, or the factors of a weighted source,
// different ones; empty if there is none or it is found here.
std::vector<float> given_rstd(const QuantizeProblem& p, std::int64_t rows) {
  const SourceShape shape = source_shape(p.source);
  if ((!shape.norms && !p.weighted) || shape.finds_rms) return {};
  std::vector<float> rstd(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < rstd.size(); ++i) rstd[i] = 0.5F + static_cast<float>(i % 7) / 8;
  return rstd;
}

// Makes a slot without inputs and outputs.
Result<QuantizeSlot> frame_of(const GpuSession& gpu, const QuantizeProblem& p, std::int64_t rows) {
  QuantizeSlot slot;
  slot.rows = rows;
  slot.groups = groups_of(p);
  slot.contiguous = p.grouping == Grouping::kContiguous;
  slot.weighted = p.weighted;
  const std::int64_t tensors = p.grouping == Grouping::kStacked ? groups_of(p) : 1;
  Status ok =
      allocate(gpu, tensors * workspace_of(p, gpu.spec().sm_count).bytes(rows), slot.workspace);
  if (ok && source_shape(p.source).finds_rms) ok = allocate(gpu, 4 * rows, slot.rstd);
  if (ok) ok = upload(gpu, given_rstd(p, rows_of_x(p, rows)), slot.rstd);
  if (ok && p.bias_gradient) ok = allocate(gpu, 4 * p.cols, slot.bias_gradient);
  if (ok) ok = upload(gpu, group_table(p, rows), slot.group_table);
  if (ok) ok = upload(gpu, gathered_rows(p, rows), slot.index);
  if (ok) ok = upload(gpu, given_values(p), slot.given);
  if (!ok) return tl::unexpected<Error>(ok.error());
  return slot;
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

QuantizeArguments args_of(const QuantizeSlot& slot) {
  QuantizeArguments args;
  args.rows = slot.rows;
  args.x = slot.x.pointer();
  args.q = slot.q.pointer();
  args.scale = slot.scale.pointer();
  args.q_transposed = slot.q_transposed.pointer();
  args.scale_transposed = slot.scale_transposed.pointer();
  args.workspace = slot.workspace.pointer();
  args.workspace_bytes = slot.workspace.bytes();
  args.source_scales.x_scale = slot.x_scale.pointer();
  args.fused.x1 = slot.more[0].pointer();
  args.fused.x2 = slot.more[1].pointer();
  args.fused.x3 = slot.more[2].pointer();
  auto* const of_rows = static_cast<float*>(slot.rstd.pointer());
  args.fused.rstd = slot.weighted ? nullptr : of_rows;
  args.fused.row_factor = slot.weighted ? of_rows : nullptr;
  args.fused.bias_gradient = static_cast<float*>(slot.bias_gradient.pointer());
  if (auto* given = static_cast<float*>(slot.given.pointer()); given != nullptr) {
    args.delayed.encode_scale = given;
    args.monitor.amax = given + std::max<std::int64_t>(1, slot.groups);
  }
  const auto* table = static_cast<const std::int32_t*>(slot.group_table.pointer());
  (slot.contiguous ? args.groups.offsets : args.groups.counts) = table;
  args.groups.group_count = slot.groups;
  args.gather.index = static_cast<const std::int32_t*>(slot.index.pointer());
  if (args.gather.index != nullptr) args.gather.x_rows = slot.rows;
  return args;
}

QuantizeArguments QuantizeInput::args() {
  const auto bytes_or_null = [](const std::vector<std::uint8_t>& bytes) -> const void* {
    return bytes.empty() ? nullptr : bytes.data();
  };
  QuantizeArguments args;
  args.rows = rows;
  args.x = x.data();
  args.source_scales.x_scale = bytes_or_null(x_scale);
  args.fused.x1 = bytes_or_null(more[0]);
  args.fused.x2 = bytes_or_null(more[1]);
  args.fused.x3 = bytes_or_null(more[2]);
  if (!rstd.empty() && weighted) args.fused.row_factor = rstd.data();
  if (!rstd.empty() && !weighted) args.fused.rstd = rstd.data();
  if (!bias_gradient.empty()) args.fused.bias_gradient = bias_gradient.data();
  if (!encode_scale.empty()) args.delayed.encode_scale = encode_scale.data();
  if (!group_table.empty())
    (contiguous ? args.groups.offsets : args.groups.counts) = group_table.data();
  args.groups.group_count = groups;
  if (!index.empty()) {
    args.gather.index = index.data();
    args.gather.x_rows = rows;
  }
  return args;
}

Status check_operands(const QuantizeProblem& p) {
  const auto refuse = [&](const char* why) {
    return fail(ErrorCode::kUnsupported, fmt::format("'{}' cannot be timed: there are no operands "
                                                     "for {}; allowed: whole tensors or groups, "
                                                     "codes and scales of them",
                                                     to_text(p), why));
  };
  if (p.tap) return refuse("a tap");
  if (p.pieces != PiecesStep::kNone) return refuse("many tensors");
  if (p.operation == QuantizeOperation::kAmax) return refuse("a maximum alone");
  return {};
}

Result<QuantizeSlot> make_input(const GpuSession& gpu, const QuantizeProblem& p, std::int64_t rows,
                                std::uint64_t seed, Values values) {
  if (Status ok = check_operands(p); !ok) return tl::unexpected<Error>(ok.error());
  auto slot = frame_of(gpu, p, rows);
  if (!slot) return slot;
  if (Status ok = make_inputs(gpu, p, seed, values, *slot); !ok)
    return tl::unexpected<Error>(ok.error());
  return slot;
}

Result<std::vector<QuantizeSlot>> make_slots(const GpuSession& gpu, const QuantizeProblem& p,
                                             std::int64_t rows, int count, std::uint64_t seed) {
  std::vector<QuantizeSlot> slots;
  for (int i = 0; i < count; ++i) {
    auto slot = i == 0 ? make_input(gpu, p, rows, seed, Values::kNormal) : frame_of(gpu, p, rows);
    if (!slot) return tl::unexpected<Error>(slot.error());
    Status ok = i == 0 ? Status{} : copy_inputs(gpu, slots.front(), *slot);
    if (ok) ok = allocate_outputs(gpu, p, *slot);
    if (!ok) return tl::unexpected<Error>(ok.error());
    slots.push_back(std::move(*slot));
  }
  if (Status ok = gpu.synchronize(); !ok) return tl::unexpected<Error>(ok.error());
  return slots;
}

Result<QuantizeInput> download_input(const GpuSession& gpu, const QuantizeProblem& p,
                                     const QuantizeSlot& slot) {
  QuantizeInput input;
  input.encode_scale = given_values(p);
  input.group_table = group_table(p, slot.rows);
  input.rstd = given_rstd(p, rows_of_x(p, slot.rows));
  input.index = gathered_rows(p, slot.rows);
  input.rstd.resize(slot.rstd.bytes() / sizeof(float));
  input.bias_gradient.resize(slot.bias_gradient.bytes() / sizeof(float));
  input.rows = slot.rows;
  input.groups = slot.groups;
  input.contiguous = slot.contiguous;
  input.weighted = slot.weighted;
  const auto take = [&](const DeviceBuffer& buffer, std::vector<std::uint8_t>& bytes) {
    return download(gpu, buffer).map([&](std::vector<std::uint8_t> made) {
      bytes = std::move(made);
    });
  };
  Status ok = take(slot.x, input.x);
  if (ok && slot.x_scale.bytes() > 0) ok = take(slot.x_scale, input.x_scale);
  for (std::size_t i = 0; i < slot.more.size() && ok; ++i) {
    if (slot.more[i].bytes() > 0) ok = take(slot.more[i], input.more[i]);
  }
  if (!ok) return tl::unexpected<Error>(ok.error());
  return input;
}

Result<bool> equals_reference(const GpuSession& gpu, const QuantizeProblem& p,
                              const QuantizeSlot& slot) {
  auto input = download_input(gpu, p, slot);
  if (!input) return tl::unexpected<Error>(input.error());
  auto row = host_output(p, slot.rows, false);
  if (!row) return tl::unexpected<Error>(row.error());
  auto transposed = is_fp8(p.q.dtype) ? host_output(p, slot.rows, true) : HostOutput();
  if (!transposed) return tl::unexpected<Error>(transposed.error());
  QuantizeArguments args = input->args();
  args.q = row->q.data();
  args.scale = row->scale.data();
  if (has_transposed(p.output)) {
    args.q_transposed = transposed->q.data();
    args.scale_transposed = transposed->scale.data();
  }
  const auto call = complete(p, args);
  if (!call) return tl::unexpected<Error>(call.error());
  if (Status ok = run_on_host(p, *call); !ok) return tl::unexpected<Error>(ok.error());
  if (has_rowwise(p.output)) {
    const auto equal = same(gpu, slot.q, slot.scale, *row);
    if (!equal || !*equal) return equal;
  }
  if (!has_transposed(p.output)) return true;
  return same(gpu, slot.q_transposed, slot.scale_transposed, *transposed);
}

Result<OutputBytes> output_bytes(const QuantizeProblem& p, std::int64_t rows, bool transposed) {
  if (!is_fp8(p.q.dtype)) return OutputBytes{rows * p.cols * size_of(p.q.dtype), 0};
  return quantized_layout(p, rows, groups_of(p), transposed).map([](const QuantizedLayout& l) {
    return OutputBytes{l.data.bytes(), l.scales.bytes()};
  });
}

std::int64_t groups_of(const QuantizeProblem& p) {
  if (p.grouping == Grouping::kStacked) return kStacked;
  return p.grouping == Grouping::kNone ? 0 : kGroups;
}

std::int64_t rows_in_all(const QuantizeProblem& p, std::int64_t rows) {
  if (p.grouping != Grouping::kMasked) return rows_of_x(p, rows);
  const std::vector<std::int32_t> counts = group_table(p, rows);
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

int read_bytes_of(const QuantizeProblem& p) {
  const std::vector<Companion> companions = companions_of(p, {});  // every configuration has these
  const auto count = [&](Companion c) { return std::ranges::count(companions, c); };
  const auto passes = 1 + count(Companion::kFirstPass);
  const auto all = size_of(p.x.dtype) * (inputs_of(p) * passes + count(Companion::kRowNorm));
  return static_cast<int>(source_shape(p.source).halves ? all / 2 : all);
}

int written_bytes_of(const QuantizeProblem& p) {
  return p.output == QuantizeOutput::kBoth ? 2 : size_of(p.q.dtype);
}

std::int64_t bytes_touched(const QuantizeProblem& p, std::int64_t rows) {
  const std::int64_t in_all = rows_in_all(p, rows);
  std::int64_t columns = in_all;  // of the transposed copy, with the padding of its groups
  const std::vector<std::int32_t> table = group_table(p, rows);
  if (p.grouping == Grouping::kContiguous) {
    columns = 0;
    for (std::size_t g = 1; g < table.size(); ++g) {
      columns += round_up(table[g] - table[g - 1], kGroupAlign);
    }
  }
  return in_all * input_cols_of(p) * inputs_of(p) * size_of(p.x.dtype) +
         p.cols * ((has_rowwise(p.output) ? in_all * size_of(p.q.dtype) : 0) +
                   (has_transposed(p.output) ? columns : 0));
}

std::int64_t bytes_moved(const QuantizeProblem& p, std::int64_t rows) {
  const std::int64_t once = input_cols_of(p) * inputs_of(p) * size_of(p.x.dtype);
  return bytes_touched(p, rows) + rows_in_all(p, rows) * (p.cols * read_bytes_of(p) - once);
}

Result<std::int64_t> scale_bytes(const QuantizeProblem& p, std::int64_t rows) {
  std::int64_t bytes = 0;
  for (const bool transposed : {false, true}) {
    if (transposed ? !has_transposed(p.output) : !has_rowwise(p.output)) continue;
    const auto output = output_bytes(p, rows, transposed);
    if (!output) return tl::unexpected<Error>(output.error());
    bytes += output->scales;
  }
  if (is_fp8(p.x.dtype)) {
    const auto input = source_layout(p, rows);
    if (!input) return tl::unexpected<Error>(input.error());
    bytes += input->scales.bytes();
  }
  if (p.grouping != Grouping::kMasked) return bytes;
  const std::int64_t capacity = rows * groups_of(p);
  return capacity == 0 ? 0 : bytes * rows_in_all(p, rows) / capacity;
}

}  // namespace octile
