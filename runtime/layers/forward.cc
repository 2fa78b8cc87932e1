// Layer::forward: Y = X W^T + bias.
#include "runtime/layers/layer.h"
#include "runtime/layers/run.h"
#include "runtime/layers/uses.h"

namespace octile::layers {
namespace {

// Without tokens only W is quantised, if its memory is given.
Copies needed_of(const octile_layer_forward_args& args) {
  return {.rowwise = args.tokens > 0, .transposed = false};
}

class Forward {
 public:
  Forward(const Description& description, const Plans& plans, const ForwardCall& call,
          CUstream stream)
      : d_(description),
        plans_(plans),
        args_(call.args),
        some_(call.args.tokens > 0),
        run_(plans, description, common_of(call.args), stream),
        x_(description, Role::kX, needed_of(call.args), call.x, call.args.tokens),
        w_(description, Role::kW, needed_of(call.args), call.w, call.args.tokens),
        y_{"y", "ldy", call.args.y, call.args.ldy} {}

  // Nothing is enqueued before all this holds.
  Status check() {
    Status ok = run_.check_tokens();
    if (ok) ok = run_.check_groups(some_);
    if (ok) ok = run_.check_scaling();
    if (ok) ok = run_.check_sentry();
    if (ok) ok = run_.check_gemm_options(w_.given.state != OCTILE_LAYER_QUANTIZE);
    if (ok) ok = x_.check(d_);
    if (ok) ok = w_.check(d_);
    if (ok && some_) ok = run_.check_result(y_, {"tokens", args_.tokens}, d_.n, d_.dtype);
    if (ok) ok = run_.check_bias(args_.bias, some_);
    if (ok) ok = run_.use_quantizer(x_, uses_of_quantizer(Role::kX, x_.made));
    if (ok) ok = run_.use_quantizer(w_, uses_of_quantizer(Role::kW, w_.made));
    if (ok && some_) ok = run_.use(plans_.gemm(Pass::kFprop), args_.tokens, 0);
    if (ok) ok = run_.place({&x_, &w_});
    return ok;
  }

  Status run() const {
    Status ok = run_.quantize(x_, args_.record_x != 0);
    if (ok) ok = run_.quantize(w_, true);
    if (ok && some_)
      ok = run_.multiply(Pass::kFprop, x_.rowwise, w_.rowwise, y_, args_.bias, w_.given.scale_ld);
    return ok;
  }

 private:
  const Description& d_;
  const Plans& plans_;
  const octile_layer_forward_args& args_;
  bool some_;  // tokens
  Run run_;
  Operand x_, w_;
  Result2d y_;
};

}  // namespace

Status Layer::forward(const ForwardCall& call, CUstream stream) const {
  Forward forward(description_, plans_, call, stream);
  if (Status ok = forward.check(); !ok) return ok;
  return forward.run();
}

}  // namespace octile::layers
