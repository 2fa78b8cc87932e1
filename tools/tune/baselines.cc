#include "tools/tune/baselines.h"

#include "tools/peers/peers.h"

namespace octile::tools {
namespace {

// Adds nothing if cuBLASLt does not take the problem.
Status add(Result<Peer> peer, std::vector<Peer>& peers) {
  if (peer) {
    peers.push_back(std::move(*peer));
    return {};
  }
  if (peer.error().code == ErrorCode::kUnsupported) return {};
  return tl::unexpected<Error>(peer.error());
}

}  // namespace

Result<tuner::Baselines> time_baselines(const std::shared_ptr<const CublasLt>& library,
                                        const GpuSession& gpu, const GemmProblem& problem,
                                        std::int64_t tokens, const tuner::GemmBench& bench,
                                        std::span<const int> beside) {
  constexpr int kRounds = 10;
  std::vector<Peer> peers;
  peers.reserve(2);
  Status ok = add(Peer::cublaslt(library, gpu, problem, tokens, bench.slots()), peers);
  if (ok) ok = add(Peer::bf16(library, gpu, problem, tokens), peers);
  if (!ok) return tl::unexpected<Error>(ok.error());
  std::vector<Contender> contenders;
  for (const int candidate : beside) contenders.push_back(bench.contender(candidate));
  for (const Peer& peer : peers) contenders.push_back(peer.contender());
  TimingOptions options;
  options.rounds = kRounds;
  options.slots = static_cast<int>(bench.slots().size());
  const auto timings = measure(gpu, contenders, options);
  if (!timings) return tl::unexpected<Error>(timings.error());
  tuner::Baselines baselines;
  for (std::size_t i = beside.size(); i < timings->size(); ++i)
    baselines.emplace_back((*timings)[i].name, (*timings)[i].median_us);
  return baselines;
}

}  // namespace octile::tools
