#include "runtime/reference/quantize/reference_scale_update.h"

#include <algorithm>
#include <cmath>

#include "runtime/reference/quantize/reference_scale.h"

namespace octile::reference {
namespace {

float finite_or_zero(float amax) { return std::isfinite(amax) ? amax : 0.0F; }

// One tensor's column of the history. It chooses an amax and then ages by one step.
class Column {
 public:
  Column(const ScaleUpdateArgs& args, std::int64_t tensor)
      : first_(args.history + tensor), step_(args.tensors), length_(args.length) {}

  float choose(AmaxChoice choice, float share) {
    const float latest = finite_or_zero(at(0));
    if (choice == AmaxChoice::kLatest) return latest;
    if (choice == AmaxChoice::kAverage) {
      // In the first step there is no earlier value to average with.
      const float before = finite_or_zero(at(1));
      return before == 0.0F ? latest : before * (1.0F - share) + latest * share;
    }
    float largest = latest;
    for (std::int64_t i = 1; i < length_; ++i) largest = std::max(largest, finite_or_zero(at(i)));
    return largest;
  }

  // With kAverage, row 1 holds the average; otherwise each row holds one step.
  void move_on(AmaxChoice choice, float chosen) {
    if (choice == AmaxChoice::kAverage) {
      at(1) = chosen;
    } else {
      for (std::int64_t i = length_ - 1; i > 0; --i) at(i) = at(i - 1);
    }
    at(0) = 0.0F;
  }

 private:
  float& at(std::int64_t row) { return first_[row * step_]; }
  float* first_;
  std::int64_t step_;
  std::int64_t length_;
};

}  // namespace

void update_scales(const QuantizeProblem& problem, const ScaleUpdateArgs& args) {
  QuantizeProblem fp32 = problem;
  fp32.via.reset();
  fp32.x = {DType::kFP32};  // a history is fp32 for every type of x
  for (std::int64_t tensor = 0; tensor < args.tensors; ++tensor) {
    Column column(args, tensor);
    const float amax = column.choose(args.choice, args.average_share);
    if (amax != 0.0F) {
      // The factor is a power of two, so the result is exact unless it falls below the smallest
      // normal.
      args.encode_scale[tensor] = encode_scale(amax, fp32) * std::ldexp(1.0F, -args.margin);
    }
    column.move_on(args.choice, amax);
  }
}

}  // namespace octile::reference
