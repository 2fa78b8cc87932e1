#include "runtime/prove/gemm/tensor_arguments.h"

#include <vector>

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

reference::GemmArgs reference_args(const HostOperand& a, const HostOperand& b) {
  reference::GemmArgs args;
  args.m = a.rows;
  args.k = a.cols;
  args.lda = a.ld;
  args.ldb = b.ld;
  args.a = a.data;
  args.a_scale = a.scales;
  args.b = b.data;
  args.b_scale = b.scales;
  return args;
}

reference::GemmArgs reference_args(const HostTensor& a, const HostTensor& b) {
  const auto operand = [](const HostTensor& t) {
    const std::int64_t ld = t.rows == 0 ? 0 : static_cast<std::int64_t>(t.data.size()) / t.rows;
    return HostOperand{t.rows, t.cols, ld, t.data.data(), t.scales.data()};
  };
  return reference_args(operand(a), operand(b));
}

void set_groups(const GemmProblem& problem, std::int64_t tokens, const std::int32_t* group_rows,
                reference::GemmArgs& args) {
  if (!has_several_gemms(problem)) return;
  args.m = m_at(problem, tokens);
  args.k = k_at(problem, tokens);
  args.group_rows = group_rows;
}

}  // namespace octile
