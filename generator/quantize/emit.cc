#include "generator/quantize/emit.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "generator/core/prologue.h"
#include "generator/quantize/fused_source.h"
#include "generator/quantize/grid.h"
#include "generator/quantize/kernel_args.h"
#include "generator/quantize/kernel_name.h"
#include "generator/quantize/resources.h"
#include "generator/quantize/support.h"

namespace octile {
namespace {

// Returns whether the template's kernel may be that of many pieces.
bool takes_pieces(QuantizeTemplate t) {
  return t == QuantizeTemplate::kRange || t == QuantizeTemplate::kScales ||
         t == QuantizeTemplate::kTranspose;
}

bool reads_normal(const FusedSource& source) {
  return std::ranges::any_of(source.parts, [](const Expr& part) {
    return part.contains(ExprOp::kNormCdf) || part.contains(ExprOp::kNormPdf);
  });
}

// Returns whether the template's kernel may be that of stacked tensors. Their first pass and their
// transposition may be, too.
bool takes_stacks(QuantizeTemplate t) {
  return t == QuantizeTemplate::kWarpTile || t == QuantizeTemplate::kCtaTile ||
         t == QuantizeTemplate::kCtaRow || t == QuantizeTemplate::kNormRows;
}

// Returns the files that a problem's kernels are made of, each before those that use it.
std::vector<std::string_view> library_of(const QuantizeProblem& p, const QuantizeConfig& c,
                                         const DeviceSpec& device) {
  std::vector<std::string_view> files{
      "lib/types.cuh",      launch_library(device), "lib/arithmetic.cuh",    "lib/cast.cuh",
      "lib/memory.cuh",     "lib/reduce.cuh",       "quantize/elements.cuh", "quantize/patch.cuh",
      "quantize/scale.cuh", "quantize/codes.cuh"};
  const QuantizeTemplate t = template_of(p);
  if (t == QuantizeTemplate::kCtaTile || t == QuantizeTemplate::kTranspose) {
    files.emplace_back("quantize/columns.cuh");
  }
  if (t == QuantizeTemplate::kCtaTile) {
    files.emplace_back("quantize/bias.cuh");
    files.emplace_back("quantize/ordered_scales.cuh");
  }
  if (is_fp8(p.x.dtype)) files.emplace_back("quantize/scaled.cuh");
  if (c.cluster > 0) files.emplace_back("lib/cluster.cuh");
  if (first_pass_of(p, c) != FirstPass::kNone) files.emplace_back("quantize/first_pass.cuh");
  if (has_token_groups(p.grouping)) files.emplace_back("quantize/groups.cuh");
  if (t == QuantizeTemplate::kRange || t == QuantizeTemplate::kScales)
    files.emplace_back("quantize/range.cuh");
  if (takes_pieces(t)) files.emplace_back("quantize/pieces.cuh");
  if (!p.source.empty()) {
    files.emplace_back("lib/math.cuh");
    if (reads_normal(*fused_source(p.source))) files.emplace_back("lib/normal.cuh");
    if (!device.has_u16x2) files.emplace_back("lib/halves.cuh");
    files.emplace_back("quantize/fused_table.cuh");
    files.emplace_back("quantize/fused_values.cuh");
    files.emplace_back("quantize/fused.cuh");
  }
  if (source_shape(p.source).finds_rms) files.emplace_back("quantize/norm.cuh");
  if (source_shape(p.source).layer_norm) files.emplace_back("quantize/layer_norm.cuh");
  return files;
}

// Returns the policy that fused.cuh calls E.
std::string expression_text(const QuantizeProblem& p, const FusedSource& source,
                            const Lookup* lookup) {
  const auto part = [&](std::size_t i) {
    const Expr& e = source.parts[i];
    std::string text = lookup == nullptr ? e.to_cuda() : e.to_cuda(lookup->part, "known");
    if (p.weighted) text = fmt::format("__fmul_rn({}, x{})", text, source.inputs());
    if (!p.via || source.layer_norm) return text;  // what a layer norm reads is not rounded
    return fmt::format("__uint_as_float(cast::to_bf16x2({}, 0.0f) & 0xffff0000u)", text);
  };
  return fmt::format(
      "struct Expression {{\n"
      "  static constexpr int kFirst = 0;\n"
      "  static constexpr int kInputs = {};\n"
      "  static constexpr int kType = {};\n"
      "  static constexpr bool kHalves = {};\n"
      "  static constexpr bool kWeight = {};\n"
      "  static constexpr bool kRowFactor = {};\n"
      "  static constexpr bool kTap = {};\n"
      "  static constexpr bool kLooksUp = {};\n"
      "  static constexpr u32 kFirstMagnitude = {}, kLastMagnitude = {}, kTableHalf = {};\n"
      "  static __device__ __forceinline__ float looked_up(float x0) {{ return {}; }}\n"
      "  template <int kPart>\n"
      "  static __device__ __forceinline__ float value(float x0, float x1, float x2, float x3,\n"
      "                                                float known) {{\n"
      "    {}return {};\n"
      "  }}\n"
      "}};\n",
      source.layer_norm ? 1 : source.inputs(), static_cast<int>(p.x.dtype), source.halves(),
      source.norms && !source.layer_norm, (source.norms && !source.layer_norm) || p.weighted, p.tap,
      lookup != nullptr, lookup == nullptr ? 0 : lookup->first,
      lookup == nullptr ? 0 : lookup->last, kLookupMagnitudes,
      lookup == nullptr ? "x0" : lookup->part.to_cuda(),
      source.halves() ? fmt::format("if constexpr (kPart == 1) return {};\n    else ", part(1))
                      : "",
      part(0));
}

// Adds the part that gives a kernel its values.
void add_input(Prologue& out, const QuantizeProblem& p, const QuantizeConfig& c) {
  std::string type = "quantize::TensorInput<P>";
  if (is_fp8(p.x.dtype)) {
    type =
        fmt::format("quantize::{}<P, {}, {}, {}>",
                    p.operation == QuantizeOperation::kDequantize ? "ScaledCodes" : "ScaledInput",
                    static_cast<int>(p.x.dtype), static_cast<int>(p.x.granularity),
                    static_cast<int>(p.x.scale));
  }
  if (!p.source.empty()) {
    const FusedSource source = *fused_source(p.source);  // the problem is well formed
    const std::shared_ptr<const Lookup> lookup = c.looks_up ? lookup_of(p) : nullptr;
    out.add_text(expression_text(p, source, lookup.get()), fmt::format("Expression = {}", p.source),
                 "problem: what is quantised instead of x");
    type = source.layer_norm
               ? fmt::format("quantize::LayerNormInput<P, Expression, {}>", p.via.has_value())
               : "quantize::FusedInput<P, Expression>";
  }
  out.add_part("Input", type, "problem: where the values come from");
}

// Returns the name of a kernel's body: "warp_tile" for quantize/warp_tile.cu. It is also the
// namespace in which the body derives its own arithmetic, which the asserts name.
std::string_view body_of(const QuantizeProblem& p, const QuantizeConfig& c) {
  if (holds_few_rows(p, c)) return "few_rows";
  if (c.cluster > 0) return "whole_tensor";
  switch (template_of(p)) {
    case QuantizeTemplate::kWarpTile:
      return "warp_tile";
    case QuantizeTemplate::kCtaTile:
      return "cta_tile";
    case QuantizeTemplate::kCtaRow:
      return "cta_row";
    case QuantizeTemplate::kNormRows:
      return "norm_rows";
    case QuantizeTemplate::kRange:
      return p.pieces == PiecesStep::kCast ? "range_cast" : "range_amax";
    case QuantizeTemplate::kScales:
      return "range_scales";
    case QuantizeTemplate::kDequantize:
      return "dequantize";
    case QuantizeTemplate::kTranspose:
      return "transpose";
    case QuantizeTemplate::kGather:
      return "gather";
  }
  return "";
}

// Returns the parts of a kernel's body that stand in files of their own.
std::vector<std::string_view> parts_of(const QuantizeProblem& p, const QuantizeConfig& c) {
  if (c.cluster > 0) return {};
  switch (template_of(p)) {
    case QuantizeTemplate::kCtaTile:
      return {"quantize/cta_tile_shape.cuh", "quantize/cta_tile_scales.cuh"};
    case QuantizeTemplate::kWarpTile:
      return {"quantize/warp_tile_shape.cuh", p.scale_layout == ScaleLayout::kByRow
                                                  ? "quantize/warp_tile_row_scales.cuh"
                                                  : "quantize/warp_tile_scales.cuh"};
    case QuantizeTemplate::kNormRows:
      return {"quantize/norm_rows_shape.cuh", "quantize/norm_rows_output.cuh"};
    default:
      return {};
  }
}

std::string_view first_pass_path(FirstPass pass) {
  switch (pass) {
    case FirstPass::kTensor:
      return "quantize/tensor_amax.cu";
    case FirstPass::kLines:
      return "quantize/line_amax.cu";
    case FirstPass::kGroups:
      return "quantize/group_amax.cu";
    case FirstPass::kNone:
      return "";
  }
  return "";
}

void add_configuration(Prologue& out, const QuantizeConfig& c) {
  out.add_int("kTileRows", c.tile_rows, "configuration: rows held in registers at once");
  out.add_int("kTileCols", c.tile_cols, "configuration: columns held in registers at once");
  out.add_int("kThreads", c.threads, "configuration: threads per block");
  out.add_int("kBlocksPerSm", c.blocks_per_sm, "configuration: residency that bounds registers");
}

// ---- the constants of a kernel that finds scales

void add_numerics(Prologue& out, const QuantizeProblem& p) {
  // elements.cuh names fp32 that is rounded to bf16 by a number of its own.
  constexpr int kFP32AsBF16 = 105;
  out.add_int("kSourceType", p.via ? kFP32AsBF16 : static_cast<int>(source_type(p)),
              "problem: octile_dtype of the values that are cast; 105: fp32 rounded to bf16");
  out.add_int("kTargetType", static_cast<int>(p.q.dtype), "recipe: octile_dtype of q");
  out.add_int("kGranularity", static_cast<int>(p.q.granularity), "recipe: octile_granularity");
  out.add_int("kScaleFormat", static_cast<int>(p.q.scale), "recipe: octile_scale_format");
  out.add_bool("kOcpFloor", p.e8m0_rounding == E8M0Rounding::kOcpFloor,
               "problem: e8m0 scales are rounded down");
  out.add_float("kAmaxEpsilon", p.amax_epsilon, "problem: a smaller amax is raised to it");
  out.add_bool("kDelayed", p.policy == ScalePolicy::kDelayed,
               "problem: earlier steps gave the scale");
  if (p.policy == ScalePolicy::kDelayed) {
    out.add_int("kUpdateThreads", kUpdateThreads, "threads of the kernel that updates scales");
    out.add_int("kUpdateColumns", kUpdateColumns, "tensors that a block of it has");
  }
  out.add_int("kGroupWalk", static_cast<int>(group_walk_of(p)), "problem: how tiles meet groups");
  out.add_bool("kSwizzled", p.scale_layout == ScaleLayout::kSwizzled,
               "problem: scales lie in tiles of 128 x 4");
}

void add_warp_tile(Prologue& out, const QuantizeProblem& p, const QuantizeConfig& c) {
  const QuantizeSharedMemory memory = shared_memory_of(p, c);
  out.add_int("kStepRows", step_rows(p, c), "configuration: rows of a tile worked on at once");
  out.add_bool("kSideBySide", streams_rows(p), "problem: rows of computed values stream");
  out.add_bool("kOfHalves", takes_both_halves(p),
               "problem: a warp has the same columns of both halves");
  out.add_int("kTableOffset", memory.table_offset, "bytes to the table in dynamic shared memory");
  out.add_int("kRingsOffset", memory.rings_offset, "bytes to the warps' rings there");
}

void add_cta_tile(Prologue& out, const QuantizeProblem& p, const QuantizeConfig& c) {
  out.add_part(
      "Values",
      holds_codes(p) ? fmt::format("quantize::Coded<{}>", static_cast<int>(p.x.dtype)) : "P",
      "problem: the values as a thread holds them");
  out.add_bool("kRowwise", has_rowwise(p.output), "problem: the row-wise copy is wanted");
  out.add_bool("kTransposed", has_transposed(p.output), "problem: the transposed copy is wanted");
  out.add_bool("kRowsFastest", c.rows_fastest, "configuration: order of the tiles");
  out.add_bool("kOrdersScales", c.orders_scales,
               "configuration: scales are stored by whole sectors");
  out.add_bool("kHalvesTogether", c.halves_together,
               "configuration: a block has the same columns of both halves");
  out.add_bool("kCopiesApart", c.copies_apart,
               "configuration: a tile's two copies have a thread block each");
  out.add_int("kWaitingOffset", shared_memory_of(p, c).waiting_offset,
              "bytes to the waiting values in dynamic shared memory");
  out.add_bool("kBiasGradient", p.bias_gradient, "problem: the sums of the columns are wanted");
}

void add_first_pass(Prologue& out, const QuantizeProblem& p, const QuantizeConfig& c) {
  out.add_int("kAmaxThreads", kFirstPassThreads, "threads of the kernel that finds the maxima");
  out.add_int("kAmaxBlocksPerSm", first_pass_blocks_per_sm(p), "its residency");
  out.add_int("kAmaxRows", first_pass_rows(p, c), "rows of its warps, for a tensor or groups");
  out.add_int("kAmaxStripe", kStripeRows, "rows of its thread blocks, for lines");
  out.add_int("kAmaxLanes", kLineLanes, "lanes along a row, if it reads whole columns");
  out.add_int("kWholeLineRows", whole_line_rows(p), "most rows at which a block reads a line");
}

void add_quantizing(Prologue& out, const QuantizeProblem& p, const QuantizeConfig& c) {
  add_numerics(out, p);
  if (template_of(p) == QuantizeTemplate::kWarpTile) add_warp_tile(out, p, c);
  if (template_of(p) == QuantizeTemplate::kCtaTile) add_cta_tile(out, p, c);
  if (c.orders_scales) {
    out.add_int("kOrderThreads", kOrderThreads, "threads of the kernel that orders scales");
  }
  if (first_pass_of(p, c) != FirstPass::kNone) add_first_pass(out, p, c);
  if (p.skip_unchanged) {
    out.add_int("kFingerprintThreads", kFingerprintThreads,
                "threads of the kernel that finds out if x has changed");
  }
  if (c.cluster > 0) {
    out.add_int("kClusterBlocks", c.cluster,
                "configuration: thread blocks that hold the whole tensor");
  }
  if (source_shape(p.source).finds_rms) {
    out.add_float("kNormEpsilon", p.norm_epsilon, "problem: added to the mean of the squares");
    out.add_int("kNormThreads", kNormThreads, "threads of the kernel that norms rows");
  }
}

// Adds what the device derives by itself and the host derived before it.
void add_asserts(Prologue& out, const QuantizeProblem& p, const QuantizeConfig& c) {
  const QuantizeSharedMemory memory = shared_memory_of(p, c);
  if (c.looks_up) {
    out.add_assert(fmt::format("warp_tile::Input::kTableBytes == {}",
                               memory.rings_offset - memory.table_offset),
                   "host and device disagree on the table");
  }
  if (streams_rows(p)) {
    out.add_assert(fmt::format("sizeof(warp_tile::Input::Ring) == {}", memory.ring_bytes),
                   "host and device disagree on a warp's ring");
  }
  if (c.orders_scales) {
    out.add_assert(fmt::format("quantize::OrderedScales::kAlign == {} && "
                               "quantize::OrderedScales::kRuns == {} && "
                               "quantize::OrderedScales::kAcross == {} && "
                               "quantize::OrderedScales::kGroupsTogether == {}",
                               kOrderAlign, kOrderRuns, kOrderAcross, kOrderGroupsTogether),
                   "host and device disagree on the thread blocks that order scales");
  }
  out.add_assert(
      fmt::format("{}::kVectors == {}", body_of(p, c), resources_of(p, c).vectors_per_thread),
      "host and device disagree on the vectors of a thread");
}

Prologue prologue_of(const QuantizeProblem& p, const QuantizeConfig& c) {
  Prologue out;
  add_configuration(out, c);
  switch (p.operation) {
    case QuantizeOperation::kQuantize:
    case QuantizeOperation::kAmax:
      add_quantizing(out, p, c);
      add_input(out, p, c);
      break;
    case QuantizeOperation::kDequantize:
      out.add_int("kWidenedType", static_cast<int>(p.q.dtype), "problem: octile_dtype of q");
      add_input(out, p, c);
      break;
    case QuantizeOperation::kTranspose:
      out.add_int("kGranularity", static_cast<int>(p.q.granularity), "recipe: octile_granularity");
      out.add_int("kScaleFormat", static_cast<int>(p.q.scale), "recipe: octile_scale_format");
      out.add_bool("kRowsFastest", c.rows_fastest, "configuration: order of the tiles");
      break;
    case QuantizeOperation::kGather:
      out.add_int("kGranularity", static_cast<int>(p.q.granularity), "recipe: octile_granularity");
      out.add_int("kScaleFormat", static_cast<int>(p.q.scale), "recipe: octile_scale_format");
      break;
  }
  if (takes_pieces(template_of(p)) || takes_stacks(template_of(p))) {
    const std::string_view type = p.pieces != PiecesStep::kNone      ? "PiecesArgs"
                                  : p.grouping == Grouping::kStacked ? "StackArgs"
                                                                     : "Args";
    out.add_text(fmt::format("using Arguments = quantize::{};\n", type),
                 fmt::format("Arguments = {}", type), "problem: one tensor or range, or many");
  }
  add_asserts(out, p, c);
  return out;
}

TemplateBody body_of(const QuantizeProblem& p, Companion companion, std::string_view name) {
  switch (companion) {
    case Companion::kFirstPass:
      return {first_pass_path(first_pass_of(p)), "OCTILE_AMAX_NAME", name};
    case Companion::kScaleUpdate:
      return {"quantize/scale_update.cu", "OCTILE_UPDATE_NAME", name};
    case Companion::kRowNorm:
      return {"quantize/row_norm.cu", "OCTILE_NORM_NAME", name};
    case Companion::kBiasSum:
      return {"quantize/bias_sum.cu", "OCTILE_BIAS_NAME", name};
    case Companion::kScaleOrder:
      return {"quantize/scale_order.cu", "OCTILE_ORDER_NAME", name};
    case Companion::kFingerprint:
      return {"quantize/fingerprint.cu", "OCTILE_FINGERPRINT_NAME", name};
  }
  return {};
}

std::size_t parameter_bytes(Companion companion) {
  switch (companion) {
    case Companion::kScaleUpdate:
      return sizeof(ScaleUpdateKernelArgs);
    case Companion::kFingerprint:
      return sizeof(FingerprintKernelArgs);
    case Companion::kFirstPass:
    case Companion::kRowNorm:
    case Companion::kBiasSum:
    case Companion::kScaleOrder:
      break;
  }
  return sizeof(QuantizeKernelArgs);
}

// Returns the bytes of the parameter of the main kernel and of its first pass.
std::size_t parameter_bytes(const QuantizeProblem& p) {
  if (p.pieces != PiecesStep::kNone) return sizeof(PiecesKernelArgs);
  return p.grouping == Grouping::kStacked ? sizeof(StackKernelArgs) : sizeof(QuantizeKernelArgs);
}

EntryPoint entry_of(const QuantizeProblem& p, Companion companion) {
  const std::size_t bytes =
      companion == Companion::kFirstPass ? parameter_bytes(p) : parameter_bytes(companion);
  return {companion_name(p, companion), {static_cast<int>(bytes)}};
}

}  // namespace

Result<EmittedKernel> emit(const QuantizeProblem& problem, const QuantizeConfig& config,
                           const DeviceSpec& device, TemplateSet templates) {
  if (const Status known = check_supported(problem, device); !known) {
    return tl::unexpected<Error>(known.error());
  }
  if (const Status allowed = check_config(problem, config, device); !allowed) {
    return tl::unexpected<Error>(allowed.error());
  }
  EmittedKernel kernel;
  kernel.name = kernel_name(problem, config);
  kernel.template_path = fmt::format("quantize/{}.cu", body_of(problem, config));
  std::vector<TemplateBody> bodies;
  const std::vector<Companion> companions = companions_of(problem, config);
  for (const Companion c : companions) kernel.companions.push_back(entry_of(problem, c));
  for (std::size_t i = 0; i < companions.size(); ++i) {
    bodies.push_back(body_of(problem, companions[i], kernel.companions[i].name));
  }
  for (const std::string_view part : parts_of(problem, config)) bodies.push_back({part, "", ""});
  bodies.push_back({kernel.template_path, "OCTILE_KERNEL_NAME", kernel.name});
  Result<std::string> source =
      prologue_of(problem, config).render(templates, library_of(problem, config, device), bodies);
  if (!source) return tl::unexpected<Error>(source.error());
  kernel.source = std::move(*source);
  const QuantizeResources r = resources_of(problem, config);
  kernel.options = compile_options(device);
  kernel.threads = r.threads;
  kernel.smem_bytes = r.smem_bytes;
  kernel.parameter_bytes = {static_cast<int>(parameter_bytes(problem))};
  kernel.config_text = to_text(config);
  return kernel;
}

std::string explain(const QuantizeProblem& problem, const QuantizeConfig& config,
                    const DeviceSpec& /*device*/) {
  return fmt::format("configuration = {}\n", to_text(config)) +
         prologue_of(problem, config).explain();
}

}  // namespace octile
