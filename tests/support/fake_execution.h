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

// An operand as its map describes it. A batch has the rows of one matrix.
struct MappedOperand {
  const void* base = nullptr;
  std::int64_t ld = 0, rows = 0, cols = 0, matrix_bytes = 0;
};

// Returns an empty operand if the driver did not encode the map. A map of three dimensions is of a
// batch, or begins a box before the matrix (runtime/families/gemm/launch.cc).
inline MappedOperand mapped_operand(const CUtensorMap& map, bool is_batched = false) {
  const fake_cuda_tensor_map read = encoded(map);
  if (read.magic != FAKE_CUDA_TENSOR_MAP_MAGIC) return {};
  const auto ld = static_cast<std::int64_t>(read.strides_bytes[0]);
  const auto rows = static_cast<std::int64_t>(read.dims[1]);
  const auto cols = static_cast<std::int64_t>(read.dims[0]);
  if (read.rank < 3) return {as_pointer(read.address), ld, rows, cols, 0};
  if (is_batched)
    return {as_pointer(read.address), ld, rows, cols,
            static_cast<std::int64_t>(read.strides_bytes[1])};
  return {as_pointer(read.address + static_cast<std::uint64_t>(rows * ld)), ld,
          static_cast<std::int64_t>(read.dims[2]) - 1, cols, 0};
}

// Returns the same of a map that is plain if the kernel copies by cp.async.
inline MappedOperand mapped_operand(const GemmOperandMap& map, bool plain, bool is_batched) {
  if (!plain) return mapped_operand(map.tma, is_batched);
  return {as_pointer(map.plain.base), map.plain.row_bytes, map.plain.rows, map.plain.columns, 0};
}

