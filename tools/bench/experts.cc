#include "tools/bench/experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "tools/models/bf16_roofline.h"
#include "tools/models/workload.h"
#include "tools/peers/peers.h"

namespace octile::tools {
namespace {

constexpr std::array kLayerNames{"gate_up", "down"};

// cuBLASLt's fast kernels take rows of a multiple of 16 bytes, so the weight gradient of an expert
// sums up to 7 rows more.
constexpr std::int64_t kBf16Align = 8;
static_assert(kBf16Align <= LayerStep::kSpareRows);

// The GEMMs of one pass of a layer in bf16: one for each expert that has rows.
using ExpertPeers = std::vector<Peer>;

Result<ExpertPeers> bf16_gemms(const BenchContext& context, const LtMatmul::Workspace& workspace,
                               const Recipe& recipe, Pass pass, const LayerStep& step,
                               const std::vector<std::int64_t>& counts) {
  ExpertPeers peers;
  std::int64_t row = 0;
  for (std::size_t expert = 0; expert < counts.size(); row += counts[expert++]) {
    if (counts[expert] == 0) continue;
    const std::int64_t m =
        pass == Pass::kWgrad ? round_up(counts[expert], kBf16Align) : counts[expert];
    const GemmProblem problem = gemm_problem(recipe, pass, m, step.shape().n, step.shape().k);
    auto peer = Peer::bf16(context.cublaslt, workspace, context.gpu, problem, problem.m,
                           step.bf16_operands(pass, static_cast<std::int64_t>(expert), row));
    if (!peer) return tl::unexpected<Error>(peer.error());
    peers.push_back(std::move(*peer));
  }
  return peers;
}

Status run_peers(const ExpertPeers& peers, CUstream stream) {
  Status ok;
  for (const Peer& peer : peers) {
    if (ok) ok = peer.run(0, stream);
  }
  return ok;
}

// One way of sharing out the rows, and what runs by it.
struct RoutedStep {
  GemmGroups groups;
  std::vector<ExpertPeers> bf16;  // of every layer, by pass
};

std::string part_name(std::size_t layer, const std::string& part) {
  return fmt::format("{} {}", kLayerNames.at(layer), part);
}

// The calls must not outlive the layers and the routed step.
StepCalls calls_of(const std::vector<LayerStep>& layers, const RoutedStep& routed) {
  StepCalls calls;
  calls.step = [&layers, &groups = routed.groups](CUstream stream) {
    Status ok;
    for (const LayerStep& layer : layers) {
      if (ok) ok = layer.run(&groups, stream);
    }
    return ok;
  };
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    for (std::size_t part = 0; part < LayerStep::kParts; ++part) {
      calls.octile.push_back(
          {part_name(layer, LayerStep::name_of(part)),
           [&step = layers[layer], &groups = routed.groups, part](CUstream stream) {
             return step.run_part(part, &groups, stream);
           }});
    }
    for (std::size_t pass = 0; pass < kStepPasses.size(); ++pass) {
      const ExpertPeers& peers = routed.bf16[layer * kStepPasses.size() + pass];
      calls.bf16.push_back({part_name(layer, std::string(name_of(kStepPasses.at(pass)))),
                            [&peers](CUstream stream) { return run_peers(peers, stream); }});
    }
  }
  return calls;
}

Result<std::vector<LayerStep>> create_layers(const BenchContext& context, const Recipe& recipe,
                                             const ExpertRank& rank) {
  std::vector<LayerStep> layers;
  for (const LayerShape& shape : {rank.gate_up_shape(), rank.down_shape()}) {
    auto layer = LayerStep::create(context, recipe, shape);
    if (!layer) return tl::unexpected<Error>(layer.error());
    layers.push_back(std::move(*layer));
  }
  return layers;
}

// Checks all layers by this routing; the bf16 GEMMs, which write the same results, come later.
Status check_layers(const BenchContext& context, const GemmGroups& groups,
                    std::vector<LayerStep>& layers, Record& record) {
  for (LayerStep& layer : layers) {
    auto checks = layer.check(context.gpu, &groups);
    if (!checks) return tl::unexpected<Error>(checks.error());
    note_checks(*checks, record);
  }
  return {};
}

Status add_bf16(const BenchContext& context, const Recipe& recipe,
                const std::vector<LayerStep>& layers, const LtMatmul::Workspace& workspace,
                const std::vector<std::int64_t>& counts, RoutedStep& routed) {
  for (const LayerStep& layer : layers) {
    for (const Pass pass : kStepPasses) {
      auto peers = bf16_gemms(context, workspace, recipe, pass, layer, counts);
      if (!peers) return tl::unexpected<Error>(peers.error());
      routed.bf16.push_back(std::move(*peers));
    }
  }
  return {};
}

Status check_extents(const ExpertShare& share) {
  Status ok = check_layer_extent("experts.gate_up.n", share.gate_up.n);
  if (ok) ok = check_layer_extent("experts.gate_up.k", share.gate_up.k);
  if (ok) ok = check_layer_extent("experts.down.n", share.down.n);
  if (ok) ok = check_layer_extent("experts.down.k", share.down.k);
  return ok;
}

// Returns the estimated time of the GEMMs in bf16 as grouped ones, for which cuBLASLt has no call.
double grouped_bf16_us(const Recipe& recipe, const ExpertRank& rank, const DeviceSpec& device) {
  double us = 0;
  for (const LayerShape& shape : {rank.gate_up_shape(), rank.down_shape()}) {
    for (const Pass pass : kStepPasses) {
      us += bf16_us(gemm_problem(recipe, pass, kDynamic, shape.n, shape.k, shape.experts), shape.m,
                    device);
    }
  }
  return us;
}

// Returns a record without values.
Record blank_of(const BenchContext& context, const Recipe& recipe, const ExpertRank& rank,
                Routing routing, const std::vector<std::int64_t>& counts) {
  Record record = new_record(context.tool, context.gpu);
  record.what = fmt::format("experts model={} ep={} tokens={} recipe={} routing={}", rank.model,
                            rank.ranks, rank.tokens, recipe.name, name_of(routing));
  const auto [least, most] = std::ranges::minmax(counts);
  record.details = {{"experts", rank.experts},
                    {"rows", rank.rows},
                    {"least_rows", least},
                    {"most_rows", most},
                    {"bf16", "cublaslt " + version_text(*context.cublaslt)},
                    {"grouped_bf16_us", grouped_bf16_us(recipe, rank, context.gpu.spec())}};
  return record;
}

}  // namespace

