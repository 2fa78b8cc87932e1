#include "runtime/families/quantize/launch.h"

#include <array>
#include <cmath>

#include "generator/quantize/layout.h"
#include "generator/core/types.h"

namespace octile {
namespace {

constexpr std::int64_t kTransposedAlign = 16;  // of a row of the transposed copy (layout table)

// Where the transposed copy lies is not the caller's to choose; neither is how far masked groups'
// scales are apart, but for their rows' stride.
void place_outputs(const QuantizeProblem& p, QuantizeKernelArgs& k) {
  if (has_transposed(p.output) && p.grouping == Grouping::kNone) {
    k.ldq_transposed = round_up(k.rows, kTransposedAlign);
    k.scale_ld_transposed = packed_scale_ld(p.q, k.rows, p.cols, true);
  } else if (has_transposed(p.output)) {
    if (const auto layout = quantized_layout(p, k.rows, k.groups, true)) {  // args were validated
      k.ldq_transposed = layout->data.ld;
      k.scale_ld_transposed = layout->scales.ld;
    }
  }
  if (p.grouping == Grouping::kNone) return;
  const bool one_a_group = p.q.granularity == Granularity::kPerTensor;
  const auto of_one = quantized_layout(p, k.rows, 1, false);
  if (!of_one || (p.grouping == Grouping::kContiguous && !one_a_group)) return;
  const ArrayShape& scales = of_one->scales;
  k.scale_group_bytes =
      one_a_group ? scales.element_bytes : scales.outer * k.scale_ld * scales.element_bytes;
}

// From the range's flat position to rows and columns.
void place_shard(const octile_quantize_args& args, QuantizeKernelArgs& k) {
  const std::int64_t last = args.shard_start + args.shard_length - 1;
  k.shard_row = args.shard_start / k.cols;
  k.shard_col = args.shard_start % k.cols;
  k.shard_last_row = last / k.cols;
  k.shard_end_col = last % k.cols + 1;
}

QuantizeKernelArgs kernel_args(const QuantizeLaunch& l, const QuantizeProblem& p,
                               const octile_quantize_args& args) {
  QuantizeKernelArgs k;
  k.x = args.x;
  k.q = args.q;
  k.scale = args.scale;
  k.q_transposed = args.q_transposed;
  k.scale_transposed = args.scale_transposed;
  k.maxima = static_cast<std::uint32_t*>(args.workspace);
  k.rows = args.rows;
  k.cols = p.cols;
  k.encode_scale = args.encode_scale;
  k.amax = reinterpret_cast<std::uint32_t*>(args.amax);
  k.skip = args.skip;
  k.x_scale = args.x_scale;
  k.x_scale_ld = args.x_scale_ld;
  k.more[0] = args.x1;
  k.more[1] = args.x2;
  k.more[2] = args.x3;
  k.more_ld[0] = args.ldx1;
  k.more_ld[1] = args.ldx2;
  k.more_ld[2] = args.ldx3;
  k.rstd = args.rstd;
  k.bias_partials = reinterpret_cast<float*>(static_cast<char*>(args.workspace) +
                                             l.workspace.bias_offset(args.rows));
  k.bias_gradient = args.bias_gradient;
  k.tap = args.tap;
  k.groups_at = p.grouping == Grouping::kMasked ? args.counts : args.offsets;
  k.groups = args.groups;
  k.shard_amax = reinterpret_cast<std::uint32_t*>(args.shard_amax);
  k.nonfinite = reinterpret_cast<unsigned long long*>(args.nonfinite);
  k.ldx = args.ldx;
  k.ldq = args.ldq;
  k.scale_ld = args.scale_ld;
  place_outputs(p, k);
  if (p.shard != ShardStep::kNone) place_shard(args, k);
  return k;
}

template <typename Args>
Status launch(const LaunchSite& site, const KernelHandle& kernel, std::int64_t blocks, int threads,
              Args& args, int smem_bytes = 0) {
  std::array<void*, 1> parameters{&args};
  CUlaunchConfig config =
      launch_config(site, static_cast<unsigned int>(blocks), static_cast<unsigned int>(threads));
  config.sharedMemBytes = static_cast<unsigned int>(smem_bytes);
  return launch_that_waits(site, kernel, config, parameters.data());
}

const KernelHandle& of(const QuantizeLaunch& l, Companion companion) {
  return l.companions[static_cast<std::size_t>(companion)];
}

// Finds the maxima the main kernel needs.
Status launch_first_pass(const LaunchSite& site, const QuantizeLaunch& l,
                         const QuantizeProblem& problem, QuantizeKernelArgs& args) {
  const auto blocks = first_pass_blocks(problem, args.rows, l.sm_count, args.groups);
  if (!blocks) return tl::unexpected<Error>(blocks.error());
  if (l.workspace.first_pass == FirstPass::kTensor) args.partials = *blocks;
  if (first_pass_raises(problem, args.rows)) {
    const auto bytes =
        static_cast<std::size_t>(l.workspace.first_pass == FirstPass::kGroups
                                     ? args.groups * std::int64_t{sizeof *args.maxima}
                                     : l.workspace.maxima_bytes(args.rows));
    const Status cleared =
        site.driver.check(site.driver->cuMemsetD2D8Async(reinterpret_cast<CUdeviceptr>(args.maxima),
                                                         bytes, 0, bytes, 1, site.stream),
                          "cuMemsetD2D8Async");
    if (!cleared) return cleared;
  }
  return launch(site, of(l, Companion::kFirstPass), *blocks, kFirstPassThreads, args);
}

}  // namespace

QuantizeLaunch quantize_launch(const QuantizeProblem& problem, const QuantizeConfig& config,
                               int sm_count, const KernelHandle& kernel,
                               const std::vector<KernelHandle>& companions) {
  const QuantizeResources r = resources_of(problem, config);
  QuantizeLaunch l{.kernel = kernel,
                   .config = config,
                   .workspace = workspace_of(problem, sm_count),
                   .sm_count = sm_count,
                   .threads = r.threads,
                   .smem_bytes = r.smem_bytes};
  const std::vector<Companion> which = companions_of(problem, config);
  for (std::size_t i = 0; i < companions.size(); ++i) {  // none where the device is a name
    l.companions[static_cast<std::size_t>(which[i])] = companions[i];
  }
  return l;
}

Status launch_quantize(const LaunchSite& site, const QuantizeLaunch& l,
                       const QuantizeProblem& problem, const octile_quantize_args& args) {
  QuantizeKernelArgs k = kernel_args(l, problem, args);
  const auto blocks = problem.shard == ShardStep::kNone
                          ? launch_blocks(problem, l.config, args.rows, args.groups)
                          : shard_blocks(problem, l.config, k);
  if (!blocks) return tl::unexpected<Error>(blocks.error());
  if (*blocks == 0) return {};
  if (const KernelHandle& norm = of(l, Companion::kRowNorm); norm.anywhere != nullptr) {
    if (Status ok = launch(site, norm, args.rows, kNormThreads, k); !ok) return ok;
  }
  if (l.workspace.first_pass != FirstPass::kNone) {
    if (Status ok = launch_first_pass(site, l, problem, k); !ok) return ok;
  }
  const std::int64_t resident = resident_blocks(l.config, *blocks, l.sm_count);
  if (Status ok = launch(site, l.kernel, resident, l.threads, k, l.smem_bytes); !ok) return ok;
  const std::int64_t order = l.config.orders_scales ? order_blocks(problem, k).all() : 0;
  if (order > 0) {
    if (Status ok = launch(site, of(l, Companion::kScaleOrder), order, kOrderThreads, k); !ok) {
      return ok;
    }
  }
  const KernelHandle& sum = of(l, Companion::kBiasSum);
  if (sum.anywhere == nullptr) return {};
  return launch(site, sum, ceil_div(problem.cols, kBiasThreads), kBiasThreads, k);
}

Status launch_scale_update(const LaunchSite& site, const QuantizeLaunch& l,
                           const octile_scale_update_args& args) {
  ScaleUpdateKernelArgs k;
  k.history = args.history;
  k.encode_scale = args.encode_scale;
  k.tensors = args.tensors;
  k.length = args.length;
  k.choice = args.choice;
  k.margin_factor = std::ldexp(1.0F, -args.margin);
  k.share = args.average_share;
  return launch(site, of(l, Companion::kScaleUpdate), ceil_div(args.tensors, kUpdateThreads),
                kUpdateThreads, k);
}

}  // namespace octile
