#include "runtime/prove/gemm/tensor_arguments.h"

#include <vector>

#include "runtime/families/gemm/complete.h"

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

Result<GemmCall> oracle_call(const GemmProblem& problem, const HostOperand& a, const HostOperand& b,
                             const GemmAddends& addends) {
  GemmArguments args;
  const std::int64_t of_one = has_tokens_in_k(problem) ? a.cols : a.rows;
  args.tokens = has_several_gemms(problem) ? addends.tokens : of_one;
  args.a = a.data;
  args.lda = a.ld;
  args.a_scale = a.scales;
  args.b = b.data;
  args.ldb = b.ld;
  args.b_scale = b.scales;
  args.bias = addends.bias;
  if (problem.grouping == Grouping::kMasked) args.groups.counts = addends.group_rows;
  if (problem.grouping == Grouping::kContiguous) args.groups.offsets = addends.group_rows;
  return complete_for_fp64(problem, args, addends.initial_d);
}

Result<GemmCall> oracle_call(const GemmProblem& problem, const HostTensor& a, const HostTensor& b,
                             const GemmAddends& addends) {
  const auto operand = [](const HostTensor& t) {
    const std::int64_t ld = t.rows == 0 ? 0 : static_cast<std::int64_t>(t.data.size()) / t.rows;
    return HostOperand{t.rows, t.cols, ld, t.data.data(), t.scales.data()};
  };
  return oracle_call(problem, operand(a), operand(b), addends);
}

}  // namespace octile