// The words of a kernel's name, one after another.
class NameWords {
 public:
  explicit NameWords(std::string_view name) : rest_(name) {}
  std::string_view peek() const { return rest_.substr(0, rest_.find('_')); }
  std::string_view take() {
    const std::string_view word = peek();
    rest_.remove_prefix(std::min(rest_.size(), word.size() + 1));
    return word;
  }
  bool take_if(std::string_view word) {
    const bool is_next = peek() == word;
    if (is_next) take();
    return is_next;
  }
  bool is_empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

// Returns the type whose name begins with a dtype and goes on with a granularity: "e4m3_1x128".
inline TensorType take_type(NameWords& words) {
  const std::string dtype(words.take());
  const auto plain = parse_tensor_type(dtype);
  if (plain && !is_fp8(plain->dtype)) return *plain;
  return parse_tensor_type(dtype + ":" + std::string(words.take())).value();
}

// Whether the scales of 1x128 blocks are words of four exponents and not powers of two in fp32,
// which have no bits below the exponent. A kernel's name does not say so.
inline bool has_packed_scales(const void* scales) {
  std::uint32_t first = 0;
  std::memcpy(&first, scales, sizeof first);
  return (first & 0x7fffff) != 0;
}

// Returns the problem of a launch, by the kernel's name. Sums of row and tensor scales, which are
// exact in tests, have any order.
inline GemmProblem gemm_problem(std::string_view kernel, const GemmKernelArgs& args) {
  NameWords words(kernel.substr(std::strlen("octile_gemm_")));
  GemmProblem p;
  p.a = take_type(words);
  p.b = take_type(words);
  p.d = take_type(words);
  if (words.take_if("pow2")) p.d.scale = ScaleFormat::kF32Pow2;
  p.accumulate = words.take_if("acc");
  for (const DType bias : {DType::kBF16, DType::kFP32})
    if (words.take_if("bias" + std::string(name_of(bias)))) p.bias = bias;
  if (words.take_if("sentry")) p.sentry = Sentry::kWord;
  if (words.take_if("contiguous")) p.grouping = Grouping::kContiguous;
  if (words.take_if("masked")) p.grouping = Grouping::kMasked;
  if (words.take_if("batch")) p.batch = args.groups;
  while (!words.is_empty()) {
    const std::string_view word = words.take();
    if (const auto promote = parse_promote(word.substr(1)); word.starts_with('p') && promote)
      p.promote = *promote;
  }
  p.n = args.n;
  p.k = args.k;
  if (is_grouped(p)) p.groups = args.groups;
  // Groups of K have one matrix of A and of B, whose scales are those of weight gradients.
  if (is_grouped(p) && p.b.granularity == Granularity::k1x128) {
    p.m = args.m;
    p.k = kDynamic;
  }
  if (!has_scales_inside(p) || is_mx(p.a)) return p;
  // Scales of blocks that an instruction multiplies are powers of two.
  p.a.scale = has_packed_scales(args.scale_a) ? ScaleFormat::kUe8m0x4 : ScaleFormat::kF32Pow2;
  const bool packs_b = p.b.granularity == Granularity::k1x128 && has_packed_scales(args.scale_b);
  p.b.scale = packs_b ? ScaleFormat::kUe8m0x4 : ScaleFormat::kF32Pow2;
  return p;
}

// Computes a GEMM from its launch. If D is stored through TMA, it comes from its tensor map.
inline CUresult run_gemm(const fake_cuda_launch& launch) {
  const GemmKernelArgs kernel = gemm_args(launch);
  const GemmProblem problem = gemm_problem(launch.kernel, kernel);
  const bool plain = std::string_view(launch.kernel).ends_with("_cp_async");
  const MappedOperand a = mapped_operand(kernel.a_map, plain, is_batched(problem));
  const MappedOperand b = mapped_operand(kernel.b_map, plain, is_batched(problem));
  GemmCall args;
  args.tokens = is_grouped(problem) ? kernel.tokens : kernel.m;
  args.shape = shape_of(problem, args.tokens);
  args.tensors = matrices_of(problem, args.tokens);
  args.maps = is_batched(problem)
                  ? GemmMatrices{args.shape.m, args.shape.n, args.shape.m, args.shape.k}
                  : args.tensors;
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
  args.bias = kernel.bias;
  args.sentry = kernel.sentry;
  args.group_rows = kernel.group_rows;
  const std::int64_t element = size_of(problem.d.dtype);
  args.strides = {a.matrix_bytes, kernel.batch.scale_a, b.matrix_bytes, kernel.batch.scale_b,
                  kernel.batch.d_bytes / element};
  const auto same = [](const MappedOperand& map, std::int64_t rows, std::int64_t cols) {
    return map.rows == rows && map.cols == cols;
  };
  if (!same(a, args.maps.a_rows, args.maps.k) || !same(b, args.maps.b_rows, args.maps.k))
    return CUDA_ERROR_UNKNOWN;
  if (encoded(kernel.d_map).magic != 0) {
    const MappedOperand d = mapped_operand(kernel.d_map, is_batched(problem));
    if (!same(d, args.maps.d_rows, problem.n) || d.base != args.d || d.ld != args.ldd * element)
      return CUDA_ERROR_UNKNOWN;
  }
  return reference::gemm(problem, args, 1) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

// Returns the problem of a launch of templates/quantize, by the kernel's name, or that of
// kQuantizeText if the name has more than an operation, types and an output.
inline QuantizeProblem quantize_problem(std::string_view kernel) {
  NameWords words(kernel.substr(std::strlen("octile_")));
  QuantizeProblem p;
  if (words.take_if("dequantize")) p.operation = QuantizeOperation::kDequantize;
  const bool transposes = words.take_if("transpose");
  if (transposes) p.operation = QuantizeOperation::kTranspose;
  words.take_if("quantize");
  for (TensorType* type : {&p.x, &p.q}) {
    const auto dtype = parse_tensor_type(std::string(words.peek()) + ":tensor");
    const auto plain = parse_tensor_type(words.peek());
    if (!dtype && !plain) return {};
    *type = take_type(words);
    if (!is_fp8(type->dtype)) continue;
    const auto format = parse_scale_format(words.take());
    if (!format) return {};
    type->scale = *format;
    if (transposes) {
      p.q = p.x;
      break;
    }
  }
  if (words.take_if("delayed")) p.policy = ScalePolicy::kDelayed;
  if (transposes || words.take_if("col")) {
    p.output = QuantizeOutput::kTransposed;
  } else if (words.take_if("both")) {
    p.output = QuantizeOutput::kBoth;
  } else if (!words.take_if("row")) {
    return {};
  }
  return p;
}

// With one scale per tensor if a first pass has found maxima or a cluster does.
inline CUresult run_quantize(const fake_cuda_launch& launch, QuantizeProblem problem) {
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
  args.x_scale = kernel.x_scale;
  args.x_scale_ld = kernel.x_scale_ld;
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
                                              : run_quantize(*launch, quantize_problem(kernel));
}

}  // namespace octile::test
