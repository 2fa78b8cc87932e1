#include "tests/gpu/gemm_tensors.h"

#include "tests/gpu/gemm_parts.h"

namespace octile::tests {

GemmArguments GemmTensors::arguments(std::int64_t tokens) const {
  GemmArguments args;
  args.tokens = tokens;
  args.a = a_.pointer();
  args.lda = lda_;
  args.a_scale = a_scale_.pointer();
  args.a_scale_ld = a_scale_ld_;
  args.b = b_.pointer();
  args.ldb = ldb_;
  args.b_scale = b_scale_.pointer();
  args.b_scale_ld = b_scale_ld_;
  args.d = static_cast<char*>(d_.pointer()) + kGuardBytes;
  args.ldd = ldd_;
  args.d_scales.scale = static_cast<float*>(d_scale_.pointer());
  args.monitor.sentry = static_cast<std::uint32_t*>(sentry_.pointer());
  return args;
}

void GemmTensors::poison_output() {
  ASSERT_TRUE(d_.fill(kPoison, gpu_.stream()));
  if (d_scale_.bytes() > 0) {
    ASSERT_TRUE(d_scale_.fill(kPoison, gpu_.stream()));
  }
  if (has_sentry(problem_)) {
    ASSERT_TRUE(sentry_.fill(0, gpu_.stream()));
  }
  if (!problem_.accumulate || d_rows_ == 0 || problem_.n == 0) return;
  const auto element = static_cast<std::size_t>(size_of(problem_.d.dtype));
  ASSERT_EQ(
      (*gpu_.driver())
          ->cuMemsetD2D8Async(d_.get() + kGuardBytes, static_cast<std::size_t>(ldd_) * element,
                              kInitialByte, static_cast<std::size_t>(problem_.n) * element,
                              static_cast<std::size_t>(d_rows_), gpu_.stream()),
      CUDA_SUCCESS);
}

void GemmTensors::run_call(const GemmConfig& config, const GemmArguments& call, CUstream stream) {
  run_kernel(gpu_, problem_, config, call, stream);
}

octile_squares GemmTensors::squares() { return squares_in(gpu_, sentry_); }

std::vector<std::uint8_t> GemmTensors::bytes_of_d() { return bytes_of(gpu_, d_); }

}  // namespace octile::tests
