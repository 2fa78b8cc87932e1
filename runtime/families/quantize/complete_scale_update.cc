// The update of delayed scaling's encode scales: its arguments completed, and its host executor.
#include <fmt/format.h>

#include <string_view>

#include "runtime/families/quantize/complete.h"
#include "runtime/launch/argument_checks.h"
#include "runtime/reference/quantize/reference_scale_update.h"

namespace octile {
namespace {

// Tensors of several states lie between each other if the stride is smaller than a state.
Status complete_stride(std::string_view name, std::int64_t states, std::int64_t elements,
                       std::int64_t& stride) {
  if (stride == 0 || states == 1) stride = elements;
  if (stride >= elements) return {};
  return refuse(fmt::format("{} is {}; allowed: 0, or at least {}, the elements of a state", name,
                            stride, elements));
}

Status complete_update(octile_scale_update_args& args) {
  constexpr int kMostMargin = 126;  // 2^-126 is the smallest normal fp32
  if (Status ok = check_extent("tensors", args.tensors); !ok) return ok;
  if (args.tensors == 0) return {};
  const int choice = static_cast<int>(args.choice);
  if (choice < OCTILE_AMAX_LARGEST || choice > OCTILE_AMAX_AVERAGE)
    return refuse(fmt::format("choice is {}; allowed: octile_amax_choice, 0 to 2", choice));
  const bool average = args.choice == OCTILE_AMAX_AVERAGE;
  const std::int64_t least = average ? 2 : 1;
  if (args.length < least || args.length > kMaxExtent)
    return refuse(fmt::format("length is {}; allowed: {} to {}", args.length, least, kMaxExtent));
  if (args.margin < -kMostMargin || args.margin > kMostMargin)
    return refuse(
        fmt::format("margin is {}; allowed: -{} to {}", args.margin, kMostMargin, kMostMargin));
  const bool is_share = args.average_share > 0 && args.average_share <= 1;  // a NaN is not
  if (average && !is_share)
    return refuse(
        fmt::format("average_share is {}; allowed: more than 0, at most 1", args.average_share));
  if (Status ok = check_extent("states", args.states); !ok) return ok;
  if (args.states == 0) args.states = 1;
  if (Status ok = complete_stride("history_stride", args.states, args.length * args.tensors,
                                  args.history_stride);
      !ok)
    return ok;
  if (Status ok = complete_stride("scale_stride", args.states, args.tensors, args.scale_stride);
      !ok)
    return ok;
  if (Status ok = check_pointer("history", args.history, 4); !ok) return ok;
  return check_pointer("encode_scale", args.encode_scale, 4);
}

}  // namespace

Result<octile_scale_update_args> complete(const octile_scale_update_args& args) {
  octile_scale_update_args update = args;
  if (Status ok = complete_update(update); !ok) return tl::unexpected<Error>(ok.error());
  return update;
}

Status run_on_host(const QuantizeProblem& problem, const octile_scale_update_args& args) {
  for (std::int64_t state = 0; state < args.states; ++state) {
    reference::update_scales(problem, {args.history + state * args.history_stride,
                                       args.encode_scale + state * args.scale_stride, args.tensors,
                                       args.length, static_cast<reference::AmaxChoice>(args.choice),
                                       args.margin, args.average_share});
  }
  return {};
}

}  // namespace octile
