#include "runtime/layers/plans.h"

#include <array>
#include <vector>

#include "runtime/engine/library.h"

namespace octile::layers {
namespace {

constexpr std::array kOutputOrder{QuantizeOutput::kRowwise, QuantizeOutput::kTransposed,
                                  QuantizeOutput::kBoth};

}  // namespace

std::size_t Plans::index_of(Role role, QuantizeOutput output, bool extra) {
  const auto outputs =
      static_cast<std::size_t>(role) * kOutputs + static_cast<std::size_t>(output) - 1;
  return outputs * 2 + (extra ? 1 : 0);
}

const Slot& Plans::quantizer(Role role, Copies copies, bool extra) const {
  return quantizers_[index_of(role, output_of(copies), extra)];
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
      for (const bool extra : {false, true}) {
        if (extra && role == Role::kX) continue;
        Slot& slot = quantizers_[index_of(role, output, extra)];
        Status ok =
            fill(slot, octile::layers::quantizer(description_, role, output, extra), target);
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
  if (Status holdable = check_holdable(description); !holdable) {
    plans.transposer_.refused = std::move(holdable.error());
  } else if (ok) {
    ok = plans.fill(plans.transposer_, layers::transposer(description), target);
  }
  if (ok) ok = plans.fill_gemms(target);
  if (ok && description.is_delayed()) {
    for (const Role role : {Role::kX, Role::kDy}) {
      if (ok)
        ok = plans.fill(plans.updates_[role == Role::kDy ? 1 : 0],
                        octile::layers::scale_update(description, role), target);
    }
  }
  if (ok) ok = plans.check(0);
  if (!ok) return tl::unexpected<Error>(ok.error());
  return plans;
}

const Slot& Plans::slot_of(const Step& step) const {
  switch (step.work) {
    case Work::kQuantize:
      return quantizer(step.role, step.copies, step.extra);
    case Work::kTranspose:
      return transposer();
    case Work::kMultiply:
      return gemm(step.pass);
    case Work::kUpdateScales:
      break;
  }
  return scale_update(step.role);
}

Status Plans::check(std::uint32_t uses) const {
  for (const Step& step : steps_of(description_, uses)) {
    if (Status ok = slot_of(step).check(); !ok) return ok;
  }
  return {};
}

Result<std::vector<Plan::Range>> Plans::ranges(std::int64_t lo, std::int64_t hi,
                                               std::uint32_t uses) const {
  if (Status ok = check(uses); !ok) return tl::unexpected<Error>(ok.error());
  std::vector<Plan::Range> ranges;
  for (const Step& step : steps_of(description_, uses)) {
    Plan* const plan = slot_of(step).plan.get();
    switch (step.rows) {
      case Step::Rows::kTokens:
        ranges.push_back({plan, lo, hi});
        break;
      case Step::Rows::kWeight:
        ranges.push_back({plan, description_.n, description_.n});
        break;
      case Step::Rows::kOne:
        ranges.push_back({plan, 1, 1});
        break;
    }
  }
  return ranges;
}

Result<std::string> Plans::problems(std::uint32_t uses) const {
  if (Status ok = check(uses); !ok) return tl::unexpected<Error>(ok.error());
  std::string text;
  for (const Step& step : steps_of(description_, uses))
    text.append(to_text(slot_of(step).plan->problem())).append("\n");
  return text;
}

}  // namespace octile::layers
