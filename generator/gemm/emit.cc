#include "generator/gemm/emit.h"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "generator/gemm/candidates.h"

namespace octile {
namespace {

constexpr std::string_view kKernel = "gemm/kernel.cu";

constexpr std::array<std::string_view, 9> kLibrary{
    "lib/types.cuh", "lib/launch.cuh",          "lib/mbarrier.cuh",
    "lib/tma.cuh",   "lib/warpgroup.cuh",       "lib/wgmma.cuh",
    "gemm/ring.cuh", "gemm/walk/scheduler.cuh", "gemm/arguments.cuh",
};

// The files that use the prologue's constants and so come after it. All kernels of the family share
// them. The files of the problem's policies come between them.
constexpr std::string_view kTile = "gemm/tile.cuh";
constexpr std::string_view kProducer = "gemm/producer.cuh";
constexpr std::string_view kConsumer = "gemm/consumer.cuh";
constexpr std::string_view kSplitK = "gemm/output/split_k.cuh";

// A policy: the file that defines it and its type there.
struct Policy {
  std::string_view path;
  std::string_view type;
};
constexpr Policy kWalkDense{"gemm/walk/dense.cuh", "gemm::walk::Dense"};
constexpr Policy kScaleBlockB{"gemm/scale/block_b.cuh", "gemm::scale::BlockB"};
constexpr Policy kStoreBf16{"gemm/output/store_bf16.cuh", "gemm::output::StoreBf16"};

struct Policies {
  Policy walk, scale, output;
};

// Returns the policies of a problem. Every supported problem has the same ones.
Policies policies_of(const GemmProblem&) { return {kWalkDense, kScaleBlockB, kStoreBf16}; }

void add_policies(Prologue& p, const Policies& policies) {
  p.add_type("OCTILE_WALK", policies.walk.type, "problem: the order of the tiles");
  p.add_type("OCTILE_SCALE", policies.scale.type, "recipe: how partial sums become fp32 sums");
  p.add_type("OCTILE_OUTPUT", policies.output.type, "problem: the type of D and how it is stored");
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
  p.add_int("kSmemBytes", s.total_bytes, "derived: shared memory of a CTA");
}

// Returns whether ptxas compiles with -O1, which takes 5 to 12 % less of a compile than -O3. With
// two consumers that have WGMMA groups in flight, the choice of most large GEMMs, kernels are 10 %
// faster to 2 % slower than with -O3. Others are up to 4 % slower (docs/experiments/gemm.md, v33).
bool compiles_by_o1(const GemmConfig& c) { return c.consumer_warpgroups == 2 && c.in_flight > 1; }

}  // namespace

Prologue gemm_prologue(const GemmProblem& problem, const GemmConfig& c) {
  const GemmResources r = resources_of(c);
  Prologue p;
  p.add_int("kBlockM", c.block_m, "configuration: rows of D one CTA computes");
  p.add_int("kBlockN", c.block_n, "configuration: columns of D one CTA computes");
  p.add_macro("OCTILE_WGMMA_N", c.block_n, "kBlockN as a literal: the instruction's shape");
  p.add_macro("OCTILE_WGMMA_STEPS", c.promote / 32,
              "kPromote / 32 as a literal: instructions of a WGMMA group");
  p.add_macro("OCTILE_WGMMA_TYPES",
              fmt::format("{}.{}", name_of(problem.a.dtype), name_of(problem.b.dtype)),
              "recipe: element types of A and B, as the instruction spells them");
  const bool one_strip = c.block_m <= 64 * c.consumer_warpgroups;
  p.add_macro(
      "OCTILE_WGMMA_OUTPUT", one_strip ? "=f" : "+f",
      "derived: partial sums are written only; in place if a warpgroup owns several strips");
  if (c.tail_n > 0) {
    p.add_macro("OCTILE_WGMMA_TAIL_N", c.tail_n, "kTailN as a literal");
  }
  p.add_int("kBlockK", c.block_k, "recipe: one 1x128 scale block along K");
  p.add_int("kStages", c.stages, "configuration: shared-memory ring depth");
  p.add_int("kConsumerWarpgroups", c.consumer_warpgroups,
            "configuration: warpgroups issuing WGMMA");
  p.add_int("kClusterM", c.cluster_m, "configuration: CTAs sharing a B tile");
  p.add_int("kClusterN", c.cluster_n, "configuration: CTAs sharing an A tile");
  p.add_int("kUnroll", c.unroll, "configuration: K-blocks a pass of the main loop covers");
  p.add_int("kInFlight", c.in_flight, "configuration: WGMMA groups issued before one is promoted");
  p.add_int("kRasterBand", c.raster.band, "configuration: tiles across a band of the walk over D");
  p.add_bool("kRasterOfColumns", c.raster.of_columns, "configuration: bands of columns, not rows");
  p.add_int("kSplits", c.splits, "numerics: CTAs of a cluster that share a tile's K");
  p.add_int("kCtasPerSm", c.ctas_per_sm, "configuration: CTAs resident on an SM");
  p.add_bool("kPdlEarly", c.pdl_early, "configuration: the next kernel may start beside this one");
  p.add_int("kTailN", c.tail_n, "configuration: columns of a tail tile; 0: no tail");
  p.add_int("kPromote", c.promote, "numerics: K elements per fp32 promotion");
  p.add_bool("kTmaStore", c.store == EpilogueStore::kTma, "configuration: D through shared memory");
  p.add_int("kThreads", r.threads, "derived: consumers and one producer warpgroup");
  p.add_int("kProducerRegisters", r.producer_registers, "derived: setmaxnreg of the producer");
  p.add_int("kConsumerRegisters", r.consumer_registers, "derived: setmaxnreg of a consumer");
  add_memory_map(p, r.smem);
  add_policies(p, policies_of(problem));
  p.add_assert(fmt::format("sizeof(gemm::Arguments) == {}", kGemmArgumentBytes),
               "host and device disagree on the size of the argument");
  p.add_assert(fmt::format("gemm::Output::box_columns<cfg::kBlockN>() == {}", r.d_box_cols),
               "host and device disagree on the width of D's boxes");
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
  const Policies policies = policies_of(problem);
  std::vector<TemplateBody> bodies;
  for (const std::string_view part : {kTile, kProducer, kConsumer, policies.walk.path,
                                      policies.scale.path, policies.output.path, kSplitK}) {
    bodies.push_back({part, {}, {}});
  }
  bodies.push_back({kKernel, "OCTILE_KERNEL_NAME", kernel.name});
  Result<std::string> source = gemm_prologue(problem, config).render(templates, kLibrary, bodies);
  if (!source) return tl::unexpected<Error>(source.error());
  kernel.source = std::move(*source);
  const GemmResources r = resources_of(config);
  kernel.options = compile_options(device);
  if (compiles_by_o1(config)) kernel.options.emplace_back("--ptxas-options=-O1");
  kernel.threads = r.threads;
  kernel.smem_bytes = r.smem.total_bytes;
  kernel.cluster = cluster_size(config);
  kernel.parameter_bytes = {kGemmArgumentBytes};
  kernel.config_text = to_text(config);
  return kernel;
}

std::string explain(const GemmProblem& problem, const GemmConfig& config) {
  return fmt::format("configuration = {}\n", to_text(config)) +
         gemm_prologue(problem, config).explain();
}

}  // namespace octile
