#include "plans.h"

#include <chrono>
#include <cstddef>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include "fork.h"
#include "types.h"

namespace octile::binding {
namespace {

// Guarded by ProcessWide::kPlans.
struct Process {
  octile_library* library = nullptr;
  std::unordered_map<std::string, octile_plan*> plans;  // by device and problem
};
Process& this_process = *new Process;

// A child of fork may not use its parent's handles.
const InChild kForgetsParent([] { this_process = {}; });

using SteadyClock = std::chrono::steady_clock;
// Until when prepares of this thread search.
thread_local SteadyClock::time_point searches_until;

octile_library* locked_library() {
  octile_library*& library = this_process.library;
  if (library == nullptr) check(octile_library_create(nullptr, &library));
  return library;
}

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

std::size_t workspace_size(octile_plan* plan, std::int64_t tokens) {
  std::size_t bytes = 0;
  check(octile_plan_workspace_size(plan, tokens, &bytes));
  return bytes;
}

}  // namespace

void check(octile_status status) {
  if (status == OCTILE_OK) return;
  std::string text = std::string(octile_status_name(status)) + ": " + octile_last_error();
  if (status == OCTILE_INVALID_ARGUMENT) throw std::invalid_argument(text);
  throw std::runtime_error(text);
}

std::string device_name(std::int32_t device) {
  return device < 0 ? "host" : "cuda:" + std::to_string(device);
}

void tune_prepares(double seconds) {
  const std::chrono::duration<double> time(seconds);
  searches_until =
      seconds > 0 ? SteadyClock::now() + std::chrono::duration_cast<SteadyClock::duration>(time)
                  : SteadyClock::time_point();
}

octile_prepare_options prepare_options() {
  octile_prepare_options options{};
  options.struct_size = sizeof options;
  const std::chrono::duration<double> left = searches_until - SteadyClock::now();
  if (left.count() > 0) {
    options.flags = OCTILE_PREPARE_TUNE;
    options.tune_seconds = left.count();
  }
  return options;
}

void prepare(octile_plan* plan, std::int64_t lo, std::int64_t hi) {
  const octile_prepare_options options = prepare_options();
  check(octile_plan_prepare_with(plan, lo, hi, &options));
}

octile_library* library() {
  const std::scoped_lock lock(process_mutex(ProcessWide::kPlans));
  return locked_library();
}

octile_plan* plan_of(const std::string& problem, const Place& place) {
  const std::string device = device_name(place.host ? -1 : place.device_index);
  const std::scoped_lock lock(process_mutex(ProcessWide::kPlans));
  octile_plan*& plan = this_process.plans[device + ' ' + problem];
  if (plan != nullptr) return plan;
  check(octile_plan_create(locked_library(), device.c_str(), problem.c_str(), &plan));
  return plan;
}

std::string plan_problems() {
  std::string lines;
  const std::scoped_lock lock(process_mutex(ProcessWide::kPlans));
  for (const auto& [key, plan] : this_process.plans) {
    if (plan != nullptr) lines += key.substr(key.find(' ') + 1) + '\n';
  }
  return lines;
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
  args.q = outputs.rowwise.codes;
  args.ldq = outputs.rowwise.ld;
  args.scale = outputs.rowwise.scales;
  args.scale_ld = outputs.rowwise.scale_ld;
  args.q_transposed = outputs.transposed.codes;
  args.scale_transposed = outputs.transposed.scales;
  octile_quantize_source_scales source{};
  source.struct_size = sizeof source;
  if (call.x_scale != nullptr) {
    source.x_scale = call.x_scale;
    source.x_scale_ld = call.x_scale_ld;
    args.source_scales = &source;
  }
  octile_quantize_gather gather{};
  gather.struct_size = sizeof gather;
  if (call.index != nullptr) {
    gather.index = call.index;
    gather.x_rows = call.x_rows;
    args.gather = &gather;
  }
  octile_quantize_groups groups{};
  groups.struct_size = sizeof groups;
  if (call.offsets != nullptr || call.counts != nullptr) {
    groups.group_count = call.groups;
    groups.offsets = call.offsets;
    groups.counts = call.counts;
    args.groups = &groups;
  }
  octile_quantize_fused fused{};
  fused.struct_size = sizeof fused;
  if (call.x1 != nullptr || call.sums != nullptr || call.row_factor != nullptr) {
    fused.x1 = call.x1;
    fused.x2 = call.x2;
    fused.x3 = call.x3;
    fused.ldx1 = call.ldx1;
    fused.ldx2 = call.ldx2;
    fused.rstd = call.rstd;
    fused.row_factor = call.row_factor;
    fused.bias_gradient = call.sums;
    args.fused = &fused;
  }
  octile_quantize_delayed delayed{.struct_size = sizeof delayed, .encode_scale = call.encode};
  if (call.encode != nullptr) args.delayed = &delayed;
  octile_quantize_monitor monitor{};
  monitor.struct_size = sizeof monitor;
  if (call.amax != nullptr || call.recorded != nullptr) {
    monitor.amax = call.amax;
    monitor.encode_scale = call.recorded;
    args.monitor = &monitor;
  }
  const Workspace space(place, workspace_size(plan, call.rows), args);
  run_prepared(plan, call.rows, [&] { return octile_quantize_run(plan, &args, place.stream); });
}

void multiply(octile_plan* plan, const Place& place, octile_gemm_args args) {
  args.struct_size = sizeof args;
  const Workspace space(place, workspace_size(plan, args.tokens), args);
  const std::int64_t expected = args.groups == nullptr ? 0 : args.groups->expected_tokens;
  run_prepared(plan, expected > 0 ? expected : args.tokens,
               [&] { return octile_gemm_run(plan, &args, place.stream); });
}

}  // namespace octile::binding
