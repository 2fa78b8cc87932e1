#include "plans.h"

#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <unordered_map>

#include "fork.h"
#include "types.h"

namespace octile::binding {
namespace {

struct PlanKeyHash {
  std::size_t operator()(const PlanKey& key) const {
    std::uint64_t hash = key.kind * 0x9E3779B97F4A7C15U + static_cast<std::uint64_t>(key.device);
    hash = (hash ^ static_cast<std::uint64_t>(key.rows)) * 0x9E3779B97F4A7C15U;
    hash = (hash ^ static_cast<std::uint64_t>(key.cols)) * 0x9E3779B97F4A7C15U;
    return hash ^ (hash >> 32U);
  }
};

// Guarded by ProcessWide::kPlans.
struct Process {
  octile_library* library = nullptr;
  std::unordered_map<std::string, octile_plan*> plans;  // by device and problem
  std::unordered_map<PlanKey, octile_plan*, PlanKeyHash> plans_by_key;
};
Process& this_process = *new Process;

// A child of fork may not use its parent's handles.
const InChild kForgetsParent([] { this_process = {}; });

// Calls `run` again once the kernels for `tokens` are prepared, if they were not.
template <typename Run>
void run_prepared(octile_plan* plan, std::int64_t tokens, Run run) {
  octile_status status = run();
  if (status == OCTILE_NOT_PREPARED || status == OCTILE_CAPTURING) {
    check(octile_plan_prepare(plan, tokens, tokens, OCTILE_PREPARE_DEFAULT));
    status = run();
  }
  check(status);
}

// Allocates the workspace of a call and writes where it is. It may be freed once the work is
// enqueued: PyTorch gives the memory to later work of the same stream only.
template <typename Args>
std::optional<Tensor> give_workspace(octile_plan* plan, const Place& place, std::int64_t tokens,
                                     Args& args) {
  check(octile_plan_workspace_size(plan, tokens, &args.workspace_bytes));
  if (args.workspace_bytes == 0) return std::nullopt;
  Tensor space = empty(place, {static_cast<std::int64_t>(args.workspace_bytes)}, torch_uint8());
  args.workspace = space.data_ptr();
  return space;
}

}  // namespace

void check(octile_status status) {
  if (status == OCTILE_OK) return;
  std::string text = std::string(octile_status_name(status)) + ": " + octile_last_error();
  if (status == OCTILE_INVALID_ARGUMENT) throw std::invalid_argument(text);
  throw std::runtime_error(text);
}

octile_plan* plan_of(const std::string& problem, const Place& place) {
  const std::string device = place.host ? "host" : "cuda:" + std::to_string(place.device_index);
  Process& here = this_process;
  const std::scoped_lock lock(process_mutex(ProcessWide::kPlans));
  octile_plan*& plan = here.plans[device + ' ' + problem];
  if (plan != nullptr) return plan;
  if (here.library == nullptr) check(octile_library_create(nullptr, &here.library));
  check(octile_plan_create(here.library, device.c_str(), problem.c_str(), &plan));
  return plan;
}

std::string problem_texts() {
  std::set<std::string> texts;
  {
    const std::scoped_lock lock(process_mutex(ProcessWide::kPlans));
    for (const auto& [key, plan] : this_process.plans) {
      if (plan != nullptr) texts.insert(key.substr(key.find(' ') + 1));
    }
  }
  std::string lines;
  for (const std::string& text : texts) lines += text + '\n';
  return lines;
}

octile_plan* known_plan(const PlanKey& key) {
  Process& here = this_process;
  const std::scoped_lock lock(process_mutex(ProcessWide::kPlans));
  const auto found = here.plans_by_key.find(key);
  return found == here.plans_by_key.end() ? nullptr : found->second;
}

void remember_plan(const PlanKey& key, octile_plan* plan) {
  Process& here = this_process;
  const std::scoped_lock lock(process_mutex(ProcessWide::kPlans));
  here.plans_by_key[key] = plan;
}

Quantized allocate(octile_plan* plan, const Place& place, std::int64_t rows, std::int64_t groups,
                   bool transposed, const octile_tensor_type& type) {
  octile_quantized_layout layout{};
  layout.struct_size = sizeof layout;
  check(octile_plan_quantized_layout(plan, rows, groups, transposed ? 1 : 0, &layout));
  return {.codes = empty(place, {layout.data_rows, layout.data_ld}, torch_type(type.dtype)),
          .scales = empty(place, {layout.scale_bytes / scale_bytes(type.scale_format)},
                          torch_scale_type(type.scale_format))};
}

const Quantized& present(const std::optional<Quantized>& copy) {
  if (!copy) throw std::logic_error("octile: an FP8 copy that is needed was not made");
  return *copy;
}

Target target_of(const Quantized& output) {
  return {.codes = output.codes.data_ptr(),
          .ld = output.codes.size(1),
          .scales = output.scales.data_ptr()};
}

void quantize(octile_plan* plan, const Place& place, const QuantizeCall& call,
              const QuantizeOutputs& outputs) {
  octile_quantize_args args{};
  args.struct_size = sizeof args;
  args.rows = call.rows;
  args.x = call.x;
  args.ldx = call.ldx;
  args.skip = call.skip;
  args.q = outputs.rowwise.codes;
  args.ldq = outputs.rowwise.ld;
  args.scale = outputs.rowwise.scales;
  args.q_transposed = outputs.transposed.codes;
  args.scale_transposed = outputs.transposed.scales;
  octile_quantize_fused fused{};
  fused.struct_size = sizeof fused;
  if (outputs.column_sums != nullptr) {
    fused.bias_gradient = static_cast<float*>(outputs.column_sums->data_ptr());
    args.fused = &fused;
  }
  octile_quantize_groups groups{};
  groups.struct_size = sizeof groups;
  if (call.offsets != nullptr) {
    groups.group_count = call.groups;
    groups.offsets = call.offsets;
    args.groups = &groups;
  }
  octile_quantize_source_scales source{};
  source.struct_size = sizeof source;
  if (call.x_scale != nullptr) {
    source.x_scale = call.x_scale;
    args.source_scales = &source;
  }
  octile_quantize_delayed delayed{};
  delayed.struct_size = sizeof delayed;
  if (call.encode_scale != nullptr) {
    delayed.encode_scale = call.encode_scale;
    args.delayed = &delayed;
  }
  octile_quantize_monitor monitor{};
  monitor.struct_size = sizeof monitor;
  if (call.amax != nullptr) {
    monitor.amax = call.amax;
    args.monitor = &monitor;
  }
  const auto space = give_workspace(plan, place, call.rows, args);
  run_prepared(plan, call.rows, [&] { return octile_quantize_run(plan, &args, place.stream); });
}

void run_scale_update(octile_plan* plan, const Place& place, octile_scale_update_args args) {
  args.struct_size = sizeof args;
  run_prepared(plan, 1, [&] { return octile_scale_update_run(plan, &args, place.stream); });
}

void prepare(octile_plan* plan, std::int64_t lo, std::int64_t hi) {
  check(octile_plan_prepare(plan, lo, hi, OCTILE_PREPARE_DEFAULT));
}

void multiply(octile_plan* plan, const Place& place, octile_gemm_args args) {
  args.struct_size = sizeof args;
  const auto space = give_workspace(plan, place, args.tokens, args);
  run_prepared(plan, args.tokens, [&] { return octile_gemm_run(plan, &args, place.stream); });
}

}  // namespace octile::binding
