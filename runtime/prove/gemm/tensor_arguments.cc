#include "runtime/prove/gemm/tensor_arguments.h"

#include <vector>

#include "generator/core/layout.h"

namespace octile {
namespace {

const void* address(const std::vector<std::uint8_t>& bytes) { return bytes.data(); }
const void* address(const DeviceBuffer& buffer) { return buffer.pointer(); }

template <typename Tensor>
GemmArguments packed_args(const Tensor& a, const Tensor& b, void* d) {
  GemmArguments args;
  args.tokens = a.rows;
  args.a = address(a.data);
  args.a_scale = address(a.scales);
  args.b = address(b.data);
  args.b_scale = address(b.scales);
  args.d = d;
  return args;
}

}  // namespace

GemmArguments gemm_args(const HostTensor& a, const HostTensor& b, void* d) {
  return packed_args(a, b, d);
}
GemmArguments gemm_args(const DeviceTensor& a, const DeviceTensor& b, void* d) {
  return packed_args(a, b, d);
}

GemmCall oracle_call(const HostOperand& a, const HostOperand& b) {
  GemmCall call;
  call.shape = {.m = a.rows, .n = b.rows, .k = a.cols};
  call.lda = a.ld;
  call.ldb = b.ld;
  call.a = a.data;
  call.a_scale = a.scales;
  call.b = b.data;
  call.b_scale = b.scales;
  return call;
}

GemmCall oracle_call(const HostTensor& a, const HostTensor& b) {
  const auto operand = [](const HostTensor& t) {
    const std::int64_t ld = t.rows == 0 ? 0 : static_cast<std::int64_t>(t.data.size()) / t.rows;
    return HostOperand{t.rows, t.cols, ld, t.data.data(), t.scales.data()};
  };
  return oracle_call(operand(a), operand(b));
}

void set_groups(const GemmProblem& problem, std::int64_t tokens, const std::int32_t* group_rows,
                GemmCall& call) {
  if (!has_several_gemms(problem)) return;
  call.shape = shape_of(problem, tokens);
  call.group_rows = group_rows;
  if (!is_batched(problem)) return;
  GemmCall packed = call;
  packed.a_scale_ld = packed_scale_ld(problem.a, call.shape.m, call.shape.k);
  packed.b_scale_ld = packed_scale_ld(problem.b, call.shape.n, call.shape.k);
  call.strides = packed_strides(problem, packed);
}

}  // namespace octile
