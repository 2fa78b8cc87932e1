// The declarations of cuBLASLt against its own header, if it can be compiled: the toolkit has it,
// and so have the wheels that PyTorch brings, but these lack a header that it includes.
#include <gtest/gtest.h>

#include "tools/peers/cublaslt_types.h"

#if __has_include(<cublasLt.h>) && __has_include(<crt/host_defines.h>)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
#include <cublasLt.h>
#pragma GCC diagnostic pop

namespace octile::tools {
namespace {

TEST(CublasLt, TypesAreThoseOfItsHeader) {
  EXPECT_EQ(lt::kSuccess, CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(lt::kComputeF32, CUBLAS_COMPUTE_32F);
  EXPECT_EQ(lt::kF32, CUDA_R_32F);
  EXPECT_EQ(lt::kF16, CUDA_R_16F);
  EXPECT_EQ(lt::kBF16, CUDA_R_16BF);
  EXPECT_EQ(lt::kE4M3, CUDA_R_8F_E4M3);
  EXPECT_EQ(lt::kE5M2, CUDA_R_8F_E5M2);
  EXPECT_EQ(lt::kNone, CUBLAS_OP_N);
  EXPECT_EQ(lt::kTranspose, CUBLAS_OP_T);
  EXPECT_EQ(lt::kTransA, CUBLASLT_MATMUL_DESC_TRANSA);
  EXPECT_EQ(lt::kTransB, CUBLASLT_MATMUL_DESC_TRANSB);
  EXPECT_EQ(lt::kAScalePointer, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
  EXPECT_EQ(lt::kBScalePointer, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
  EXPECT_EQ(lt::kAScaleMode, CUBLASLT_MATMUL_DESC_A_SCALE_MODE);
  EXPECT_EQ(lt::kBScaleMode, CUBLASLT_MATMUL_DESC_B_SCALE_MODE);
  EXPECT_EQ(lt::kScaleScalar, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F);
  EXPECT_EQ(lt::kScaleOuterVec, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
  EXPECT_EQ(lt::kScaleVec128, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
  EXPECT_EQ(lt::kScaleBlock128x128, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
  EXPECT_EQ(lt::kMaxWorkspaceBytes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
  EXPECT_EQ(sizeof(lt::Algorithm), sizeof(cublasLtMatmulAlgo_t));
  EXPECT_EQ(sizeof(lt::HeuristicResult), sizeof(cublasLtMatmulHeuristicResult_t));
  EXPECT_EQ(offsetof(lt::HeuristicResult, state), offsetof(cublasLtMatmulHeuristicResult_t, state));
}

}  // namespace
}  // namespace octile::tools

#else

TEST(CublasLt, TypesAreThoseOfItsHeader) { GTEST_SKIP() << "no cublasLt.h"; }

#endif
