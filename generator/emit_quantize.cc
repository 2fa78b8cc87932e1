#include "generator/emit_quantize.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "generator/prologue.h"

namespace octile {
namespace {

constexpr std::string_view kRowwise = "quantize/rowwise_1x128.cu";
constexpr std::string_view kBlockwise = "quantize/blockwise_128x128.cu";

constexpr std::array<std::string_view, 5> kLibrary{
    "lib/types.cuh", "lib/cast.cuh", "lib/memory.cuh", "lib/reduce.cuh", "quantize/phases.cuh",
};

bool is_blockwise(const QuantizeProblem& p) { return p.q.granularity == Granularity::k128x128; }

Status check_numerics(const QuantizeProblem& p) {
  const bool granularity = p.q.granularity == Granularity::k1x128 || is_blockwise(p);
  const bool scale = p.q.scale == ScaleFormat::kF32 || p.q.scale == ScaleFormat::kF32Pow2;
  if (!granularity || !scale || !is_fp8(p.q.dtype) || is_fp8(p.x) ||
      p.output != QuantizeOutput::kRowwise) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("no quantise template for '{}': x is bf16, fp16 or fp32; q is e4m3 or "
                            "e5m2 with 1x128 or 128x128 scales in f32 or pow2; out is row",
                            to_text(Problem(p))));
  }
  return {};
}

Prologue prologue_of(const QuantizeProblem& p, const QuantizeConfig& c) {
  const QuantizeResources r = resources_of(p, c);
  Prologue out;
  out.add_int("kSourceType", static_cast<int>(p.x), "problem: octile_dtype of x");
  out.add_int("kTargetType", static_cast<int>(p.q.dtype), "recipe: octile_dtype of q");
  out.add_bool("kPow2Scale", p.q.scale == ScaleFormat::kF32Pow2,
               "recipe: scales are powers of two");
  out.add_float("kAmaxEpsilon", p.amax_epsilon, "problem: a smaller amax is raised to it");
  out.add_int("kTileRows", c.tile_rows, "configuration: rows held in registers at once");
  out.add_int("kTileCols", c.tile_cols, "configuration: columns held in registers at once");
  out.add_int("kThreads", c.threads, "configuration: threads per block");
  out.add_int("kBlocksPerSm", c.blocks_per_sm, "configuration: residency that bounds registers");
  const std::string_view space = is_blockwise(p) ? "blockwise" : "rowwise";
  out.add_assert(fmt::format("{}::kVectors == {}", space, r.vectors_per_thread),
                 "host and device disagree on the vectors of a thread");
  out.add_assert(fmt::format("{}::kLanes == {}", space, r.lanes_per_block),
                 "host and device disagree on the lanes that share a scale");
  return out;
}

}  // namespace

Result<EmittedKernel> emit_quantize(const QuantizeProblem& problem, const QuantizeConfig& config,
                                    const DeviceSpec& device, TemplateSet templates) {
  if (const Status known = check_numerics(problem); !known) {
    return tl::unexpected<Error>(known.error());
  }
  if (const Status allowed = check_config(problem, config); !allowed) {
    return tl::unexpected<Error>(allowed.error());
  }
  EmittedKernel kernel;
  kernel.name = kernel_name(problem, config);
  kernel.template_path = is_blockwise(problem) ? kBlockwise : kRowwise;
  Result<std::string> source =
      prologue_of(problem, config).render(templates, kLibrary, kernel.template_path, kernel.name);
  if (!source) return tl::unexpected<Error>(source.error());
  kernel.source = std::move(*source);
  const QuantizeResources r = resources_of(problem, config);
  kernel.options = compile_options(device);
  kernel.threads = r.threads;
  kernel.smem_bytes = r.smem_bytes;
  kernel.parameter_bytes = {static_cast<int>(sizeof(QuantizeKernelArgs))};
  kernel.config_text = to_text(config);
  return kernel;
}

std::string explain_quantize(const QuantizeProblem& problem, const QuantizeConfig& config) {
  return fmt::format("configuration = {}\n", to_text(config)) +
         prologue_of(problem, config).explain();
}

}  // namespace octile
