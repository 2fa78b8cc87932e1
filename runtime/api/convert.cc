#include "runtime/api/convert.h"

#include <fmt/format.h>

#include <cstring>

#include "generator/quantize/fused_source.h"
#include "runtime/api/boundary.h"

namespace octile::api {
namespace {

constexpr int kDefaultPromote = 128;
constexpr int kMxPromote = 32;
static_assert(OCTILE_PROMOTE_NONE == kPromoteNone);

Status check_dtype(NamedValue v) {
  return check_enum(v.name, "octile_dtype", v.value, OCTILE_E4M3, OCTILE_FP32);
}

Status check_options(const octile_quantize_desc& desc) {
  struct Option {
    const char* name;
    const char* type;
    int value, least, most;
  };
  for (const Option& option :
       {Option{"desc->operation", "octile_quantize_operation", raw(desc.operation), OCTILE_QUANTIZE,
               OCTILE_AMAX},
        Option{"desc->grouping", "octile_grouping", raw(desc.grouping), OCTILE_GROUPS_NONE,
               OCTILE_GROUPS_STACKED},
        Option{"desc->scale_layout", "octile_scale_layout", raw(desc.scale_layout),
               OCTILE_SCALE_LAYOUT_LINEAR, OCTILE_SCALE_LAYOUT_BY_ROW},
        Option{"desc->e8m0_rounding", "octile_e8m0_rounding", raw(desc.e8m0_rounding),
               OCTILE_E8M0_UP, OCTILE_E8M0_OCP_FLOOR},
        Option{"desc->policy", "octile_scale_policy", raw(desc.policy), OCTILE_SCALING_CURRENT,
               OCTILE_SCALING_DELAYED},
        Option{"desc->output", "octile_quantize_output", raw(desc.output), 0,
               OCTILE_ROWWISE_AND_TRANSPOSED}}) {
    if (Status ok = check_enum(option.name, option.type, option.value, option.least, option.most);
        !ok)
      return ok;
  }
  return {};
}

Status read_fused(const octile_quantize_fused_desc* user, QuantizeProblem& problem) {
  if (user == nullptr) return {};
  octile_quantize_fused_desc fused{};
  if (Status ok = read_struct("desc->fused", user, fused); !ok) return ok;
  if (fused.source != nullptr) problem.source = canonical_source(fused.source);
  if (fused.norm_epsilon != 0) problem.norm_epsilon = fused.norm_epsilon;
  problem.bias_gradient = fused.bias_gradient != 0;
  problem.tap = fused.tap != 0;
  problem.weighted = fused.weighted != 0;
  return {};
}

// Reads the struct of a feature. It becomes zero, struct_size included, if the caller gave none.
template <typename Feature>
Status read_feature(const char* name, const Feature* user, Feature& out) {
  if (user != nullptr) return read_struct(name, user, out);
  out = {};
  return {};
}

// Tokens are in m, or in k, which then is OCTILE_DYNAMIC.
Status read_gemm_extents(const octile_gemm_desc& desc, GemmProblem& problem) {
  problem.n = desc.n;
  problem.k = desc.k;
  if (desc.k == OCTILE_DYNAMIC) {
    problem.m = desc.m;
    return {};
  }
  if (desc.m == 0) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("desc->m is {}; allowed: 0, because the token count is in m unless k is "
                          "OCTILE_DYNAMIC",
                          desc.m));
}

}  // namespace

Result<TensorType> tensor_type(NamedValue dtype, NamedValue granularity, NamedValue format) {
  if (Status ok = check_dtype(dtype); !ok) return tl::unexpected<Error>(ok.error());
  if (Status ok = check_enum(granularity.name, "octile_granularity", granularity.value,
                             OCTILE_SCALE_NONE, OCTILE_SCALE_32X32);
      !ok)
    return tl::unexpected<Error>(ok.error());
  if (Status ok = check_enum(format.name, "octile_scale_format", format.value,
                             OCTILE_SCALE_FORMAT_DEFAULT, OCTILE_SCALE_BF16);
      !ok)
    return tl::unexpected<Error>(ok.error());
  TensorType type{static_cast<DType>(dtype.value), static_cast<Granularity>(granularity.value),
                  static_cast<ScaleFormat>(format.value)};
  if (format.value == OCTILE_SCALE_FORMAT_DEFAULT)
    type.scale = default_scale_format(type.granularity);
  return type;
}

