// Layer::backward: dX = dY W, dW (+)= dY^T X, and the sums of dY's columns.
#include "runtime/layers/layer.h"
#include "runtime/layers/run.h"
#include "runtime/layers/uses.h"

namespace octile::layers {
namespace {

// The request of a call, for some tokens.
struct Wanted {
  explicit Wanted(const octile_layer_backward_args& args)
      : some(args.tokens > 0),
        dx(args.dx != nullptr),
        dw(args.dw != nullptr),
        sums(args.bias_gradient != nullptr) {}

  Copies of_dy() const { return some ? copies_of_dy(dx, dw, sums) : Copies{}; }

  bool some, dx, dw, sums;
};

class Backward {
 public:
  Backward(const Description& description, const Plans& plans, const BackwardCall& call,
           CUstream stream)
      : d_(description),
        plans_(plans),
        args_(call.args),
        wanted_(call.args),
        run_(plans, description, common_of(call.args), stream),
        dy_(description, Role::kDy, wanted_.of_dy(), call.dy, call.args.tokens),
        x_(description, Role::kX, {.rowwise = false, .transposed = wanted_.dw && wanted_.some},
           wanted_.dw ? call.x : octile_layer_operand{}, call.args.tokens),
        w_(description, Role::kW, {.rowwise = false, .transposed = wanted_.dx && wanted_.some},
           wanted_.dx ? call.w : octile_layer_operand{}, call.args.tokens),
        of_x_{"dx", "lddx", call.args.dx, call.args.lddx},
        of_w_{"dw", "lddw", call.args.dw, call.args.lddw} {}

  // Nothing is enqueued before all this holds.
  Status check() {
    Status ok = run_.check_tokens();
    if (ok) ok = check_arguments();
    if (ok) ok = check_plans();
    if (ok) ok = run_.place({&dy_, &w_, &x_});
    return ok;
  }

  // dW comes last, so that a call that fails has added nothing to it.
  Status run() const {
    Status ok;
    if (clears_sums())
      ok = run_.clear(plan_of_sums(), args_.bias_gradient,
                      static_cast<std::size_t>(d_.n) * sizeof(float));
    if (ok) ok = run_.quantize(dy_, true, args_.bias_gradient);
    if (ok) ok = run_.quantize(w_, true);
    if (ok) ok = run_.transpose(w_);
    const std::int64_t whole = dy_.given.whole_columns;
    if (ok && wanted_.dx && wanted_.some)
      ok = run_.multiply(Pass::kDgrad, dy_.rowwise, w_.transposed, of_x_, nullptr, 0, whole);
    if (ok) ok = run_.quantize(x_, true);
    if (ok && wanted_.dw)
      ok = run_.multiply(Pass::kWgrad, dy_.transposed, x_.transposed, of_w_, nullptr, 0, whole);
    return ok;
  }

 private:
  bool clears_sums() const { return wanted_.sums && !wanted_.some; }
  const Slot& plan_of_sums() const {
    return plans_.quantizer(Role::kDy, copies_of_dy(wanted_.dx, wanted_.dw, true), true);
  }

  Status check_arguments() {
    Status ok = run_.check_groups(wanted_.some || wanted_.dw);
    if (ok) ok = run_.check_scaling();
    if (ok) ok = run_.check_sentry();
    if (ok) ok = run_.check_gemm_options(false);
    for (Operand* operand : {&dy_, &x_, &w_}) {
      if (ok) ok = operand->check(d_);
    }
    if (ok && wanted_.dx && wanted_.some)
      ok = run_.check_result(of_x_, {"tokens", args_.tokens}, d_.k, d_.dtype);
    if (ok && wanted_.dw)
      ok = run_.check_result(of_w_, {"n", d_.tensors() * d_.n}, d_.k, d_.weight_gradient_dtype);
    if (ok && wanted_.sums)
      ok = run_.check_bias_gradient(args_.bias_gradient, is_current(dy_.given));
    return ok;
  }

  Status check_plans() {
    const std::uint32_t uses = use_if(wanted_.dx, OCTILE_LAYER_INPUT_GRADIENT) |
                               use_if(wanted_.dw, OCTILE_LAYER_WEIGHT_GRADIENT) |
                               use_if(wanted_.sums, OCTILE_LAYER_BIAS_GRADIENT) |
                               use_if(is_current(dy_.given), OCTILE_LAYER_CURRENT_DY) |
                               use_if(is_current(x_.given), OCTILE_LAYER_KEEP_X) |
                               use_if(is_current(w_.given), OCTILE_LAYER_KEEP_W) |
                               use_if(is_codes(w_.given), OCTILE_LAYER_HELD_W);
    Status ok = run_.use_quantizer(dy_, uses, wanted_.sums);
    if (ok && clears_sums()) ok = run_.use(plan_of_sums(), 0, uses);
    if (ok) ok = run_.use_quantizer(w_, uses | uses_of_quantizer(Role::kW, w_.made));
    if (ok) ok = run_.use_transposer(w_);
    if (ok) ok = run_.use_quantizer(x_, uses | uses_of_quantizer(Role::kX, x_.made));
    if (ok && wanted_.dx && wanted_.some)
      ok = run_.use(plans_.gemm(Pass::kDgrad), args_.tokens, uses);
    if (ok && wanted_.dw) ok = run_.use(plans_.gemm(Pass::kWgrad), args_.tokens, uses);
    return ok;
  }

  const Description& d_;
  const Plans& plans_;
  const octile_layer_backward_args& args_;
  Wanted wanted_;
  Run run_;
  Operand dy_, x_, w_;
  Result2d of_x_, of_w_;
};

}  // namespace

Status Layer::backward(const BackwardCall& call, CUstream stream) const {
  Backward backward(description_, plans_, call, stream);
  if (Status ok = backward.check(); !ok) return ok;
  return backward.run();
}

}  // namespace octile::layers
