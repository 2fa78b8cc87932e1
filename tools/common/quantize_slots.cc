#include "tools/common/quantize_slots.h"

#include <array>
#include <cstring>
#include <utility>

#include "generator/layout.h"
#include "generator/quantize_config.h"
#include "runtime/measure/tensor.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/quantize.h"
#include "tools/common/quantizing.h"

namespace octile::tools {
namespace {

constexpr std::uint64_t kSeed = 3;
constexpr std::array<float, 2> kGiven{96.0F,
                                      0.0F};  // room for 4.7 standard deviations; no amax yet

// N(0, 1), rounded to bf16 first, in the type of the problem's x.
std::vector<std::uint8_t> random_input(DType type, std::int64_t rows, std::int64_t cols) {
  const std::vector<std::uint16_t> bf16 = random_matrix(rows, cols, kSeed);
  const auto size = static_cast<std::size_t>(size_of(type));
  std::vector<std::uint8_t> bytes(bf16.size() * size);
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

Status allocate_output(const GpuSession& gpu, const QuantizeProblem& p, std::int64_t rows,
                       bool transposed, DeviceBuffer& q, DeviceBuffer& scale) {
  const auto layout = quantized_layout(p.q, rows, p.cols, 0, transposed);
  if (!layout) return tl::unexpected<Error>(layout.error());
  if (Status ok = allocate(gpu, layout->data.bytes(), q); !ok) return ok;
  return allocate(gpu, layout->scales.bytes(), scale);
}

struct HostOutput {
  std::vector<std::uint8_t> q, scale;
};

Result<HostOutput> host_output(const QuantizeProblem& p, std::int64_t rows, bool transposed) {
  return quantized_layout(p.q, rows, p.cols, 0, transposed).map([](const QuantizedLayout& l) {
    return HostOutput{std::vector<std::uint8_t>(static_cast<std::size_t>(l.data.bytes())),
                      std::vector<std::uint8_t>(static_cast<std::size_t>(l.scales.bytes()))};
  });
}

Result<bool> same(const GpuSession& gpu, const DeviceBuffer& q, const DeviceBuffer& scale,
                  const HostOutput& host) {
  const auto codes = download(gpu, q);
  if (!codes) return tl::unexpected<Error>(codes.error());
  const auto scales = download(gpu, scale);
  if (!scales) return tl::unexpected<Error>(scales.error());
  return *codes == host.q && *scales == host.scale;
}

}  // namespace

octile_quantize_args args_of(const QuantizeSlot& slot) {
  octile_quantize_args args{};
  args.rows = slot.rows;
  args.x = slot.x.pointer();
  args.q = slot.q.pointer();
  args.scale = slot.scale.pointer();
  args.q_transposed = slot.q_transposed.pointer();
  args.scale_transposed = slot.scale_transposed.pointer();
  args.workspace = slot.workspace.pointer();
  args.workspace_bytes = slot.workspace_bytes;
  if (auto* given = static_cast<float*>(slot.given.pointer()); given != nullptr) {
    args.encode = given;
    args.amax = given + 1;
  }
  return args;
}

Result<std::vector<QuantizeSlot>> make_quantize_slots(const GpuSession& gpu, const PlanHandle& plan,
                                                      const QuantizeProblem& problem,
                                                      std::int64_t rows, int count) {
  const auto workspace = plan.workspace_bytes(rows);
  if (!workspace) return tl::unexpected<Error>(workspace.error());
  const std::vector<std::uint8_t> input = random_input(problem.x.dtype, rows, problem.cols);
  std::vector<QuantizeSlot> slots;
  for (int i = 0; i < count; ++i) {
    QuantizeSlot slot;
    slot.rows = rows;
    auto x = gpu.upload(input.data(), input.size());
    if (!x) return tl::unexpected<Error>(x.error());
    slot.x = std::move(*x);
    slot.workspace_bytes = *workspace;
    Status ok = allocate(gpu, static_cast<std::int64_t>(*workspace), slot.workspace);
    if (ok && has_rowwise(problem.output)) {
      ok = allocate_output(gpu, problem, rows, false, slot.q, slot.scale);
    }
    if (ok && has_transposed(problem.output)) {
      ok = allocate_output(gpu, problem, rows, true, slot.q_transposed, slot.scale_transposed);
    }
    if (ok && problem.policy == ScalePolicy::kDelayed) {
      auto given = gpu.upload(kGiven.data(), sizeof kGiven);
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
  auto transposed = host_output(problem, slot.rows, true);
  if (!transposed) return tl::unexpected<Error>(transposed.error());
  reference::QuantizeArgs args;
  args.rows = slot.rows;
  args.x = x->data();
  args.q = row->q.data();
  args.scale = row->scale.data();
  args.q_transposed = transposed->q.data();
  args.scale_transposed = transposed->scale.data();
  args.encode = kGiven.data();
  if (Status ok = reference::quantize(problem, args); !ok) return tl::unexpected<Error>(ok.error());
  if (has_rowwise(problem.output)) {
    const auto equal = same(gpu, slot.q, slot.scale, *row);
    if (!equal || !*equal) return equal;
  }
  if (!has_transposed(problem.output)) return true;
  return same(gpu, slot.q_transposed, slot.scale_transposed, *transposed);
}

int read_bytes_of(const QuantizeProblem& problem) {
  return size_of(problem.x.dtype) * (first_pass_of(problem) == FirstPass::kNone ? 1 : 2);
}

int written_bytes_of(const QuantizeProblem& problem) {
  return problem.output == QuantizeOutput::kBoth ? 2 : 1;
}

}  // namespace octile::tools