Status check_length(const char* name, const char* text) {
  constexpr std::size_t kMost = 65536;
  const std::size_t given = ::strnlen(text, kMost + 1);
  if (given <= kMost) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} has more than {} bytes; allowed: at most {}", name, kMost, kMost));
}

Status check_device(const char* device) {
  return device == nullptr ? Status{} : check_length("device", device);
}

Result<Target> target_of(const char* device) {
  return resolve_target(device != nullptr ? device : "cuda");
}

Status write_text(const std::string& text, char* buffer, std::size_t* size) {
  const std::size_t needed = text.size() + 1;
  if (buffer != nullptr && *size < needed)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("*size is {}; allowed: {} or more", *size, needed));
  if (buffer != nullptr) std::memcpy(buffer, text.c_str(), needed);
  *size = needed;
  return {};
}

octile_quantized_layout to_public(const QuantizedLayout& layout) {
  octile_quantized_layout made{};
  made.data_rows = layout.data.outer;
  made.data_ld = layout.data.ld;
  made.data_bytes = layout.data.bytes();
  made.scale_rows = layout.scales.outer;
  made.scale_ld = layout.scales.ld;
  made.scale_bytes = layout.scales.bytes();
  return made;
}

octile_tensor_type to_public(const TensorType& type) {
  return {static_cast<octile_dtype>(type.dtype), static_cast<octile_granularity>(type.granularity),
          static_cast<octile_scale_format>(type.scale)};
}

Result<GemmProblem> to_problem(const octile_gemm_desc* user) {
  octile_gemm_desc desc{};
  if (Status ok = read_struct("desc", user, desc); !ok) return tl::unexpected<Error>(ok.error());
  auto a = tensor_type({"desc->a_dtype", raw(desc.a_dtype)},
                       {"desc->a_granularity", raw(desc.a_granularity)},
                       {"desc->a_scale_format", raw(desc.a_scale_format)});
  if (!a) return tl::unexpected<Error>(a.error());
  auto b = tensor_type({"desc->b_dtype", raw(desc.b_dtype)},
                       {"desc->b_granularity", raw(desc.b_granularity)},
                       {"desc->b_scale_format", raw(desc.b_scale_format)});
  if (!b) return tl::unexpected<Error>(b.error());
  auto d = tensor_type({"desc->d_dtype", raw(desc.d_dtype)},
                       {"desc->d_granularity", raw(desc.d_granularity)},
                       {"desc->d_scale_format", raw(desc.d_scale_format)});
  if (!d) return tl::unexpected<Error>(d.error());
  if (raw(desc.bias_dtype) != 0) {
    if (Status ok = check_dtype({"desc->bias_dtype", raw(desc.bias_dtype)}); !ok)
      return tl::unexpected<Error>(ok.error());
  }
  GemmProblem problem;
  if (Status ok = read_gemm_extents(desc, problem); !ok) return tl::unexpected<Error>(ok.error());
  problem.a = *a;
  problem.b = *b;
  problem.d = *d;
  problem.accumulate = desc.accumulate != 0;
  const int usual = is_mx(problem.a) ? kMxPromote : kDefaultPromote;
  problem.promote = desc.promote == 0 ? usual : desc.promote;
  problem.invariant = desc.batch_invariant != 0;
  if (const int bias = raw(desc.bias_dtype); bias != 0) problem.bias = static_cast<DType>(bias);
  if (Status ok = check_enum("desc->sentry", "octile_sentry", raw(desc.sentry), OCTILE_SENTRY_NONE,
                             OCTILE_SENTRY_SQUARES);
      !ok)
    return tl::unexpected<Error>(ok.error());
  problem.sentry = static_cast<Sentry>(raw(desc.sentry));
  if (Status ok = check_enum("desc->grouping", "octile_grouping", raw(desc.grouping),
                             OCTILE_GROUPS_NONE, OCTILE_GROUPS_MASKED);
      !ok)
    return tl::unexpected<Error>(ok.error());
  problem.grouping = static_cast<Grouping>(raw(desc.grouping));
  problem.groups = desc.groups;
  problem.batch = desc.batch;
  problem.sums_batch = desc.sums_batch != 0;
  return problem;
}

