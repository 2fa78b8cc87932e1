// Calls of the host device, one of every kind, with inputs of their own and with all outputs in one
// block of memory, so that a byte written anywhere is seen.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "tests/support/api_handles.h"
#include "tests/support/gemm_call.h"

namespace octile::test {

// Problems of 130 tokens and 272 columns that take every path of the host executor.
inline const std::vector<std::string>& host_problems() {
  static const std::vector<std::string> problems{
      "quantize rows=? cols=272 x=fp32 q=e4m3:1x128 out=both dbias=1",
      "quantize rows=? cols=272 x=bf16 q=e4m3:row out=both",
      "quantize rows=? cols=272 x=bf16 q=e4m3:tensor out=row src=rmsnorm",
      "quantize rows=? cols=272 x=bf16 q=e4m3:1x128 out=row src=silu_mul tap=1",
      "quantize rows=? cols=272 x=bf16 q=e4m3:tensor out=row policy=delayed",
      "quantize rows=? cols=272 x=bf16 q=e4m3:1x128 out=both group=contiguous",
      "quantize rows=? cols=272 x=bf16 q=e4m3:tensor out=both group=contiguous",
      "quantize rows=? cols=272 x=bf16 q=e4m3:1x32 out=row group=masked",
      "amax rows=? cols=272 x=fp32 q=e4m3:tensor",
      "dequantize rows=? cols=272 x=e4m3:1x128 q=bf16 out=row",
      "transpose rows=? cols=272 x=e4m3:128x128 q=e4m3:128x128 out=col",
      "gemm m=? n=272 k=272 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 bias=bf16 "
      "sentry=1",
      "gemm m=? n=272 k=272 a=e4m3:1x128 b=e4m3:128x128 d=e4m3:1x128 acc=0 promote=128",
      "gemm m=? n=272 k=272 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 groups=2 "
      "group=contiguous",
      "gemm m=? n=272 k=272 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 groups=2 "
      "group=masked",
      "gemm m=272 n=272 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=0 promote=128 groups=2 "
      "group=contiguous",
      "gemm m=? n=272 k=272 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 batch=2"};
  return problems;
}

class HostRun {
 public:
  explicit HostRun(std::string problem) : problem_(std::move(problem)) {
    auto* numbers = in_.at<float>();
    for (std::size_t i = 0; i < kPlaces * kBytes / 4; ++i)
      numbers[i] = static_cast<float>(i % 29) / 8 - 1.5F;
    for (auto& [place, value] : {std::pair{kScaleA, 1.0F}, {kScaleB, 0.5F}}) {
      for (std::size_t i = 0; i < kBytes / 4; ++i) in(place, numbers)[i] = value;
    }
    std::memset(in(kCodesA), 0x35, kBytes);
    std::memset(in(kCodesB), 0x38, kBytes);
    poison();
  }

  void poison() { std::memset(out_.at(), 0xA5, kPlaces * kBytes); }
  bool untouched() {
    const auto* bytes = out_.at<unsigned char>();
    return std::all_of(bytes, bytes + kPlaces * kBytes,
                       [](unsigned char byte) { return byte == 0xA5; });
  }
  std::vector<unsigned char> outputs() {
    return {out_.at<unsigned char>(), out_.at<unsigned char>() + kPlaces * kBytes};
  }

  octile_status run(octile_plan* plan) {
    return problem_.starts_with("gemm") ? run_gemm(plan) : run_quantize(plan);
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{640} << 10, kPlaces = 8;
  static constexpr std::int64_t kTokens = 130;
  enum Place : std::size_t { kCodesA, kCodesB, kScaleA, kScaleB, kX1, kBias };
  static constexpr std::int32_t kOffsets[] = {0, 30, kTokens}, kCounts[] = {70, kTokens};

  bool has(const char* text) const { return problem_.find(text) != std::string::npos; }
  template <typename T = void>
  T* in(Place place, T* = nullptr) {
    return in_.at<T>(place * kBytes);
  }
  template <typename T = void>
  T* out(std::size_t place) {
    return out_.at<T>(place * kBytes);
  }

  octile_status run_gemm(octile_plan* plan) {
    GemmArguments args;
    args.tokens = kTokens;
    args.a = in(kCodesA);
    args.a_scale = in(kScaleA);
    args.b = in(kCodesB);
    args.b_scale = in(kScaleB);
    args.d = out(0);
    if (has("d=e4m3")) args.d_scales.scale = out<float>(1);
    if (has("bias=")) args.bias = in(kBias);
    if (has("sentry=")) args.monitor.sentry = out<std::uint32_t>(2);
    if (has("group=contiguous")) args.groups.offsets = kOffsets;
    if (has("group=masked")) args.groups.counts = kCounts;
    return tests::run_gemm(plan, args, nullptr);
  }

  octile_status run_quantize(octile_plan* plan) {
    QuantizeArguments args;
    const bool coded = has("x=e4m3");
    args.rows = kTokens;
    args.x = coded ? in(kCodesA) : in_.at();
    if (coded) args.source_scales.x_scale = in(kScaleA);
    const bool rowwise = has("out=row") || has("out=both");
    if (rowwise) args.q = out(0);
    if (rowwise && !has("dequantize")) args.scale = out(1);
    if (has("out=col") || has("out=both")) {
      args.q_transposed = out(2);
      args.scale_transposed = out(3);
    }
    if (has("dbias=1")) args.fused.bias_gradient = out<float>(4);
    if (has("tap=1")) args.fused.tap = out<float>(5);
    if (has("norm") || has("silu_mul")) args.fused.x1 = in(kX1);
    if (has("norm")) args.fused.rstd = out<float>(6);
    if (has("delayed")) args.delayed.encode_scale = in<float>(kScaleB);
    if (has("group=contiguous")) args.groups.offsets = kOffsets;
    if (has("group=masked")) args.groups.counts = kCounts;
    if (has("group=")) args.groups.group_count = 2;
    if (has("amax")) args.monitor.amax = out<float>(7);
    const octile_quantize_args call = args.call();
    return octile_quantize_run(plan, &call, nullptr);
  }

  std::string problem_;
  Bytes in_{kPlaces * kBytes}, out_{kPlaces * kBytes};
};

}  // namespace octile::test
