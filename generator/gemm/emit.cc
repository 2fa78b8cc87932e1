#include "generator/gemm/emit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "generator/gemm/axes.h"
#include "generator/gemm/candidates.h"

namespace octile {
namespace {

constexpr std::string_view kKernel = "gemm/kernel.cu";
constexpr std::string_view kPairs = "lib/pairs.cuh";
constexpr std::string_view kGlobal = "lib/global.cuh";
constexpr std::string_view kSentry = "lib/sentry.cuh";
constexpr std::string_view kTma3d = "lib/tma_3d.cuh";
constexpr int kMostGroupBytes = 2 * 4 * (static_cast<int>(kMostGemmGroups) + 1);

constexpr std::array<std::string_view, 5> kLibrary{
    "lib/warpgroup.cuh",       "lib/cluster.cuh",    "gemm/ring.cuh",
    "gemm/walk/scheduler.cuh", "gemm/arguments.cuh",
};

// The files that use the prologue's constants and so come after it. All kernels of the family share
// them. The files of the problem's policies come between them.
constexpr std::string_view kTile = "gemm/tile.cuh";
constexpr std::string_view kProducer = "gemm/producer.cuh";
constexpr std::string_view kConsumer = "gemm/consumer.cuh";
constexpr std::string_view kSplitK = "gemm/output/split_k.cuh";

// The parts of a matrix unit: its instructions, where its sums and its operands are, and its main
// loops.
struct Unit {
  std::vector<std::string_view> library;
  std::string_view sums;
  std::string_view operands;
  std::vector<std::string_view> loops;
};

Unit unit_of(const GemmConfig& c) {
  Unit wgmma{{"lib/wgmma.cuh"},
             "gemm/registers.cuh",
             "gemm/operands_wgmma.cuh",
             {"gemm/wgmma_blocks.cuh", "gemm/long_sums.cuh", "gemm/consumer_wgmma.cuh"}};
  const auto by_warps = [](std::string_view instructions) {
    return Unit{{"lib/matrix_operands.cuh", instructions},
                "gemm/registers.cuh",
                "gemm/operands_mma.cuh",
                {"gemm/consumer_mma.cuh"}};
  };
  switch (c.unit) {
    case MatrixUnit::kMma:
      return by_warps("lib/mma.cuh");
    case MatrixUnit::kMmaScaled:
      return by_warps("lib/mma_scaled.cuh");
    case MatrixUnit::kTcgen05:
      return {{"lib/tcgen05.cuh", "lib/f32x2.cuh"},
              "gemm/tensor_memory.cuh",
              "gemm/operands_tcgen05.cuh",
              {"gemm/issuer_tcgen05.cuh", "gemm/consumer_tcgen05.cuh"}};
    case MatrixUnit::kWgmma:
      break;
  }
  return wgmma;
}

// The copies of operands into the ring: their instructions and barriers, and how they are used.
struct Copier {
  std::vector<std::string_view> library;
  std::string_view file;
};

Copier copier_of(const GemmConfig& c, const DeviceSpec& device) {
  switch (c.copies) {
    case Copies::kCpAsync:
      return {{"lib/mbarrier_polled.cuh", "lib/cp_async.cuh"}, "gemm/copies_cp_async.cuh"};
    case Copies::kTma:
      break;
  }
  return {{"lib/mbarrier.cuh", "lib/tma.cuh",
           device.has_multicast ? "lib/tma_loads.cuh" : "lib/tma_loads_cta.cuh"},
          "gemm/copies_tma.cuh"};
}

// A policy: its type, the file that defines it, and the library file that this one needs.
struct Policy {
  std::string type;
  std::vector<std::string_view> paths;
  std::vector<std::string_view> library = {};
};

struct Policies {
  Policy walk, scale, output;
};

// Adds the paths that the list does not have yet.
void add_paths(std::vector<std::string_view>& list, const std::vector<std::string_view>& paths) {
  for (const std::string_view path : paths) {
    if (std::ranges::find(list, path) == list.end()) list.push_back(path);
  }
}

Policy walk_of(const GemmProblem& p) {
  if (p.sums_batch) {
    return {"gemm::walk::Summed", {"gemm/walk/dense.cuh", "gemm/walk/summed.cuh"}, {kTma3d}};
  }
  if (is_batched(p)) {
    return {"gemm::walk::Batched", {"gemm/walk/dense.cuh", "gemm/walk/batched.cuh"}, {kTma3d}};
  }
  if (!is_grouped(p)) return {"gemm::walk::Dense", {"gemm/walk/dense.cuh"}};
  const std::string_view groups = groups_k(p)                           ? "ColumnGroups"
                                  : p.grouping == Grouping::kContiguous ? "ContiguousRows"
                                                                        : "MaskedRows";
  return {fmt::format("gemm::walk::Grouped<gemm::walk::{}>", groups),
          {"gemm/walk/groups.cuh"},
          {kTma3d}};
}

std::string_view format_name(const TensorType& type) {
  return type.scale == ScaleFormat::kUe8m0x4 ? "Ue8m0x4" : "Fp32";
}

constexpr std::string_view kFormats = "gemm/scale/format.cuh";
constexpr std::string_view kExponents = "gemm/scale/exponents.cuh";

Policy scale_by_promotion(const GemmProblem& p, const GemmConfig& c) {
  const auto at_end = [&](std::string_view scales) {
    return Policy{fmt::format("gemm::scale::Epilogue<gemm::scale::{}>", scales),
                  {kFormats, "gemm/scale/epilogue.cuh"},
                  {kPairs, kGlobal}};
  };
  switch (scheme_of(p)) {
    case Scheme::kPerRow:
      return at_end("PerRow");
    case Scheme::kPerTensor:
      return at_end("PerTensor");
    case Scheme::kMx: {
      const int rows_of_b = p.b.granularity == Granularity::k32x32 ? 32 : 1;
      constexpr std::string_view kScales = "gemm/scale/mx_scales.cuh";
      if (multiplies_by_warps(c)) {
        return {fmt::format("gemm::scale::MxParts<{}>", rows_of_b),
                {kFormats, kScales, "gemm/scale/mx_parts.cuh"},
                {kPairs}};
      }
      return {fmt::format("gemm::scale::Mx<{}>", rows_of_b),
              {kFormats, kScales, "gemm/scale/mx.cuh"}};
    }
    case Scheme::kBlockB:
      return {fmt::format("gemm::scale::BlockB<gemm::scale::{}>", format_name(p.a)),
              {kFormats, "gemm/scale/block_b.cuh"}};
    case Scheme::kRowB:
      break;
  }
  if (c.mma_factors) {
    return {"gemm::scale::OuterRowB",
            {kFormats, "gemm/scale/outer_row_b.cuh"},
            {kPairs, kGlobal, "lib/outer.cuh"}};
  }
  return {fmt::format("gemm::scale::RowB<gemm::scale::{}, gemm::scale::{}>", format_name(p.a),
                      format_name(p.b)),
          {kFormats, "gemm/scale/row_b.cuh"},
          {kPairs}};
}

// Returns the policy of scales that tcgen05 multiplies, and what says where they come from.
Policy scale_in_tensor_memory(const GemmProblem& p) {
  constexpr std::string_view kPolicy = "gemm/scale/inside_tcgen05.cuh";
  if (is_mx(p.a)) {
    return {fmt::format("gemm::scale::InsideTcgen05<gemm::scale::MxWords<{}>>",
                        p.b.granularity == Granularity::k32x32 ? 32 : 1),
            {kFormats, kExponents, kPolicy, "gemm/scale/mx_scales.cuh",
             "gemm/scale/inside_tcgen05_mx.cuh"},
            {kPairs, kGlobal}};
  }
  const auto of_rows = [](const TensorType& type, std::string_view rows) {
    return fmt::format("gemm::scale::RowWords<gemm::scale::{}, cfg::{}>", format_name(type), rows);
  };
  const std::string of_b = scheme_of(p) == Scheme::kBlockB ? "gemm::scale::BlockWords<cfg::kBlockN>"
                                                           : of_rows(p.b, "kBlockN");
  return {fmt::format("gemm::scale::InsideTcgen05<gemm::scale::Words<{}, {}>>",
                      of_rows(p.a, "kBlockM"), of_b),
          {kFormats, kExponents, kPolicy},
          {kPairs, kGlobal}};
}

Policy scale_of(const GemmProblem& p, const GemmConfig& c) {
  if (!has_scales_inside(p)) return scale_by_promotion(p, c);
  if (c.unit == MatrixUnit::kTcgen05) return scale_in_tensor_memory(p);
  const bool mx = scheme_of(p) == Scheme::kMx;
  Policy policy = mx ? Policy{fmt::format("gemm::scale::StagedMx<{}>",
                                          p.b.granularity == Granularity::k32x32 ? 32 : 1),
                              {kFormats, "gemm/scale/mx_scales.cuh", "gemm/scale/staged_mx.cuh"}}
                     : scale_by_promotion(p, c);
  policy.type = fmt::format("gemm::scale::Inside<{}, {}>", policy.type, mx ? 4 : 1);
  policy.paths.insert(policy.paths.end(), {kExponents, "gemm/scale/inside.cuh"});
  return policy;
}

// Returns true if the scheme's loop writes a strip's partial sums of parts of a K-block one after
// the other, with others in flight.
bool has_loop_of_parts(Scheme scheme) {
  switch (scheme) {
    case Scheme::kMx:
      return true;
    case Scheme::kBlockB:
    case Scheme::kRowB:
    case Scheme::kPerRow:
    case Scheme::kPerTensor:
      break;
  }
  return false;
}

// Returns what an element of D becomes.
Policy element_of(const GemmProblem& p) {
  if (p.d.dtype == DType::kFP32) {
    if (!p.accumulate) return {"Fp32", {"gemm/output/fp32.cuh"}, {kPairs}};
    return {"AddFp32", {"gemm/output/fp32.cuh", "gemm/output/add_fp32.cuh"}, {kPairs}};
  }
  if (p.d.dtype == DType::kFP16) return {"Fp16", {"gemm/output/fp16.cuh"}, {"lib/fp16.cuh"}};
  if (p.accumulate) return {"AddBf16", {"gemm/output/bf16.cuh", "gemm/output/add_bf16.cuh"}};
  return {"Bf16", {"gemm/output/bf16.cuh"}};
}

// Returns the boxes in which TMA stores D.
Policy boxes_of(const GemmProblem& p) {
  if (is_grouped(p)) return {"ClippedBoxes", {"gemm/output/clipped_boxes.cuh"}};
  if (is_batched(p)) return {"BatchBoxes", {"gemm/output/batch_boxes.cuh"}};
  return {"Boxes", {"gemm/output/boxes.cuh"}, {"lib/tma_reduce.cuh"}};
}

// Returns whether lanes exchange 16-bit elements before they store them, so as to fill sectors: if
// TMA stores no tile, however wide.
bool stores_sectors(const GemmProblem& p, const GemmConfig& c) {
  return c.copies == Copies::kCpAsync && size_of(p.d.dtype) == 2 && !p.accumulate;
}

// Returns how D is stored, without a bias.
Policy store_of(const GemmProblem& p, const GemmConfig& c) {
  if (is_fp8(p.d.dtype)) {
    Policy output{fmt::format("gemm::output::Quantized<{}, {}, {}, gemm::output::{}>",
                              p.d.dtype == DType::kE5M2, p.d.scale == ScaleFormat::kF32Pow2,
                              static_cast<int>(p.sentry), boxes_of(p).type),
                  {"gemm/output/watch.cuh"},
                  {kPairs, kSentry, "lib/codes.cuh"}};
    add_paths(output.paths, boxes_of(p).paths);
    add_paths(output.library, boxes_of(p).library);
    output.paths.emplace_back("gemm/output/quantized.cuh");
    return output;
  }
  Policy output = element_of(p);
  if (c.store == EpilogueStore::kDirect) {
    add_paths(output.library, {kSentry});
    add_paths(output.paths, {"gemm/output/watch.cuh", "gemm/output/direct.cuh"});
    const bool in_sectors = stores_sectors(p, c);
    if (in_sectors) {
      add_paths(output.library, {"lib/memory.cuh"});
      add_paths(output.paths, {"gemm/output/sectors.cuh"});
    }
    output.type =
        fmt::format("gemm::output::{}<gemm::output::{}, {}>", in_sectors ? "Sectors" : "Direct",
                    output.type, static_cast<int>(p.sentry));
    return output;
  }
  const Policy boxes = boxes_of(p);
  if (p.d.dtype == DType::kFP32) {
    output = {fmt::format("StagedFp32<{}", p.accumulate), {}, {kPairs}};
  } else {
    output.type = fmt::format("Staged<gemm::output::{}", output.type);
  }
  add_paths(output.library, {kSentry});
  add_paths(output.library, boxes.library);
  output.paths.emplace_back("gemm/output/watch.cuh");
  add_paths(output.paths, boxes.paths);
  output.paths.emplace_back(p.d.dtype == DType::kFP32 ? "gemm/output/staged_fp32.cuh"
                                                      : "gemm/output/staged.cuh");
  output.type = fmt::format("gemm::output::{}, {}, gemm::output::{}>", output.type,
                            static_cast<int>(p.sentry), boxes.type);
  return output;
}

Policy output_of(const GemmProblem& p, const GemmConfig& c) {
  Policy output = store_of(p, c);
  if (p.bias) {
    output.paths.emplace_back("gemm/output/with_bias.cuh");
    output.library.emplace_back(kPairs);
    output.type = fmt::format("gemm::output::WithBias<{}, {}>", output.type,
                              *p.bias == DType::kFP32 ? "float" : "u16");
  }
  return output;
}

Policies policies_of(const GemmProblem& problem, const GemmConfig& config) {
  return {walk_of(problem), scale_of(problem, config), output_of(problem, config)};
}

// Returns the library files of a kernel, in the order in which they are emitted.
std::vector<std::string_view> library_of(const GemmConfig& c, const DeviceSpec& device,
                                         const Unit& unit, const Policies& policies) {
  std::vector<std::string_view> files{
      "lib/types.cuh", device.has_pdl ? "lib/launch.cuh" : "lib/launch_in_order.cuh"};
  add_paths(files, copier_of(c, device).library);
  files.insert(files.end(), kLibrary.begin(), kLibrary.end());
  add_paths(files, unit.library);
  add_paths(files, policies.walk.library);
  add_paths(files, policies.scale.library);
  add_paths(files, policies.output.library);
  // The file of the other copies has the names that walks use.
  if (c.copies != Copies::kTma) std::erase(files, kTma3d);
  return files;
}

// Returns the files that use the prologue's constants.
std::vector<std::string_view> files_of(const GemmConfig& c, const DeviceSpec& device,
                                       const Unit& unit, const Policies& policies) {
  std::vector<std::string_view> files{
      kTile, unit.sums, unit.operands, kConsumer, copier_of(c, device).file, kProducer};
  add_paths(files, unit.loops);
  for (const Policy& policy : {policies.walk, policies.scale, policies.output}) {
    add_paths(files, policy.paths);
  }
  files.push_back(kSplitK);
  return files;
}

void add_policies(Prologue& p, const Policies& policies) {
  p.add_type("OCTILE_WALK", policies.walk.type, "problem: the order of the tiles");
  p.add_type("OCTILE_SCALE", policies.scale.type, "recipe: how partial sums become fp32 sums");
  p.add_type("OCTILE_OUTPUT", policies.output.type, "problem: the type of D and how it is stored");
}

// Adds the constants of the configuration's axes. kPromoteNone is 0 on the device.
void add_axes(Prologue& p, const GemmProblem& problem, const GemmConfig& c) {
  for (const GemmAxis* axis : axes_with_constants(problem)) {
    const int value = axis->member.get(c);
    if (axis->member.is_flag) {
      p.add_bool(axis->constant, value != 0, axis->purpose);
    } else {
      p.add_int(axis->constant, std::max(value, 0), axis->purpose);
    }
  }
}

// Adds the shared-memory map. The device reads these constants and computes none of them.
void add_memory_map(Prologue& p, const GemmSmemLayout& s) {
  p.add_int("kAStageBytes", s.a_stage_bytes, "derived: A in one stage");
  p.add_int("kBStageBytes", s.b_stage_bytes, "derived: B in one stage");
  p.add_int("kScaleAStageBytes", s.scale_a_stage_bytes, "derived: A's scales in one stage");
  p.add_int("kScaleBStageBytes", s.scale_b_stage_bytes, "derived: B's scales in one stage");
  p.add_int("kBOffset", s.b_offset, "derived: shared memory, behind A's ring");
  p.add_int("kDOffset", s.d_offset, "derived: shared memory, behind B's ring");
  p.add_int("kScaleAOffset", s.scale_a_offset, "derived: shared memory, behind D");
  p.add_int("kScaleBOffset", s.scale_b_offset, "derived: shared memory, behind A's scales");
  p.add_int("kBarrierOffset", s.barrier_offset, "derived: shared memory, behind B's scales");
  p.add_int("kSmemBytes", s.group_offset, "derived: shared memory of a CTA, without groups");
}

// Adds what the matrix unit's files are instantiated with.
void add_wgmma(Prologue& p, const GemmProblem& problem, const GemmConfig& c) {
  p.add_macro("OCTILE_WGMMA_N", c.block_n, "kBlockN as a literal: the instruction's shape");
  p.add_macro("OCTILE_WGMMA_STEPS", 4 / parts_of_block(c.promote),
              "numerics: instructions of a WGMMA group, for kPromote or 128 elements of K");
  p.add_macro("OCTILE_WGMMA_TYPES",
              fmt::format("{}.{}", name_of(problem.a.dtype), name_of(problem.b.dtype)),
              "recipe: element types of A and B, as the instruction spells them");
  const bool one_strip = c.block_m <= 64 * c.consumer_warpgroups;
  const bool long_sums = has_long_sums(c.promote);
  const bool one_group =
      one_strip && !long_sums &&
      (c.promote == 128 || c.in_flight > 1 || has_loop_of_parts(scheme_of(problem)));
  p.add_macro(
      "OCTILE_WGMMA_OUTPUT", one_group ? "=f" : "+f",
      "derived: partial sums are written only; in place if WGMMA groups of a K-block take turns");
  if (c.tail_n > 0) {
    p.add_macro("OCTILE_WGMMA_TAIL_N", c.tail_n, "kTailN as a literal");
  }
  if (long_sums) {
    p.add_macro("OCTILE_WGMMA_ONTO", 1, "numerics: WGMMA groups add to the sums of those before");
  }
}

void add_unit(Prologue& p, const GemmProblem& problem, const GemmConfig& c) {
  p.add_macro("OCTILE_WARPS_ACROSS", warps_across(problem, c),
              "derived: warps of a consumer that share its columns");
  p.add_macro("OCTILE_CONSUMERS_ACROSS", consumers_across(problem, c),
              "derived: consumers that share a tile's columns");
  if (c.unit == MatrixUnit::kWgmma) {
    add_wgmma(p, problem, c);
    return;
  }
  const std::string_view space = c.unit == MatrixUnit::kTcgen05 ? "tcgen05" : "mma";
  const auto element = [&](const TensorType& t) {
    return fmt::format("{}::{}", space, t.dtype == DType::kE5M2 ? "kE5M2" : "kE4M3");
  };
  if (c.unit == MatrixUnit::kTcgen05) {
    p.add_macro("OCTILE_SCALES_IN_WORD",
                !has_scales_inside(problem) ? 0
                : is_mx(problem.a)          ? 4
                                            : 1,
                "recipe: scales of a K-block that an instruction multiplies; 0: none");
  }
  p.add_type("OCTILE_MMA_TYPES", fmt::format("{}, {}", element(problem.a), element(problem.b)),
             "recipe: element types of A and B");
}

// Returns whether ptxas compiles with -O1, which takes 5 to 12 % less of a compile than -O3. With
// two consumers that have WGMMA groups in flight, the choice of most large GEMMs, kernels are 10 %
// faster to 2 % slower than with -O3. Others are up to 4 % slower (docs/experiments/gemm.md, v33).
bool compiles_by_o1(const GemmConfig& c) {
  return c.unit == MatrixUnit::kWgmma && c.consumer_warpgroups == 2 && c.in_flight > 1;
}

}  // namespace

Prologue gemm_prologue(const GemmProblem& problem, const GemmConfig& c, const DeviceSpec& device) {
  const GemmResources r = resources_of(problem, c, device);
  Prologue p;
  add_axes(p, problem, c);
  add_unit(p, problem, c);
  if (is_grouped(problem)) {
    p.add_int("kGroupOffset", r.smem.group_offset, "derived: shared memory, behind the barriers");
  }
  p.add_int("kThreads", r.threads, "derived: consumers and producers");
  p.add_int("kProducerRegisters", r.producer_registers,
            "derived: setmaxnreg of the producer; 0: nobody's");
  p.add_int("kConsumerRegisters", r.consumer_registers, "derived: setmaxnreg of a consumer");
  add_memory_map(p, r.smem);
  add_policies(p, policies_of(problem, c));
  p.add_assert(fmt::format("sizeof(gemm::Arguments) == {}", kGemmArgumentBytes),
               "host and device disagree on the size of the argument");
  if (c.store == EpilogueStore::kTma) {
    p.add_assert(
        fmt::format("gemm::Output::box_columns<gemm::kConsumerColumns>() == {}", r.d_box_cols),
        "host and device disagree on the width of D's boxes");
  }
  return p;
}

Result<EmittedKernel> emit(const GemmProblem& problem, const GemmConfig& config,
                           const DeviceSpec& device, TemplateSet templates) {
  if (const GemmConstraint* refusal = refused_by(config, problem, kDynamic, device)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("configuration '{}' violates {}: {}", to_text(config), refusal->name,
                            refusal->reason));
  }
  EmittedKernel kernel;
  kernel.name = kernel_name(problem, config);
  kernel.template_path = kKernel;
  const Unit unit = unit_of(config);
  const Policies policies = policies_of(problem, config);
  std::vector<TemplateBody> bodies;
  for (const std::string_view part : files_of(config, device, unit, policies))
    bodies.push_back({part, {}, {}});
  bodies.push_back({kKernel, "OCTILE_KERNEL_NAME", kernel.name});
  Result<std::string> source =
      gemm_prologue(problem, config, device)
          .render(templates, library_of(config, device, unit, policies), bodies);
  if (!source) return tl::unexpected<Error>(source.error());
  kernel.source = std::move(*source);
  const GemmResources r = resources_of(problem, config, device);
  kernel.options = compile_options(device);
  if (compiles_by_o1(config)) kernel.options.emplace_back("--ptxas-options=-O1");
  kernel.threads = r.threads;
  // One kernel serves any count of groups.
  kernel.smem_bytes = is_grouped(problem) ? std::min(r.smem.group_offset + kMostGroupBytes,
                                                     device.max_smem_per_block_bytes)
                                          : r.smem.total_bytes;
  kernel.cluster = cluster_size(config);
  kernel.parameter_bytes = {kGemmArgumentBytes};
  kernel.config_text = to_text(config);
  return kernel;
}

std::string explain(const GemmProblem& problem, const GemmConfig& config,
                    const DeviceSpec& device) {
  return fmt::format("configuration = {}\n", to_text(config)) +
         gemm_prologue(problem, config, device).explain();
}

}  // namespace octile
