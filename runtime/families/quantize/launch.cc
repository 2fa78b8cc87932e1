#include "runtime/families/quantize/launch.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "generator/core/types.h"
#include "generator/quantize/fingerprint.h"
#include "generator/quantize/grid.h"
#include "generator/quantize/kernel_args.h"
#include "generator/quantize/stack.h"
#include "runtime/launch/argument_checks.h"

namespace octile {
namespace {

static_assert(sizeof(octile_fingerprint) == kFingerprintBytes);

void fill_plain(const QuantizeCall& call, QuantizeKernelArgs& k) {
  k.x = call.x;
  k.ldx = call.ldx;
  k.q = call.q;
  k.ldq = call.ldq;
  k.scale = call.scale;
  k.scale_ld = call.scale_ld;
  k.scale_group_bytes = call.scale_group_bytes;
  k.q_transposed = call.q_transposed;
  k.ldq_transposed = call.ldq_transposed;
  k.scale_transposed = call.scale_transposed;
  k.scale_ld_transposed = call.scale_ld_transposed;
  k.skip = call.skip;
  k.rows = call.rows;
}

void fill_features(const QuantizeCall& call, QuantizeKernelArgs& k) {
  k.encode_scale = call.encode_scale != nullptr ? const_cast<float*>(call.encode_scale)  // read
                                                : call.recorded_scale;
  k.amax = reinterpret_cast<std::uint32_t*>(call.amax);
  k.nonfinite = reinterpret_cast<unsigned long long*>(call.nonfinite);
  k.x_scale = call.x_scale;
  k.x_scale_ld = call.x_scale_ld;
  std::ranges::copy(call.more, std::begin(k.more));
  std::ranges::copy(call.more_ld, std::begin(k.more_ld));
  // The kernels read one value of each row.
  k.rstd = call.row_factor != nullptr ? const_cast<float*>(call.row_factor) : call.rstd;
  k.bias_gradient = call.bias_gradient;
  k.tap = call.tap;
  k.groups_at = call.row_index;
  k.groups = call.row_count;
}

void fill_workspace(const ResolvedQuantize& r, const QuantizeCall& call, QuantizeKernelArgs& k) {
  k.maxima = static_cast<std::uint32_t*>(call.workspace);
  k.bias_partials = reinterpret_cast<float*>(static_cast<char*>(call.workspace) +
                                             r.grid.workspace.bias_offset(call.rows));
}

// The range of OCTILE_AMAX is the whole tensor, and its maximum the caller's.
void fill_range(QuantizeKernelArgs& k) {
  k.range_last_row = k.rows - 1;
  k.range_end_col = k.cols;
  k.range_amax = k.amax;
}

QuantizeKernelArgs kernel_args(const ResolvedQuantize& r, const QuantizeCall& call) {
  QuantizeKernelArgs k;
  k.cols = r.problem.cols;
  fill_plain(call, k);
  fill_features(call, k);
  fill_workspace(r, call, k);
  if (is_of_range(r.problem)) fill_range(k);
  return k;
}

Result<std::int64_t> tile_blocks(const ResolvedQuantize& r, const QuantizeKernelArgs& k) {
  return within_a_grid(k.rows, k.cols, r.grid.tiles.blocks(k.rows, k.groups));
}

// Thread blocks of a launch: those of one tensor, and the tensors that have as many.
struct Blocks {
  std::int64_t of_tensor = 0;
  std::int64_t tensors = 1;
};

template <typename Args>
Status launch_kernel(const LaunchSite& site, const KernelHandle& kernel, const Blocks& blocks,
                     int threads, Args& args, int smem_bytes = 0) {
  std::array<void*, 1> parameters{&args};
  CUlaunchConfig config = launch_config(site, static_cast<unsigned int>(blocks.of_tensor),
                                        static_cast<unsigned int>(threads));
  config.gridDimY = static_cast<unsigned int>(blocks.tensors);
  config.sharedMemBytes = static_cast<unsigned int>(smem_bytes);
  return launch(site, kernel, config, parameters.data());
}

bool is_stacked(const ResolvedQuantize& r) { return r.problem.grouping == Grouping::kStacked; }

// The tensors that have thread blocks of their own.
std::int64_t tensors_of(const ResolvedQuantize& r, const QuantizeKernelArgs& k) {
  return is_stacked(r) ? k.groups : 1;
}

// Launches a kernel of one tensor, or of stacked ones.
Status launch_tensors(const LaunchSite& site, const ResolvedQuantize& r, const KernelHandle& kernel,
                      std::int64_t blocks, int threads, QuantizeKernelArgs& k, int smem_bytes = 0) {
  if (!is_stacked(r)) return launch_kernel(site, kernel, {blocks}, threads, k, smem_bytes);
  StackKernelArgs all = stack_args(r.problem, k, r.workspace_bytes(k.rows));
  return launch_kernel(site, kernel, {blocks, k.groups}, threads, all, smem_bytes);
}

Status launch_cluster(const LaunchSite& site, const ResolvedQuantize& r, QuantizeKernelArgs& k) {
  std::array<void*, 1> parameters{&k};
  const CUlaunchConfig config = launch_config(site, static_cast<unsigned int>(r.cluster),
                                              static_cast<unsigned int>(r.threads));
  return launch(site, r.kernel, config, parameters.data(), r.cluster);
}

// Finds out if x has changed, and lets the kernels behind it do nothing if it has not.
Status launch_fingerprint(const LaunchSite& site, const ResolvedQuantize& r,
                          const QuantizeCall& call, QuantizeKernelArgs& k) {
  if (!r.problem.skip_unchanged) return {};
  const std::int64_t element = size_of(r.problem.x.dtype);
  FingerprintKernelArgs f =
      fingerprint_args(call.x, call.rows, r.problem.cols * element, call.ldx * element);
  f.state = call.fingerprint;
  f.tensor_bytes = call.rows * call.ldx * element;
  // Elements of a stacked tensor begin at multiples of 16 bytes if all tensors do.
  if (is_stacked(r) && f.tensor_bytes % 16 != 0) f.aligned = 0;
  k.skip = &call.fingerprint->unchanged;
  const std::int64_t blocks = std::min(f.rows * f.pieces_of_row, r.fingerprint_blocks);
  return launch_kernel(site, r.companion(Companion::kFingerprint), {blocks, tensors_of(r, k)},
                       kFingerprintThreads, f);
}

Status launch_row_norm(const LaunchSite& site, const ResolvedQuantize& r, QuantizeKernelArgs& k) {
  const KernelHandle& norm = r.companion(Companion::kRowNorm);
  if (norm.anywhere == nullptr) return {};
  return launch_kernel(site, norm, {k.rows}, kNormThreads, k);
}

Status clear_maxima(const LaunchSite& site, const ResolvedQuantize& r,
                    const QuantizeKernelArgs& k) {
  const bool of_groups = r.grid.first_pass.pass == FirstPass::kGroups;
  const auto bytes =
      static_cast<std::size_t>(of_groups       ? k.groups * std::int64_t{sizeof *k.maxima}
                               : is_stacked(r) ? k.groups * r.workspace_bytes(k.rows)
                                               : r.grid.workspace.maxima_bytes(k.rows));
  return site.driver.check(site.driver->cuMemsetD2D8Async(reinterpret_cast<CUdeviceptr>(k.maxima),
                                                          bytes, 0, bytes, 1, site.stream),
                           "cuMemsetD2D8Async");
}

// Finds the maxima that the main kernel needs.
Status launch_first_pass(const LaunchSite& site, const ResolvedQuantize& r, QuantizeKernelArgs& k) {
  const FirstPassGrid& pass = r.grid.first_pass;
  if (pass.pass == FirstPass::kNone) return {};
  const auto blocks = within_a_grid(k.rows, k.cols, pass.blocks(k.rows, k.groups));
  if (!blocks) return tl::unexpected<Error>(blocks.error());
  if (pass.pass == FirstPass::kTensor) k.partials = *blocks;
  if (pass.raises(k.rows))
    if (Status ok = clear_maxima(site, r, k); !ok) return ok;
  return launch_tensors(site, r, r.companion(Companion::kFirstPass), *blocks, kFirstPassThreads, k);
}

Status launch_main(const LaunchSite& site, const ResolvedQuantize& r, std::int64_t blocks,
                   QuantizeKernelArgs& k) {
  if (r.cluster > 0) return launch_cluster(site, r, k);
  return launch_tensors(site, r, r.kernel, r.grid.resident(blocks), r.threads, k, r.smem_bytes);
}

Status launch_scale_order(const LaunchSite& site, const ResolvedQuantize& r,
                          QuantizeKernelArgs& k) {
  const std::int64_t blocks = r.orders_scales ? order_blocks(r.problem, k).all() : 0;
  if (blocks == 0) return {};
  return launch_kernel(site, r.companion(Companion::kScaleOrder), {blocks}, kOrderThreads, k);
}

Status launch_bias_sum(const LaunchSite& site, const ResolvedQuantize& r, QuantizeKernelArgs& k) {
  const KernelHandle& sum = r.companion(Companion::kBiasSum);
  if (sum.anywhere == nullptr) return {};
  return launch_kernel(site, sum, {r.bias_blocks}, kBiasThreads, k);
}

}  // namespace

Status enqueue(const LaunchSite& site, const ResolvedQuantize& r, const QuantizeCall& call) {
  const std::int64_t tensors = is_stacked(r) ? call.row_count : 1;
  const std::int64_t needed = tensors * r.workspace_bytes(call.rows);
  if (Status ok = check_workspace(call.workspace, call.workspace_bytes, needed); !ok) return ok;
  QuantizeKernelArgs k = kernel_args(r, call);
  const auto blocks = tile_blocks(r, k);
  if (!blocks) return tl::unexpected<Error>(blocks.error());
  if (*blocks == 0) return {};
  Status ok = launch_fingerprint(site, r, call, k);
  if (ok) ok = launch_row_norm(site, r, k);
  if (ok) ok = launch_first_pass(site, r, k);
  if (ok) ok = launch_main(site, r, *blocks, k);
  if (ok) ok = launch_scale_order(site, r, k);
  if (ok) ok = launch_bias_sum(site, r, k);
  return ok;
}

Status enqueue(const LaunchSite& site, const ResolvedQuantize& r,
               const octile_scale_update_args& args) {
  ScaleUpdateKernelArgs k;
  k.history = args.history;
  k.encode_scale = args.encode_scale;
  k.tensors = args.tensors;
  k.length = args.length;
  k.history_stride = args.history_stride;
  k.scale_stride = args.scale_stride;
  k.choice = args.choice;
  k.margin_factor = std::ldexp(1.0F, -args.margin);
  k.share = args.average_share;
  return launch_kernel(site, r.companion(Companion::kScaleUpdate),
                       {ceil_div(args.tensors, kUpdateColumns) * args.states}, kUpdateThreads, k);
}

Status enqueue(const LaunchSite& site, const ResolvedQuantize& r, const PiecesCall& call) {
  PiecesKernelArgs args = call.args;
  return launch_kernel(site, r.kernel, {call.blocks}, r.threads, args, r.smem_bytes);
}

}  // namespace octile
