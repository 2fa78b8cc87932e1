// cuBLASLt, opened at run time: its scaled FP8 GEMM takes Octile's operands as they are, and its
// bf16 GEMM is the one that an FP8 GEMM replaces.
//
// cublaslt_types.h declares the few types, enumerators and functions in use, with the values of
// <cublasLt.h> of CUDA 12.9 and 13.0. Octile needs neither header nor library otherwise. A test
// compares the declarations with that header, if it is installed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "generator/families.h"
#include "runtime/measure/gpu_session.h"
#include "runtime/prove/gemm/check.h"
#include "tools/common/handles.h"

namespace octile::tools {

class CublasLt {
 public:
  // Opens OCTILE_LIBCUBLASLT if it is set, else libcublasLt.so.13 or libcublasLt.so.12. Errors:
  // kUnsupported, with the names that were tried, or for a version before 12.9, which has no block
  // scales.
  static Result<std::shared_ptr<const CublasLt>> open();
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  const std::string& path() const { return path_; }
  std::size_t version() const { return version_; }  // 130200: 13.2.0; 120900: 12.9.0

 private:
  friend class LtMatmul;
  struct Api;
  CublasLt();
  static Result<std::shared_ptr<const CublasLt>> load(const std::string& path);
  std::string path_;
  std::size_t version_ = 0;
  std::unique_ptr<Api> api_;
};

// D[m,n] = A[m,k] B[n,k]^T with default strides and D of the problem's type. If the problem
// accumulates, beta is 1 and C is D. cuBLASLt is column-major and computes D^T[n,m] = op(B) A^T, so
// its A is our B (transposed) and its B is our A.
class LtMatmul {
 public:
  static constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;
  static constexpr int kChoices = 8;

  // A has 1x128 blocks (VEC128), B 128x128 blocks (BLK128x128) or 1x128 blocks (VEC128); or both
  // have scales per row (OUTER_VEC) or per tensor (SCALAR), without fast accumulation. Asks the
  // heuristic for up to kChoices algorithms. Errors: kUnsupported if it has none (m and n must be
  // multiples of 4, k of 16) or if the problem has a bias, kDeviceError.
  static Result<LtMatmul> scaled(std::shared_ptr<const CublasLt> library, const GpuSession& gpu,
                                 const GemmProblem& problem, std::int64_t tokens);
  // A and B are bf16, with the problem's extents. Calls of one stream may share a workspace.
  using Workspace = std::shared_ptr<const DeviceBuffer>;
  static Result<LtMatmul> bf16(std::shared_ptr<const CublasLt> library, const Workspace& workspace,
                               const GemmProblem& problem, std::int64_t tokens);
  static Result<Workspace> make_workspace(const GpuSession& gpu);
  ~LtMatmul();
  LtMatmul(LtMatmul&&) noexcept;
  LtMatmul& operator=(LtMatmul&&) = delete;

  struct Operands {
    const void* a = nullptr;
    const void* a_scale = nullptr;  // null in bf16
    const void* b = nullptr;
    const void* b_scale = nullptr;
    void* d = nullptr;
  };

  int choices() const;
  // `choice` is 0 to choices() - 1, in the order of the heuristic. Legal in a stream capture.
  Status run(int choice, const Operands& operands, CUstream stream) const;

 private:
  struct State;
  explicit LtMatmul(std::unique_ptr<State> state);
  static Result<LtMatmul> create(std::shared_ptr<const CublasLt> library,
                                 const Workspace& workspace, const GemmProblem& problem,
                                 std::int64_t tokens, bool scaled);
  std::unique_ptr<State> state_;
};
LtMatmul::Operands lt_operands(const DeviceTensor& a, const DeviceTensor& b, const DeviceBuffer& d);

// The results of cuBLASLt and of Octile's GEMM on the same quantised operands, each compared with
// FP64. Shapes with (k / 128) % 4 != 0 show whether the padding of the scales is right.
struct Interoperation {
  GemmCheck octile;
  GemmCheck cublaslt;
  bool ok() const { return octile.ok && cublaslt.ok; }
};
Result<Interoperation> check_interoperation(const LibraryHandle& library, const GpuSession& gpu,
                                            const std::shared_ptr<const CublasLt>& cublaslt,
                                            const GemmProblem& problem, std::int64_t tokens);

}  // namespace octile::tools
