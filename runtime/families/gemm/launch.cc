#include "runtime/families/gemm/launch.h"

#include <array>

#include "generator/core/types.h"

namespace octile {
namespace {

constexpr int kOperandBoxCols = 128;  // one 1x128 scale block, one 128-byte swizzle row
// If A has no more rows than this, most bytes read are weights, and they are read once.
constexpr std::int64_t kFewRows = 256;

struct Box {
  std::int64_t rows = 0, cols = 0;  // the matrix
  std::int64_t row_bytes = 0;       // its stride
  int box_rows = 0, box_cols = 0;
  bool clips = false;  // rows of a box may end before the matrix does
  // The matrices of a batch, and the bytes from one to the next; 0 bytes: all GEMMs read the
  // first.
  std::int64_t matrices = 0, matrix_bytes = 0;
};

CUtensorMapSwizzle swizzle_of(int box_row_bytes) {
  return box_row_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
         : box_row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                               : CU_TENSOR_MAP_SWIZZLE_32B;
}

// A map of three dimensions, of which the last has one element in a box.
//
// A map that clips has three, so that the rows of a box may end anywhere. The element (x, y, z) is
// x of row y + z - box_rows of the matrix, and exists if y < box_rows. So the map begins box_rows
// rows before the matrix; the kernel names no row there (templates/gemm/output/clipped_boxes.cuh).
// A map of a batch has the matrices as third dimension.
struct Extents {
  std::uint64_t first = 0;  // address of (0, 0, 0)
  std::int64_t rows = 0, depth = 0;
  std::int64_t depth_bytes = 0;  // stride of the third
};

Extents extents_of(const void* base, const Box& box) {
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  if (box.matrices > 0) return {address, box.rows, box.matrices, box.matrix_bytes};
  if (!box.clips) return {address, box.rows, box.rows + 1, box.row_bytes};
  const auto before = static_cast<std::uint64_t>(box.box_rows * box.row_bytes);
  return {address - before, box.box_rows, box.rows + 1, box.row_bytes};
}

// TMA reads elements outside the matrix as zero and does not write them, so that the kernel treats
// tails as whole tiles.
CUresult encode(const Driver& driver, CUtensorMap* map, CUtensorMapDataType type, int element_bytes,
                const void* base, const Box& box,
                CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_NONE) {
  const Extents e = extents_of(base, box);
  const std::array<cuuint64_t, 3> extents{static_cast<cuuint64_t>(box.cols),
                                          static_cast<cuuint64_t>(e.rows),
                                          static_cast<cuuint64_t>(e.depth)};
  const std::array<cuuint64_t, 2> strides{static_cast<cuuint64_t>(box.row_bytes),
                                          static_cast<cuuint64_t>(e.depth_bytes)};
  const std::array<cuuint32_t, 3> tile{static_cast<cuuint32_t>(box.box_cols),
                                       static_cast<cuuint32_t>(box.box_rows), 1};
  constexpr std::array<cuuint32_t, 3> kContiguous{1, 1, 1};
  return driver->cuTensorMapEncodeTiled(
      map, type, box.clips || box.matrices > 0 ? 3 : 2, reinterpret_cast<void*>(e.first),
      extents.data(), strides.data(), tile.data(), kContiguous.data(),
      CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(box.box_cols * element_bytes), promotion,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

// The same for copies by cp.async.
GemmPlainMap plain_map(const void* base, const Box& box) {
  const Extents e = extents_of(base, box);
  return {e.first,
          box.row_bytes,
          e.depth_bytes,
          static_cast<std::int32_t>(e.rows),
          static_cast<std::int32_t>(box.cols),
          box.box_rows};
}

// Returns how much of a row of A or B one copy brings into L2: two K-blocks. With few rows it is
// one, because the second costs 3 to 6 % of the loads' time (docs/experiments/gemm.md, v29).
CUtensorMapL2promotion promotion_of(std::int64_t m) {
  return m <= kFewRows ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
}

CUtensorMapDataType map_type_of(DType d) {
  switch (d) {
    case DType::kFP32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::kFP16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::kBF16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::kE4M3:
    case DType::kE5M2:
      break;
  }
  return CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

CUresult encode_maps(const Driver& driver, const ResolvedGemm& r, const GemmWork& work,
                     const GemmCall& call, GemmKernelArgs& p) {
  const GemmMatrices& all = call.maps;
  const std::int64_t matrices = r.problem.batch;
  const CUtensorMapL2promotion promotion = promotion_of(call.shape.m);
  const bool grouped = is_grouped(r.problem);
  // If K is empty, nothing is loaded, but a map cannot be empty: D's memory stands in.
  const bool some = all.k > 0;
  const std::int64_t k = some ? all.k : 1;
  const Box a{all.a_rows,
              k,
              some ? call.lda : 16,
              work.a_box_rows,
              kOperandBoxCols,
              groups_rows(r.problem),
              matrices,
              call.strides.a};
  const Box b{all.b_rows, k,        some ? call.ldb : 16, r.b_box_rows, kOperandBoxCols,
              false,      matrices, call.strides.b};
  const void* const a_base = some ? call.a : call.d;
  const void* const b_base = some ? call.b : call.d;
  if (r.config.copies == Copies::kCpAsync) {
    p.a_map.plain = plain_map(a_base, a);
    p.b_map.plain = plain_map(b_base, b);
    return CUDA_SUCCESS;
  }
  CUresult result =
      encode(driver, &p.a_map.tma, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, a_base, a, promotion);
  if (result == CUDA_SUCCESS)
    result = encode(driver, &p.b_map.tma, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, b_base, b, promotion);
  if (result != CUDA_SUCCESS || !r.tma_store) return result;
  const int element = size_of(r.problem.d.dtype);
  const Box d{all.d_rows,   call.shape.n, call.ldd * element, r.d_box_rows,
              r.d_box_cols, grouped,      matrices,           call.strides.d * element};
  return encode(driver, &p.d_map, map_type_of(r.problem.d.dtype), element, call.d, d);
}

void fill_matrices(const GemmCall& call, GemmKernelArgs& p) {
  p.scale_a = call.a_scale;
  p.scale_b = call.b_scale;
  p.d = call.d;
  p.bias = call.bias;
  p.sentry = call.sentry;
  p.scale_a_ld = call.a_scale_ld;
  p.scale_b_ld = call.b_scale_ld;
  p.ldd = call.ldd;
  p.d_scale = call.d_scale;
  p.scale_d_ld = call.d_scale_ld;
}

void fill_work(const ResolvedGemm& r, const GemmWork& work, const GemmCall& call,
               GemmKernelArgs& p) {
  p.m = static_cast<std::int32_t>(call.shape.m);
  p.n = static_cast<std::int32_t>(call.shape.n);
  p.k = static_cast<std::int32_t>(call.tensors.k);
  p.order = work.order;
  if (is_grouped(r.problem)) {
    p.groups = static_cast<std::int32_t>(r.problem.groups);
    p.group_rows = call.group_rows;
    p.tokens = static_cast<std::int32_t>(call.tokens);
  }
  if (is_batched(r.problem)) {
    p.groups = static_cast<std::int32_t>(r.problem.batch);
    p.batch = {call.strides.a_scale, call.strides.b_scale,
               call.strides.d * size_of(r.problem.d.dtype)};
  }
  p.early_stages = call.b_ready ? r.early_stages : 0;
  p.prefetched_stages = call.b_ready ? 0 : r.early_stages;
}

Status launch_kernel(const LaunchSite& site, const ResolvedGemm& r, std::int64_t blocks,
                     GemmKernelArgs& p) {
  CUlaunchConfig config =
      launch_config(site, static_cast<unsigned int>(blocks), static_cast<unsigned int>(r.threads));
  config.sharedMemBytes = static_cast<unsigned int>(r.smem_bytes);
  std::array<void*, 1> parameters{&p};
  return launch(site, r.kernel, config, parameters.data(), r.cluster);
}

// D becomes 0, or stays if the problem accumulates.
Status fill_zero(const LaunchSite& site, const GemmProblem& problem, const GemmCall& call) {
  if (problem.accumulate) return {};
  const bool several = is_batched(problem);
  const std::int64_t rows = several ? call.shape.m : call.tensors.d_rows;
  const auto element = static_cast<std::size_t>(size_of(problem.d.dtype));
  const std::size_t stride = static_cast<std::size_t>(call.strides.d) * element;
  for (std::int64_t i = 0; i < (several ? problem.batch : 1); ++i) {
    const CUresult filled = site.driver->cuMemsetD2D8Async(
        reinterpret_cast<CUdeviceptr>(call.d) + static_cast<std::size_t>(i) * stride,
        static_cast<std::size_t>(call.ldd) * element, 0,
        static_cast<std::size_t>(call.shape.n) * element, static_cast<std::size_t>(rows),
        site.stream);
    if (filled != CUDA_SUCCESS) return site.driver.check(filled, "cuMemsetD2D8Async");
  }
  return {};
}

}  // namespace

Status enqueue(const LaunchSite& site, const ResolvedGemm& r, const GemmCall& call) {
  if (call.work == GemmCall::Work::kEmptySum) return fill_zero(site, r.problem, call);
  const GemmWork work = r.at(call.shape, call.sm_limit);
  GemmKernelArgs p{};
  if (const CUresult encoded = encode_maps(site.driver, r, work, call, p); encoded != CUDA_SUCCESS)
    return site.driver.check(encoded, "cuTensorMapEncodeTiled");
  fill_matrices(call, p);
  fill_work(r, work, call, p);
  return launch_kernel(site, r, work.blocks, p);
}

}  // namespace octile