Result<ExpertRank> rank_of(const Model& file, const std::string& model, std::int64_t ranks,
                           std::int64_t tokens) {
  const auto share = share_of_experts(file, model, ranks);
  if (!share) return tl::unexpected<Error>(share.error());
  const auto rows = rows_of(*share, tokens);
  if (!rows) return tl::unexpected<Error>(rows.error());
  if (Status ok = check_extents(*share); !ok) return tl::unexpected<Error>(ok.error());
  return ExpertRank{*share, file.name, ranks, tokens, *rows};
}

Result<std::vector<std::vector<Record>>> bench_experts(const BenchContext& context,
                                                       const Recipe& recipe, const ExpertRank& rank,
                                                       const std::vector<Routing>& routings) {
  auto layers = create_layers(context, recipe, rank);
  if (!layers) return tl::unexpected<Error>(layers.error());
  const auto workspace = LtMatmul::make_workspace(context.gpu);
  if (!workspace) return tl::unexpected<Error>(workspace.error());
  std::vector<RoutedStep> routed(routings.size());
  std::vector<StepCalls> calls;
  std::vector<Record> blanks;
  for (std::size_t i = 0; i < routings.size(); ++i) {
    const std::vector<std::int64_t> counts = route(routings[i], rank.rows, rank.experts);
    Record& blank = blanks.emplace_back(blank_of(context, recipe, rank, routings[i], counts));
    auto groups = make_groups(context.gpu, offsets_of(counts));
    if (!groups) return tl::unexpected<Error>(groups.error());
    routed[i].groups = std::move(*groups);
    Status ok = check_layers(context, routed[i].groups, *layers, blank);
    if (ok) ok = add_bf16(context, recipe, *layers, *workspace, counts, routed[i]);
    if (!ok) return tl::unexpected<Error>(ok.error());
    calls.push_back(calls_of(*layers, routed[i]));
  }
  return time_steps(context, calls, blanks);
}

}  // namespace octile::tools
