// The part of <cublasLt.h> that cublaslt.cc uses. Its values are the same in CUDA 12.9 and 13.0.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace octile::tools::lt {

using Handle = void*;
using MatmulDesc = void*;
using MatrixLayout = void*;
using Preference = void*;
using StatusCode = int;
inline constexpr StatusCode kSuccess = 0;

inline constexpr int kComputeF32 = 68;  // CUBLAS_COMPUTE_32F
// cudaDataType
inline constexpr int kF32 = 0;
inline constexpr int kF16 = 2;
inline constexpr int kBF16 = 14;
inline constexpr int kE4M3 = 28;
inline constexpr int kE5M2 = 29;
// cublasOperation_t
inline constexpr std::int32_t kNone = 0;
inline constexpr std::int32_t kTranspose = 1;
// cublasLtMatmulDescAttributes_t
inline constexpr int kTransA = 3;
inline constexpr int kTransB = 4;
inline constexpr int kAScalePointer = 17;
inline constexpr int kBScalePointer = 18;
inline constexpr int kAScaleMode = 31;
inline constexpr int kBScaleMode = 32;
// cublasLtMatmulMatrixScale_t
inline constexpr std::int32_t kScaleScalar = 0;
inline constexpr std::int32_t kScaleOuterVec = 3;
inline constexpr std::int32_t kScaleVec128 = 4;
inline constexpr std::int32_t kScaleBlock128x128 = 5;
// cublasLtMatmulPreferenceAttributes_t
inline constexpr int kMaxWorkspaceBytes = 1;

struct Algorithm {
  std::array<std::uint64_t, 8> data;
};
struct HeuristicResult {
  Algorithm algorithm;
  std::size_t workspace_bytes;
  StatusCode state;
  float waves;
  std::array<int, 4> reserved;
};
static_assert(sizeof(HeuristicResult) == 96);

// X(member, exported name, result, parameters)
#define OCTILE_CUBLASLT_FUNCTIONS(X)                                                              \
  X(version, cublasLtGetVersion, std::size_t, ())                                                 \
  X(status_name, cublasLtGetStatusName, const char*, (StatusCode))                                \
  X(create, cublasLtCreate, StatusCode, (Handle*))                                                \
  X(destroy, cublasLtDestroy, StatusCode, (Handle))                                               \
  X(create_desc, cublasLtMatmulDescCreate, StatusCode, (MatmulDesc*, int, int))                   \
  X(destroy_desc, cublasLtMatmulDescDestroy, StatusCode, (MatmulDesc))                            \
  X(set_desc, cublasLtMatmulDescSetAttribute, StatusCode,                                         \
    (MatmulDesc, int, const void*, std::size_t))                                                  \
  X(create_layout, cublasLtMatrixLayoutCreate, StatusCode,                                        \
    (MatrixLayout*, int, std::uint64_t, std::uint64_t, std::int64_t))                             \
  X(destroy_layout, cublasLtMatrixLayoutDestroy, StatusCode, (MatrixLayout))                      \
  X(create_preference, cublasLtMatmulPreferenceCreate, StatusCode, (Preference*))                 \
  X(destroy_preference, cublasLtMatmulPreferenceDestroy, StatusCode, (Preference))                \
  X(set_preference, cublasLtMatmulPreferenceSetAttribute, StatusCode,                             \
    (Preference, int, const void*, std::size_t))                                                  \
  X(heuristic, cublasLtMatmulAlgoGetHeuristic, StatusCode,                                        \
    (Handle, MatmulDesc, MatrixLayout, MatrixLayout, MatrixLayout, MatrixLayout, Preference, int, \
     HeuristicResult*, int*))                                                                     \
  X(matmul, cublasLtMatmul, StatusCode,                                                           \
    (Handle, MatmulDesc, const void*, const void*, MatrixLayout, const void*, MatrixLayout,       \
     const void*, const void*, MatrixLayout, void*, MatrixLayout, const Algorithm*, void*,        \
     std::size_t, CUstream))

}  // namespace octile::tools::lt
