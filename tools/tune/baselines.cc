#include "tools/tune/baselines.h"

#include <utility>
#include <vector>

#include "tools/peers/peers.h"

namespace octile::tools {
namespace {

Status add(Result<Peer> peer, std::vector<Peer>& peers) {
  if (peer) {
    peers.push_back(std::move(*peer));
    return {};
  }
  const ErrorCode code = peer.error().code;
  if (code == ErrorCode::kUnsupported || code == ErrorCode::kOutOfMemory) return {};
  return tl::unexpected<Error>(peer.error());
}

}  // namespace

Result<tuner::Rivals> rivals_of(const std::shared_ptr<const CublasLt>& library, bool with_fp8,
                                const GpuSession& gpu, const tuner::TuningTask& task,
                                const tuner::GpuBench& bench) {
  const auto* gemm = problem_as<GemmProblem>(task.problem);
  if (gemm == nullptr || has_several_gemms(*gemm)) return tuner::Rivals();
  auto peers = std::make_shared<std::vector<Peer>>();
  peers->reserve(2);
  Status ok;
  if (with_fp8) {
    const auto& slots = tuner::bench_as<GemmProblem>(bench).slots();
    ok = add(Peer::cublaslt(library, gpu, *gemm, task.tokens, slots), *peers);
  }
  if (ok) ok = add(Peer::bf16(library, gpu, *gemm, task.tokens), *peers);
  if (!ok) return tl::unexpected<Error>(ok.error());
  tuner::Rivals rivals;
  for (const Peer& peer : *peers) rivals.contenders.push_back(peer.contender());
  rivals.owner = std::move(peers);
  return rivals;
}

}  // namespace octile::tools
