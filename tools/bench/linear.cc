#include "tools/bench/linear.h"

#include <fmt/format.h>

#include <utility>

#include "tools/peers/peers.h"

namespace octile::tools {
namespace {

// The three GEMMs in bf16 by cuBLASLt, both operands K-major as those of Octile. D has the same
// type, and dW is added to as Octile's is.
Result<std::vector<Peer>> bf16_gemms(const BenchContext& context, const Recipe& recipe,
                                     const LayerShape& shape) {
  std::vector<Peer> peers;
  for (const Pass pass : kStepPasses) {
    const GemmProblem problem = gemm_problem(recipe, pass, shape.m, shape.n, shape.k);
    auto peer = Peer::bf16(context.cublaslt, context.gpu, problem, problem.m);
    if (!peer) return tl::unexpected<Error>(peer.error());
    peers.push_back(std::move(*peer));
  }
  return peers;
}

// The calls must not outlive the step and the peers.
StepCalls calls_of(const LayerStep& step, const std::vector<Peer>& peers) {
  StepCalls calls;
  calls.step = [&step](CUstream stream) { return step.run(nullptr, stream); };
  for (std::size_t part = 0; part < LayerStep::kParts; ++part) {
    calls.octile.push_back({LayerStep::name_of(part), [&step, part](CUstream stream) {
                              return step.run_part(part, nullptr, stream);
                            }});
  }
  for (std::size_t pass = 0; pass < peers.size(); ++pass) {
    calls.bf16.push_back({std::string(name_of(kStepPasses.at(pass))),
                          [&peer = peers[pass]](CUstream stream) { return peer.run(0, stream); }});
  }
  return calls;
}

}  // namespace

Result<std::vector<Record>> bench_linear(const BenchContext& context, const Recipe& recipe,
                                         const LayerShape& shape) {
  auto step = LayerStep::create(context, recipe, shape);
  if (!step) return tl::unexpected<Error>(step.error());
  auto checks = step->check(context.gpu, nullptr);
  if (!checks) return tl::unexpected<Error>(checks.error());
  const auto peers = bf16_gemms(context, recipe, shape);
  if (!peers) return tl::unexpected<Error>(peers.error());
  Record blank = new_record(context.tool, context.gpu);
  blank.what =
      fmt::format("linear m={} n={} k={} recipe={}", shape.m, shape.n, shape.k, recipe.name);
  blank.details.set("bf16", "cublaslt " + version_text(*context.cublaslt));
  note_checks(*checks, blank);
  auto timed = time_steps(context, {calls_of(*step, *peers)}, {blank});
  if (!timed) return tl::unexpected<Error>(timed.error());
  return std::move(timed->front());
}

}  // namespace octile::tools
