// How the host reference executor carries out a launch of the fake driver, from the launch's
// parameters and tensor maps. A wrong parameter therefore gives a wrong result.
#pragma once

#include <cmath>
#include <cstring>
#include <string_view>

#include "generator/quantize/config.h"
#include "generator/quantize/grid.h"
#include "generator/quantize/kernel_args.h"
#include "runtime/families/gemm/launch.h"
#include "runtime/reference/gemm/reference.h"
#include "runtime/reference/quantize/reference.h"
#include "runtime/reference/quantize/reference_scale_update.h"
#include "tests/fake_driver/fake_driver.h"

namespace octile::test {

template <typename T>
T parameter(const fake_cuda_launch& launch, std::size_t index) {
  T value;
  std::memcpy(&value, launch.parameters[index], sizeof(value));
  return value;
}

inline const void* as_pointer(std::uint64_t address) {
  return reinterpret_cast<const void*>(static_cast<std::uintptr_t>(address));
}

// Returns the argument of a launch of templates/gemm/kernel.cu.
inline GemmKernelArgs gemm_args(const fake_cuda_launch& launch) {
  return parameter<GemmKernelArgs>(launch, 0);
}

// Returns what the fake driver encoded in a tensor map.
inline fake_cuda_tensor_map encoded(const CUtensorMap& map) {
  fake_cuda_tensor_map result;
  static_assert(sizeof(result) <= sizeof(map));
  std::memcpy(&result, &map, sizeof(result));
  return result;
}

// An operand as its map describes it.
struct MappedOperand {
  const void* base = nullptr;
  std::int64_t ld = 0, rows = 0, cols = 0;
};

// Returns an empty operand if the driver did not encode the map.
inline MappedOperand mapped_operand(const CUtensorMap& map) {
  const fake_cuda_tensor_map read = encoded(map);
  if (read.magic != FAKE_CUDA_TENSOR_MAP_MAGIC) return {};
  return {as_pointer(read.address), static_cast<std::int64_t>(read.strides_bytes[0]),
          static_cast<std::int64_t>(read.dims[1]), static_cast<std::int64_t>(read.dims[0])};
}

// Returns the same of a map that is plain if the kernel copies by cp.async.
inline MappedOperand mapped_operand(const GemmOperandMap& map, bool plain) {
  if (!plain) return mapped_operand(map.tma);
  return {as_pointer(map.plain.base), map.plain.row_bytes, map.plain.rows, map.plain.columns};
}

// Computes a GEMM from its launch. Operands are those of kGemmText, MX, both scaled by 1x128, or
// both by row; sums of MX operands and of rows have one order, those of blocks that of the name. D
// is bf16, fp32 or E4M3. If it is stored through TMA, it comes from its tensor map.
inline CUresult run_gemm(const fake_cuda_launch& launch) {
  const GemmKernelArgs kernel = gemm_args(launch);
  const bool plain = std::string_view(launch.kernel).ends_with("_cp_async");
  const MappedOperand a = mapped_operand(kernel.a_map, plain);
  const MappedOperand b = mapped_operand(kernel.b_map, plain);
  GemmProblem problem;
  if (std::string_view(launch.kernel).find("_fp32_") != std::string_view::npos) {
    problem.d.dtype = DType::kFP32;
  }
  const auto is_of = [&](std::string_view operands) {
    return std::string_view(launch.kernel)
        .substr(std::strlen("octile_gemm_"))
        .starts_with(operands);
  };
  if (is_of("e4m3_1x32_e4m3_1x32_")) {
    problem.promote = kPromoteNone;
    problem.a = problem.b = {DType::kE4M3, Granularity::k1x32, ScaleFormat::kE8M0};
  }
  if (is_of("e4m3_1x128_e4m3_128x128_e4m3_1x128_")) {
    problem.d = {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32};
  }
  if (is_of("e4m3_1x128_e4m3_1x128_")) problem.b.granularity = Granularity::k1x128;
  if (is_of("e4m3_row_e4m3_row_")) {
    problem.promote = kPromoteNone;
    problem.a.granularity = problem.b.granularity = Granularity::kPerRow;
  }
  // Scales of blocks that an instruction multiplies are powers of two.
  const bool sums_all = std::string_view(launch.kernel).find("_pnone_") != std::string_view::npos;
  if (sums_all && problem.a.granularity == Granularity::k1x128) {
    problem.promote = kPromoteNone;
    problem.a.scale = problem.b.scale = ScaleFormat::kF32Pow2;
  }
  problem.n = kernel.n;
  problem.k = kernel.k;
  GemmCall args;
  args.shape = {kernel.m, kernel.n, kernel.k};
  args.a = a.base;
  args.lda = a.ld;
  args.a_scale = kernel.scale_a;
  args.a_scale_ld = kernel.scale_a_ld;
  args.b = b.base;
  args.ldb = b.ld;
  args.b_scale = kernel.scale_b;
  args.b_scale_ld = kernel.scale_b_ld;
  args.d = kernel.d;
  args.ldd = kernel.ldd;
  args.d_scale = kernel.d_scale;
  args.d_scale_ld = kernel.scale_d_ld;
  const auto same = [](const MappedOperand& map, std::int64_t rows, std::int64_t cols) {
    return map.rows == rows && map.cols == cols;
  };
  if (!same(a, args.shape.m, problem.k) || !same(b, problem.n, problem.k))
    return CUDA_ERROR_UNKNOWN;
  if (encoded(kernel.d_map).magic != 0) {
    const MappedOperand d = mapped_operand(kernel.d_map);
    if (!same(d, args.shape.m, problem.n) || d.base != args.d ||
        d.ld != args.ldd * size_of(problem.d.dtype))
      return CUDA_ERROR_UNKNOWN;
  }
  return reference::gemm(problem, args, 1) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

// Reads the parameter of templates/quantize. The numerics are those of kQuantizeText, with one
// scale per tensor if a first pass has found maxima or a cluster does.
inline CUresult run_quantize(const fake_cuda_launch& launch, QuantizeProblem problem = {}) {
  const auto kernel = parameter<QuantizeKernelArgs>(launch, 0);
  problem.cols = kernel.cols;
  const bool one_cluster = std::string_view(launch.kernel).find("_cluster") != std::string::npos;
  if (kernel.partials > 0 || one_cluster) problem.q.granularity = Granularity::kPerTensor;
  QuantizeCall args;
  args.rows = kernel.rows;
  args.x = kernel.x;
  args.ldx = kernel.ldx;
  args.q = kernel.q;
  args.ldq = kernel.ldq;
  args.scale = kernel.scale;
  args.scale_ld = kernel.scale_ld;
  args.ldq_transposed = kernel.ldq_transposed;
  args.scale_ld_transposed = kernel.scale_ld_transposed;
  args.skip = kernel.skip;
  args.nonfinite = reinterpret_cast<std::uint64_t*>(kernel.nonfinite);
  if (kernel.q_transposed != nullptr) {
    problem.output = kernel.q != nullptr ? QuantizeOutput::kBoth : QuantizeOutput::kTransposed;
    args.q_transposed = kernel.q_transposed;
    args.scale_transposed = kernel.scale_transposed;
  }
  if (kernel.encode_scale != nullptr) {
    problem.q.granularity = Granularity::kPerTensor;
    problem.policy = ScalePolicy::kDelayed;
    args.encode_scale = kernel.encode_scale;
    args.amax = reinterpret_cast<float*>(kernel.amax);
  }
  return reference::quantize(problem, args, 1) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

// Writes a maximum of 1 for each part. Tests of the GPU suite check the values of maxima.
inline CUresult run_amax(const fake_cuda_launch& launch) {
  const auto kernel = parameter<QuantizeKernelArgs>(launch, 0);
  for (std::int64_t i = 0; i < kernel.partials; ++i) kernel.maxima[i] = 1;
  return CUDA_SUCCESS;
}

inline CUresult run_scale_update(const fake_cuda_launch& launch) {
  const auto kernel = parameter<ScaleUpdateKernelArgs>(launch, 0);
  QuantizeProblem problem;
  problem.q.granularity = Granularity::kPerTensor;
  problem.policy = ScalePolicy::kDelayed;
  const std::int64_t states =
      static_cast<std::int64_t>(launch.grid[0]) / ceil_div(kernel.tensors, kUpdateColumns);
  for (std::int64_t state = 0; state < states; ++state) {
    reference::update_scales(
        problem, {kernel.history + state * kernel.history_stride,
                  kernel.encode_scale + state * kernel.scale_stride, kernel.tensors, kernel.length,
                  static_cast<reference::AmaxChoice>(kernel.choice),
                  -std::ilogb(kernel.margin_factor), kernel.share});
  }
  return CUDA_SUCCESS;
}

inline CUresult execute(const fake_cuda_launch* launch, void*) {
  const std::string_view kernel = launch->kernel;
  return kernel.starts_with("octile_gemm")    ? run_gemm(*launch)
         : kernel.starts_with("octile_amax")  ? run_amax(*launch)
         : kernel.starts_with("octile_scale") ? run_scale_update(*launch)
                                              : run_quantize(*launch);
}

}  // namespace octile::test
