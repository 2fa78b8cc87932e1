#include "runtime/layers/layer.h"

#include <fmt/format.h>

#include "runtime/engine/plan_run.h"
#include "runtime/launch/argument_checks.h"
#include "runtime/layers/run.h"
#include "runtime/layers/uses.h"

namespace octile::layers {

Result<std::unique_ptr<Layer>> Layer::create(Library& library, const Description& description,
                                             const Target& target) {
  if (Status ok = check(description); !ok) return tl::unexpected<Error>(ok.error());
  auto plans = Plans::create(library, description, target);
  if (!plans) return tl::unexpected<Error>(plans.error());
  return std::unique_ptr<Layer>(new Layer(description, std::move(*plans)));
}

Result<std::vector<Plan::Range>> Layer::ranges(std::int64_t lo, std::int64_t hi,
                                               std::uint32_t uses) const {
  if (Status ok = check_uses(description_, uses); !ok) return tl::unexpected<Error>(ok.error());
  return plans_.ranges(lo, hi, uses);
}

Result<std::string> Layer::problems(std::uint32_t uses) const {
  if (Status ok = check_uses(description_, uses); !ok) return tl::unexpected<Error>(ok.error());
  return plans_.problems(uses);
}

std::int64_t Layer::scaling_elements() const { return Scaling::elements(description_); }

Status Layer::quantize(const QuantizeCall& call, CUstream stream) const {
  const octile_layer_quantize_args& args = call.args;
  const auto role = static_cast<Role>(args.tensor);
  const bool is_w = role == Role::kW;
  Run run(plans_, description_, common_of(args), stream);
  if (Status ok = run.check_tokens(); !ok) return ok;
  // Needs a copy if the operand is null, so that check names the missing operand.
  Operand operand(description_, role, {.rowwise = call.operand.struct_size == 0}, call.operand,
                  args.tokens);
  const std::string_view name = name_of(role);
  Status ok = run.check_groups(!is_w && args.tokens > 0);
  if (ok && !is_w) ok = run.check_scaling();
  if (ok) ok = operand.check(description_);
  if (ok && call.operand.state != OCTILE_LAYER_QUANTIZE)
    ok =
        refuse(fmt::format("{} is {}; allowed: OCTILE_LAYER_QUANTIZE", name,
                           is_codes(call.operand) ? "OCTILE_LAYER_CODES" : "OCTILE_LAYER_CURRENT"));
  if (ok && !operand.made.any() && operand.rows(description_) > 0)
    ok =
        refuse(fmt::format("{}.rowwise and {}.transposed are null; allowed: memory of at least one "
                           "copy",
                           name, name));
  const std::uint32_t keeps = use_if(is_w, OCTILE_LAYER_KEEP_W);
  if (ok) ok = run.use_quantizer(operand, keeps | uses_of_quantizer(role, operand.made));
  if (ok) ok = run.place({&operand});
  if (ok) ok = run.quantize(operand, role != Role::kX || args.record_x != 0);
  return ok;
}

Status Layer::update_scales(const octile_layer_update_args& args, CUstream stream) const {
  if (!description_.is_delayed())
    return refuse(
        fmt::format("the layer's recipe is '{}'; allowed: delayed, whose scales are made "
                    "from maxima",
                    description_.recipe->name));
  CommonArguments common;
  common.scaling = args.scaling;
  Run run(plans_, description_, common, stream);
  if (Status ok = run.check_scaling(); !ok) return ok;
  if (static_cast<int>(args.choice) == OCTILE_AMAX_AVERAGE && description_.history < 2)
    return refuse("choice is OCTILE_AMAX_AVERAGE and the layer's history is 1; allowed: 2 or more");
  const Scaling scaling(description_, args.scaling);
  const std::int64_t elements = Scaling::elements(description_);
  const std::int64_t stride = args.stride == 0 ? elements : args.stride;
  if (stride < elements)
    return refuse(fmt::format("stride is {}; allowed: 0, or at least {}, the elements of a state",
                              stride, elements));
  for (const Role role : {Role::kX, Role::kDy}) {
    if (Status ok = run.use(plans_.scale_update(role), 1, OCTILE_LAYER_KEEP_X); !ok) return ok;
  }
  for (const Role role : {Role::kX, Role::kDy}) {
    octile_scale_update_args update{};
    update.struct_size = sizeof update;
    update.history = scaling.maxima(role);
    update.encode_scale = scaling.encode(role);
    update.tensors = description_.tensors();
    update.length = description_.history;
    update.choice = args.choice;
    update.margin = args.margin;
    update.average_share = args.average_share;
    update.states = args.states;
    update.history_stride = update.scale_stride = stride;
    if (Status ok = plans_.scale_update(role).plan->run(update, stream); !ok) return ok;
  }
  return {};
}

}  // namespace octile::layers
