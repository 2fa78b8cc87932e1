#include "runtime/layers/plans.h"

#include <fmt/format.h>

#include "runtime/engine/library.h"
#include "runtime/layers/uses.h"

namespace octile::layers {
namespace {

constexpr std::array kOutputOrder{QuantizeOutput::kRowwise, QuantizeOutput::kTransposed,
                                  QuantizeOutput::kBoth};

}  // namespace

QuantizeOutput output_of(Copies copies) {
  if (!copies.rowwise) return QuantizeOutput::kTransposed;
  return copies.transposed ? QuantizeOutput::kBoth : QuantizeOutput::kRowwise;
}

Copies copies_of_dy(bool input_gradient, bool weight_gradient, bool bias_gradient) {
  return {.rowwise = input_gradient || (bias_gradient && !weight_gradient),
          .transposed = weight_gradient};
}

std::size_t Plans::index_of(Role role, QuantizeOutput output, bool sums) {
  const auto outputs =
      static_cast<std::size_t>(role) * kOutputs + static_cast<std::size_t>(output) - 1;
  return outputs * 2 + (sums ? 1 : 0);
}

const Slot& Plans::quantizer(Role role, Copies copies, bool sums) const {
  return quantizers_[index_of(role, output_of(copies), sums)];
}

// A problem that the matrix refuses leaves the slot with the sentence.
Status Plans::fill(Slot& slot, const Problem& problem, const Target& target) const {
  auto plan = Plan::create(*library_, problem, target);
  if (plan) {
    slot.plan = std::move(*plan);
    return {};
  }
  if (plan.error().code != ErrorCode::kUnsupported) return tl::unexpected<Error>(plan.error());
  slot.refused = std::move(plan.error());
  return {};
}

Status Plans::fill_quantizers(const Target& target) {
  for (const Role role : {Role::kX, Role::kW, Role::kDy}) {
    for (const QuantizeOutput output : kOutputOrder) {
      for (const bool sums : {false, true}) {
        if (sums && role != Role::kDy) continue;
        Slot& slot = quantizers_[index_of(role, output, sums)];
        Status ok = fill(slot, octile::layers::quantizer(description_, role, output, sums), target);
        if (!ok) return ok;
      }
    }
  }
  return {};
}

Status Plans::fill_gemms(const Target& target) {
  for (const Pass pass : {Pass::kFprop, Pass::kDgrad, Pass::kWgrad}) {
    Status ok = fill(gemms_[static_cast<std::size_t>(pass)],
                     octile::layers::gemm(description_, pass), target);
    if (!ok) return ok;
  }
  return {};
}

Result<Plans> Plans::create(Library& library, const Description& description,
                            const Target& target) {
  Plans plans(library, description);
  Status ok = plans.fill_quantizers(target);
  if (ok) ok = plans.fill_gemms(target);
  if (ok && description.is_delayed()) {
    for (const Role role : {Role::kX, Role::kDy}) {
      if (ok)
        ok = plans.fill(plans.updates_[role == Role::kDy ? 1 : 0],
                        octile::layers::scale_update(description, role), target);
    }
  }
  for (const Part& part : plans.parts_of(0)) {
    if (ok) ok = part.slot->check();
  }
  if (!ok) return tl::unexpected<Error>(ok.error());
  return plans;
}

std::vector<Plans::Part> Plans::parts_of(std::uint32_t uses) const {
  const bool keeps_x = has_use(uses, OCTILE_LAYER_KEEP_X);
  const bool keeps_w = has_use(uses, OCTILE_LAYER_KEEP_W);
  const bool dx = has_use(uses, OCTILE_LAYER_INPUT_GRADIENT);
  const bool dw = has_use(uses, OCTILE_LAYER_WEIGHT_GRADIENT);
  const bool sums = has_use(uses, OCTILE_LAYER_BIAS_GRADIENT);
  std::vector<Part> parts{{&quantizer(Role::kX, {true, keeps_x}, false), Part::kTokens},
                          {&quantizer(Role::kW, {true, keeps_w && dx}, false), Part::kWeight},
                          {&gemm(Pass::kFprop), Part::kTokens}};
  if (const Copies of_dy = copies_of_dy(dx, dw, sums); of_dy.any())
    parts.push_back({&quantizer(Role::kDy, of_dy, sums), Part::kTokens});
  if (dx) {
    if (!keeps_w) parts.push_back({&quantizer(Role::kW, {false, true}, false), Part::kWeight});
    parts.push_back({&gemm(Pass::kDgrad), Part::kTokens});
  }
  if (dw) {
    if (!keeps_x) parts.push_back({&quantizer(Role::kX, {false, true}, false), Part::kTokens});
    parts.push_back({&gemm(Pass::kWgrad), Part::kTokens});
  }
  if (description_.is_delayed() && (keeps_x || dx || dw || sums)) {
    parts.push_back({&scale_update(Role::kX), Part::kAny});
    parts.push_back({&scale_update(Role::kDy), Part::kAny});
  }
  return parts;
}

Status Plans::prepare(std::int64_t lo, std::int64_t hi, std::uint32_t uses) const {
  std::vector<Plan::Range> ranges;
  for (const auto& [slot, rows] : parts_of(uses)) {
    if (Status ok = slot->check(); !ok) return ok;
    switch (rows) {
      case Part::kTokens:
        ranges.push_back({slot->plan.get(), lo, hi});
        break;
      case Part::kWeight:
        ranges.push_back({slot->plan.get(), description_.n, description_.n});
        break;
      case Part::kAny:
        ranges.push_back({slot->plan.get(), 1, 1});
        break;
    }
  }
  return Plan::prepare_all(*library_, ranges);
}

Result<std::string> Plans::problems(std::uint32_t uses) const {
  std::string text;
  for (const Part& part : parts_of(uses)) {
    if (Status ok = part.slot->check(); !ok) return tl::unexpected<Error>(ok.error());
    text.append(to_text(part.slot->plan->problem())).append("\n");
  }
  return text;
}

}  // namespace octile::layers