Result<QuantizeProblem> to_problem(const octile_quantize_desc* user) {
  octile_quantize_desc desc{};
  if (Status ok = read_struct("desc", user, desc); !ok) return tl::unexpected<Error>(ok.error());
  auto x = tensor_type({"desc->x_dtype", raw(desc.x_dtype)},
                       {"desc->x_granularity", raw(desc.x_granularity)},
                       {"desc->x_scale_format", raw(desc.x_scale_format)});
  if (!x) return tl::unexpected<Error>(x.error());
  auto q = tensor_type({"desc->q_dtype", raw(desc.q_dtype)},
                       {"desc->granularity", raw(desc.granularity)},
                       {"desc->scale_format", raw(desc.scale_format)});
  if (!q) return tl::unexpected<Error>(q.error());
  if (Status ok = check_options(desc); !ok) return tl::unexpected<Error>(ok.error());
  QuantizeProblem problem;
  problem.cols = desc.cols;
  problem.operation = static_cast<QuantizeOperation>(raw(desc.operation));
  problem.x = *x;
  problem.q = *q;
  if (const int output = raw(desc.output); output != 0)
    problem.output = static_cast<QuantizeOutput>(output);
  problem.amax_epsilon = desc.amax_epsilon;
  problem.policy = static_cast<ScalePolicy>(raw(desc.policy));
  problem.e8m0_rounding = static_cast<E8M0Rounding>(raw(desc.e8m0_rounding));
  problem.grouping = static_cast<Grouping>(raw(desc.grouping));
  problem.scale_layout = static_cast<ScaleLayout>(raw(desc.scale_layout));
  problem.skip_unchanged = desc.skip_unchanged != 0;
  if (raw(desc.via_dtype) != 0) {
    if (Status ok = check_dtype({"desc->via_dtype", raw(desc.via_dtype)}); !ok)
      return tl::unexpected<Error>(ok.error());
    problem.via = static_cast<DType>(raw(desc.via_dtype));
  }
  if (Status ok = read_fused(desc.fused, problem); !ok) return tl::unexpected<Error>(ok.error());
  return problem;
}

Status read_arguments(const octile_gemm_args* user, GemmArguments& out) {
  octile_gemm_args& plain = out;
  if (Status ok = read_struct("args", user, plain); !ok) return ok;
  if (Status ok = read_feature("args->groups", plain.groups, out.groups); !ok) return ok;
  if (Status ok = read_feature("args->batch", plain.batch, out.batch); !ok) return ok;
  if (Status ok = read_feature("args->d_scales", plain.d_scales, out.d_scales); !ok) return ok;
  return read_feature("args->monitor", plain.monitor, out.monitor);
}

Status read_arguments(const octile_quantize_args* user, QuantizeArguments& out) {
  octile_quantize_args& plain = out;
  if (Status ok = read_struct("args", user, plain); !ok) return ok;
  if (Status ok = read_feature("args->groups", plain.groups, out.groups); !ok) return ok;
  if (Status ok = read_feature("args->delayed", plain.delayed, out.delayed); !ok) return ok;
  if (Status ok = read_feature("args->fused", plain.fused, out.fused); !ok) return ok;
  if (Status ok = read_feature("args->source_scales", plain.source_scales, out.source_scales); !ok)
    return ok;
  if (Status ok = read_feature("args->monitor", plain.monitor, out.monitor); !ok) return ok;
  if (Status ok = read_feature("args->change", plain.change, out.change); !ok) return ok;
  return read_feature("args->gather", plain.gather, out.gather);
}

Status read_arguments(const octile_scale_update_args* user, octile_scale_update_args& out) {
  return read_struct("args", user, out);
}

}  // namespace octile::api
