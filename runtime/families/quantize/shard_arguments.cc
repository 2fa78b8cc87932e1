#include "runtime/families/quantize/shard_arguments.h"

#include <fmt/format.h>

#include <string_view>

#include "generator/core/layout.h"
#include "runtime/launch/argument_checks.h"

namespace octile {
namespace {

Status check_no_shard(const octile_quantize_shard& shard) {
  if (shard.start == 0 && shard.length == 0 && shard.amax == nullptr) [[likely]]
    return {};
  const std::string_view name = shard.amax != nullptr ? "shard.amax"
                                : shard.length != 0   ? "shard.length"
                                                      : "shard.start";
  return refuse(
      fmt::format("{} is given; allowed: 0, because the plan quantises whole tensors", name));
}

Status check_no_extent(const octile_quantize_shard& shard) {
  if (shard.start == 0 && shard.length == 0) return {};
  const bool start = shard.start != 0;
  return refuse(
      fmt::format("shard.{} is {}; allowed: 0, because the scales are of the whole tensor",
                  start ? "start" : "length", start ? shard.start : shard.length));
}

Status check_flat(std::string_view name, std::int64_t ld, std::int64_t cols) {
  if (ld == 0 || ld == cols) return {};
  return refuse(
      fmt::format("{} is {}; allowed: 0 or cols = {}, because a range is flat", name, ld, cols));
}

}  // namespace

Status check_shard_extent(const QuantizeProblem& p, const QuantizeArguments& args) {
  const octile_quantize_shard& shard = args.shard;
  if (p.shard == ShardStep::kNone) return check_no_shard(shard);
  if (p.shard == ShardStep::kScales) return check_no_extent(shard);
  const std::int64_t elements = args.rows * p.cols;  // both of 31 bits
  if (elements > 0)
    if (Status ok = check_feature("shard", shard.struct_size, "quantises a range"); !ok) return ok;
  if (shard.start < 0 || shard.start > elements)
    return refuse(
        fmt::format("shard.start is {}; allowed: 0 to rows * cols = {}", shard.start, elements));
  const std::int64_t most = elements - shard.start;
  if (shard.length >= 0 && shard.length <= most) return {};
  return refuse(fmt::format("shard.length is {}; allowed: 0 to {}, where the tensor ends",
                            shard.length, most));
}

Status complete_shard(const QuantizeProblem& p, const QuantizeArguments& args, QuantizeCall& call) {
  if (Status ok = check_pointer("x", args.x, size_of(p.x.dtype)); !ok) return ok;
  if (Status ok = check_flat("ldx", args.ldx, p.cols); !ok) return ok;
  if (Status ok = check_flat("ldq", args.ldq, p.cols); !ok) return ok;
  if (args.monitor.amax != nullptr)
    return refuse(
        "monitor.amax is given; allowed: null, because shard.amax holds the maxima of shards");
  if (Status ok = check_pointer("shard.amax", args.shard.amax, 4); !ok) return ok;
  if (p.shard == ShardStep::kAmax) return {};
  if (Status ok = check_pointer("q", args.q, 1); !ok) return ok;
  if (Status ok = check_pointer("scale", args.scale, scale_alignment(p.q)); !ok) return ok;
  return check_scale_ld("scale_ld", call.scale_ld, p, args.rows);
}

Status complete_scales(const QuantizeProblem& p, const QuantizeArguments& args,
                       QuantizeCall& call) {
  constexpr std::string_view kWhy = "makes scales alone";
  struct Array {
    std::string_view name;
    const void* pointer;
    bool wanted;
  };
  for (const Array& unused : {Array{"x", args.x, false},
                              {"q", args.q, false},
                              {"q_transposed", args.q_transposed, false}}) {
    if (Status ok = check_absent(unused.name, unused.pointer, kWhy); !ok) return ok;
  }
  if (Status ok = check_feature("shard", args.shard.struct_size, "makes scales of maxima"); !ok)
    return ok;
  if (Status ok = check_pointer("shard.amax", args.shard.amax, 4); !ok) return ok;
  for (const Array& scales :
       {Array{"scale", args.scale, has_rowwise(p.output)},
        {"scale_transposed", args.scale_transposed, has_transposed(p.output)}}) {
    Status ok = scales.wanted ? check_pointer(scales.name, scales.pointer, scale_alignment(p.q))
                              : check_absent(scales.name, scales.pointer, "has no such output");
    if (!ok) return ok;
  }
  return check_scale_ld("scale_ld", call.scale_ld, p, args.rows);
}

}  // namespace octile
