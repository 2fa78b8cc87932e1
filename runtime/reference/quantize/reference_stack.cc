#include "runtime/reference/quantize/reference_stack.h"

namespace octile::reference {
namespace {

template <typename T>
T* moved(T* p, std::int64_t bytes) {
  if (p == nullptr) return nullptr;
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(p) +
                              static_cast<std::uintptr_t>(bytes));
}

}  // namespace

Stack::Stack(const QuantizeProblem& problem, const QuantizeCall& call)
    : problem_(problem), first_(call) {
  problem_.grouping = Grouping::kNone;
  first_.row_count = 0;
  steps_ = stack_steps(problem_, {call.rows, call.ldx, call.ldq, call.scale_ld, call.x_scale_ld});
}

QuantizeCall Stack::call(std::int64_t tensor) const {
  QuantizeCall c = first_;
  c.x = moved(c.x, tensor * steps_.x);
  c.q = moved(c.q, tensor * steps_.q);
  c.scale = moved(c.scale, tensor * steps_.scale);
  c.q_transposed = moved(c.q_transposed, tensor * steps_.q_transposed);
  c.scale_transposed = moved(c.scale_transposed, tensor * steps_.scale_transposed);
  c.x_scale = moved(c.x_scale, tensor * steps_.x_scale);
  c.amax = moved(c.amax, tensor * std::int64_t{sizeof *c.amax});
  c.recorded_scale = moved(c.recorded_scale, tensor * std::int64_t{sizeof *c.recorded_scale});
  c.fingerprint = moved(c.fingerprint, tensor * std::int64_t{sizeof *c.fingerprint});
  return c;
}

}  // namespace octile::reference
