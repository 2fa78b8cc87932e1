// Other implementations of a GEMM, each with the fastest of its choices, to be timed beside
// Octile's.
#pragma once

#include <memory>
#include <vector>

#include "runtime/measure/timing.h"
#include "runtime/prove/gemm/operands.h"
#include "tools/peers/cublaslt.h"

namespace octile::tools {

class Peer {
 public:
  // Uses our operands; the slots outlive it. Errors: kUnsupported if cuBLASLt does not take the
  // problem (m % 4 != 0, say), kDeviceError.
  static Result<Peer> cublaslt(const std::shared_ptr<const CublasLt>& library,
                               const GpuSession& gpu, const GemmProblem& problem,
                               std::int64_t tokens, const std::vector<GemmSlot>& slots);
  // Has the same extents and D, A and B in bf16, and operands of its own.
  static Result<Peer> bf16(const std::shared_ptr<const CublasLt>& library, const GpuSession& gpu,
                           const GemmProblem& problem, std::int64_t tokens);
  // Returns a peer in bf16 on the caller's operands, which outlive it. The call overwrites D.
  static Result<Peer> bf16(const std::shared_ptr<const CublasLt>& library,
                           const LtMatmul::Workspace& workspace, const GpuSession& gpu,
                           const GemmProblem& problem, std::int64_t tokens,
                           const LtMatmul::Operands& operands);

  // Enqueues one call on the operands of a slot.
  Status run(int slot, CUstream stream) const;
  // The contender must not outlive this peer.
  Contender contender() const;
  const std::string& name() const { return name_; }
  int slot_count() const { return static_cast<int>(operands_.size()); }

 private:
  Peer(std::string name, LtMatmul matmul) : name_(std::move(name)), matmul_(std::move(matmul)) {}
  Contender contender_of(int choice) const;
  Status run_choice(int choice, int slot, CUstream stream) const;
  Status find_best(const GpuSession& gpu);
  Result<std::vector<int>> usable_choices(const GpuSession& gpu) const;

  std::string name_;
  LtMatmul matmul_;
  int choice_ = 0;
  std::vector<LtMatmul::Operands> operands_;
  std::vector<DeviceBuffer> owned_;
};

}  // namespace octile::tools
