#include "tools/peers/peers.h"

#include <algorithm>
#include <utility>

#include "runtime/families/gemm/arguments.h"
#include "runtime/measure/random_operands.h"

namespace octile::tools {

Result<Peer> Peer::cublaslt(const std::shared_ptr<const CublasLt>& library, const GpuSession& gpu,
                            const GemmProblem& problem, std::int64_t tokens,
                            const std::vector<GemmSlot>& slots) {
  auto matmul = LtMatmul::scaled(library, gpu, problem, tokens);
  if (!matmul) return tl::unexpected<Error>(matmul.error());
  Peer peer("cublaslt", std::move(*matmul));
  for (const GemmSlot& slot : slots) peer.operands_.push_back(lt_operands(slot.a, slot.b, slot.d));
  if (Status ok = peer.find_best(gpu); !ok) return tl::unexpected<Error>(ok.error());
  return peer;
}

Result<Peer> Peer::bf16(const std::shared_ptr<const CublasLt>& library, const GpuSession& gpu,
                        const GemmProblem& problem, std::int64_t tokens) {
  const auto workspace = LtMatmul::make_workspace(gpu);
  if (!workspace) return tl::unexpected<Error>(workspace.error());
  auto matmul = LtMatmul::bf16(library, *workspace, problem, tokens);
  if (!matmul) return tl::unexpected<Error>(matmul.error());
  Peer peer("bf16", std::move(*matmul));
  const auto [m, n, k] = shape_of(problem, tokens);
  const std::int64_t d_bytes = m * n * size_of(problem.d.dtype);
  const int slots = rotation_slots(gpu.spec(), 2 * (m * k + n * k) + d_bytes);
  for (int i = 0; i < slots; ++i) {
    const bool first = i == 0;
    auto a = first ? random_bf16(gpu, m * k, 1) : copy_of(gpu, peer.owned_[0]);
    if (!a) return tl::unexpected<Error>(a.error());
    auto b = first ? random_bf16(gpu, n * k, 2) : copy_of(gpu, peer.owned_[1]);
    if (!b) return tl::unexpected<Error>(b.error());
    auto d = gpu.allocate(static_cast<std::size_t>(d_bytes));
    if (!d) return tl::unexpected<Error>(d.error());
    if (Status ok = d->fill(0, gpu.stream()); !ok) return tl::unexpected<Error>(ok.error());
    peer.operands_.push_back({a->pointer(), nullptr, b->pointer(), nullptr, d->pointer()});
    for (DeviceBuffer* buffer : {&*a, &*b, &*d}) peer.owned_.push_back(std::move(*buffer));
  }
  if (Status ok = peer.find_best(gpu); !ok) return tl::unexpected<Error>(ok.error());
  return peer;
}

Result<Peer> Peer::bf16(const std::shared_ptr<const CublasLt>& library,
                        const LtMatmul::Workspace& workspace, const GpuSession& gpu,
                        const GemmProblem& problem, std::int64_t tokens,
                        const LtMatmul::Operands& operands) {
  auto matmul = LtMatmul::bf16(library, workspace, problem, tokens);
  if (!matmul) return tl::unexpected<Error>(matmul.error());
  Peer peer("bf16", std::move(*matmul));
  peer.operands_.push_back(operands);
  if (Status ok = peer.find_best(gpu); !ok) return tl::unexpected<Error>(ok.error());
  return peer;
}

Status Peer::run_choice(int choice, int slot, CUstream stream) const {
  return matmul_.run(choice, operands_[static_cast<std::size_t>(slot)], stream);
}

Status Peer::run(int slot, CUstream stream) const { return run_choice(choice_, slot, stream); }

Contender Peer::contender() const { return contender_of(choice_); }

Contender Peer::contender_of(int choice) const {
  return {name_,
          [this, choice](int slot, CUstream stream) { return run_choice(choice, slot, stream); },
          slot_count()};
}

// Returns the choices that run. Each runs once outside a stream capture, where it may load its
// kernel.
Result<std::vector<int>> Peer::usable_choices(const GpuSession& gpu) const {
  std::vector<int> usable;
  for (int choice = 0; choice < matmul_.choices(); ++choice) {
    if (!run_choice(choice, 0, gpu.stream())) continue;
    if (Status ok = gpu.synchronize(); !ok) return tl::unexpected<Error>(ok.error());
    usable.push_back(choice);
  }
  if (!usable.empty()) return usable;
  return fail(ErrorCode::kDeviceError, "cublasLtMatmul refuses every choice of its heuristic");
}

// Finds the fastest of the heuristic's choices in a short measurement. Choices whose first time is
// far behind take no part.
Status Peer::find_best(const GpuSession& gpu) {
  constexpr int kRounds = 5;
  constexpr double kReplayUs = 1000;
  constexpr double kHopeless = 1.2;
  const auto choices = usable_choices(gpu);
  if (!choices) return tl::unexpected<Error>(choices.error());
  TimingOptions options;
  options.rounds = kRounds;
  options.least_replay_us = kReplayUs;
  options.most_behind = kHopeless;
  std::vector<Contender> contenders;
  for (const int choice : *choices) contenders.push_back(contender_of(choice));
  const auto timings = measure(gpu, contenders, options);
  if (!timings) return tl::unexpected<Error>(timings.error());
  const auto best =
      std::min_element(timings->begin(), timings->end(),
                       [](const Timing& x, const Timing& y) { return x.median_us < y.median_us; });
  choice_ = (*choices)[static_cast<std::size_t>(best - timings->begin())];
  return {};
}

}  // namespace octile::tools
