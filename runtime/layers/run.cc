#include "runtime/layers/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "generator/core/grouping.h"
#include "runtime/engine/plan_run.h"
#include "runtime/families/gemm/complete_batch.h"
#include "runtime/launch/argument_checks.h"
#include "runtime/layers/uses.h"

namespace octile::layers {
namespace {

constexpr std::int64_t kMatrixAlign = 16;

// The tensors that a GEMM multiplies, A and B, and whether it reads their transposed copies.
struct Factor {
  Role role;
  bool transposed;
};
std::array<Factor, 2> factors_of(Pass pass) {
  switch (pass) {
    case Pass::kFprop:
      return {{{Role::kX, false}, {Role::kW, false}}};
    case Pass::kDgrad:
      return {{{Role::kDy, false}, {Role::kW, true}}};
    case Pass::kWgrad:
      break;
  }
  return {{{Role::kDy, true}, {Role::kX, true}}};
}

// Returns the elements from one row of a copy to the next. The extents are multiples of 16.
std::int64_t ld_of(const Description& d, Factor factor, std::int64_t tokens) {
  if (!factor.transposed) return d.columns(factor.role);
  if (factor.role == Role::kW) return d.n;
  return d.experts == 0 ? round_up(tokens, kMultiple) : contiguous_columns(tokens, d.experts);
}

}  // namespace

CommonArguments common_of(const octile_layer_forward_args& args) {
  return {args.tokens,  args.workspace, args.workspace_bytes, args.group_offsets,
          args.scaling, args.sentry,    args.sm_limit,        args.flags};
}

CommonArguments common_of(const octile_layer_backward_args& args) {
  return {args.tokens,  args.workspace, args.workspace_bytes, args.group_offsets,
          args.scaling, args.sentry,    args.sm_limit,        0};
}

// The token count, the groups and the scaling state do not concern W.
CommonArguments common_of(const octile_layer_quantize_args& args) {
  const bool is_w = args.tensor == OCTILE_LAYER_W;
  return {is_w ? 0 : args.tokens,
          args.workspace,
          args.workspace_bytes,
          is_w ? nullptr : args.group_offsets,
          is_w ? nullptr : args.scaling,
          nullptr,
          0,
          0};
}

Status Run::check_tokens() const { return check_extent("tokens", args_.tokens); }

Status Run::check_groups(bool used) const {
  if (d_.experts > 0)
    return used ? check_pointer("group_offsets", args_.group_offsets, 4) : Status{};
  if (args_.group_offsets == nullptr) [[likely]]
    return {};
  return refuse("group_offsets is given; allowed: null, because the layer has no experts");
}

Status Run::check_scaling() const {
  if (d_.is_delayed()) return check_pointer("scaling", args_.scaling, 4);
  if (args_.scaling == nullptr) [[likely]]
    return {};
  if (d_.history > 0) return check_pointer("scaling", args_.scaling, 4);
  return refuse("scaling is given; allowed: null, because the layer has no history");
}

Status Run::check_sentry() const {
  if (d_.sentry) return check_pointer("sentry", args_.sentry, 4);
  if (args_.sentry == nullptr) [[likely]]
    return {};
  return refuse("sentry is given; allowed: null, because the layer has no sentry");
}

Status Run::check_gemm_options(bool reads_w) const {
  if (args_.sm_limit < 0)
    return refuse(fmt::format("sm_limit is {}; allowed: 0 (all SMs) or more", args_.sm_limit));
  if (args_.flags == 0) [[likely]]
    return {};
  if (args_.flags != OCTILE_RUN_B_READY)
    return refuse(
        fmt::format("flags is {:#x}; allowed: 0 or OCTILE_RUN_B_READY (0x1)", args_.flags));
  if (reads_w) return {};
  return refuse(
      "flags is OCTILE_RUN_B_READY and w is OCTILE_LAYER_QUANTIZE; allowed: 0, because the call "
      "writes the copy that its GEMM reads");
}

Status Run::check_result(Result2d& result, const Rows& rows, std::int64_t columns,
                         DType type) const {
  if (Status ok = check_pointer(result.name, result.pointer, kMatrixAlign); !ok) return ok;
  const int element = size_of(type);
  if (Status ok = check_ld(result.ld_name, result.ld, {columns, columns, kMatrixAlign / element});
      !ok)
    return ok;
  // A tensor map takes no longer stride.
  if (result.ld > kMaxStrideBytes / element - 1)
    return refuse(
        fmt::format("{} is {}; allowed: rows of less than 2^40 bytes", result.ld_name, result.ld));
  return check_size(rows, result.ld_name, result.ld, element);
}

Status Run::check_bias(const void* bias, bool used) const {
  if (!d_.bias) {
    if (bias == nullptr) [[likely]]
      return {};
    return refuse("bias is given; allowed: null, because the layer has no bias");
  }
  return used ? check_pointer("bias", bias, std::int64_t{2} * size_of(*d_.bias)) : Status{};
}

Status Run::check_bias_gradient(const float* sums, bool dy_is_current) const {
  if (d_.experts > 0)
    return refuse("bias_gradient is given; allowed: null, because the layer has experts");
  if (dy_is_current)
    return refuse(
        "bias_gradient is given and dy is OCTILE_LAYER_CURRENT; allowed: null, because its source "
        "is not read");
  return check_pointer("bias_gradient", sums, 4);
}

Error Run::not_ready(Error error, std::int64_t tokens) const {
  const bool capturing = error.code == ErrorCode::kCapturing;
  if (!capturing && error.code != ErrorCode::kNotPrepared) return error;
  error.message = fmt::format(
      "{} tokens are not prepared for the uses {}{}; allowed: octile_layer_prepare of a range that "
      "holds {} with these uses {}",
      tokens, text_of_uses(uses_),
      capturing ? ", and the stream is capturing, where nothing may be compiled or loaded" : "",
      tokens, capturing ? "before the capture begins" : "first");
  return error;
}

Status Run::use(const Slot& slot, std::int64_t tokens, std::uint32_t uses, std::int64_t tensors) {
  if (Status ok = slot.check(); !ok) return ok;
  uses_ |= uses;
  const Target& target = slot.plan->target();
  if (target.kind == TargetKind::kNamed)
    return fail(ErrorCode::kDeviceError,
                fmt::format("the layer's device is \"{}\", a name to compile for; allowed to run: "
                            "a layer made for \"cuda\", \"cuda:N\" or \"host\"",
                            target.text));
  if (Status ready = slot.plan->check_ready(tokens, stream_); !ready)
    return tl::unexpected<Error>(not_ready(std::move(ready.error()), args_.tokens));
  const auto bytes = slot.plan->workspace_bytes(tokens);
  if (!bytes) return tl::unexpected<Error>(bytes.error());
  scratch_bytes_ = std::max(scratch_bytes_, tensors * static_cast<std::int64_t>(*bytes));
  return {};
}

Status Run::use_quantizer(const Operand& operand, std::uint32_t uses, bool sums) {
  if (!operand.made.any()) return {};
  const bool compares = operand.given.fingerprint != nullptr;
  if (compares) uses |= OCTILE_LAYER_KEEP_W | OCTILE_LAYER_COMPARE_W;
  return use(plans_.quantizer(operand.role, operand.made, sums || compares), operand.rows(d_), uses,
             stacked_tensors(d_, operand.role));
}

Status Run::use_transposer(const Operand& w) {
  if (!w.transposes()) return {};
  return use(plans_.transposer(), d_.n, OCTILE_LAYER_HELD_W | OCTILE_LAYER_INPUT_GRADIENT,
             stacked_tensors(d_, Role::kW));
}

Status Run::place(std::initializer_list<Operand*> operands) {
  Workspace workspace(args_.workspace);
  scratch_ = workspace.take(scratch_bytes_);
  for (Operand* operand : operands) {
    if (Status ok = operand->place(plans_, d_, workspace); !ok) return ok;
  }
  const std::int64_t needed = workspace.used();
  if (needed == 0) return {};
  if (Status ok = check_pointer("workspace", args_.workspace, kMatrixAlign); !ok) return ok;
  if (args_.workspace_bytes >= static_cast<std::size_t>(needed)) [[likely]]
    return {};
  return refuse(
      fmt::format("workspace_bytes is {}; allowed: {} or more, as octile_layer_workspace_size says",
                  args_.workspace_bytes, needed));
}

Status Run::quantize(const Operand& o, bool records, float* sums) const {
  if (!o.made.any()) return {};
  const bool compares = o.given.fingerprint != nullptr;
  const Slot& slot = plans_.quantizer(o.role, o.made, sums != nullptr || compares);
  const bool is_w = o.role == Role::kW;
  QuantizeArguments args;
  args.rows = o.rows(d_);
  args.x = o.given.source;
  args.ldx = o.given.ld;
  args.skip = o.given.skip;
  if (compares) args.change.state = o.given.fingerprint;
  if (o.made.rowwise) {
    args.q = o.rowwise.codes;
    args.ldq = d_.columns(o.role);
    args.scale = o.rowwise.scales;
  }
  if (o.made.transposed) {
    args.q_transposed = o.transposed.codes;
    args.scale_transposed = o.transposed.scales;
  }
  args.groups.group_count = d_.experts;
  if (!is_w) args.groups.offsets = args_.group_offsets;
  if (args_.scaling != nullptr && !is_w) {
    if (d_.is_delayed()) args.delayed.encode_scale = scaling_.encode(o.role);
    if (records) args.monitor.amax = scaling_.maxima(o.role);
  }
  args.fused.bias_gradient = sums;
  args.workspace = scratch_;
  args.workspace_bytes = static_cast<std::size_t>(scratch_bytes_);
  return slot.plan->run(args, stream_);
}

Status Run::transpose(const Operand& w) const {
  if (!w.transposes()) return {};
  QuantizeArguments args;
  args.rows = d_.n;
  args.x = w.rowwise.codes;
  args.ldx = d_.k;
  args.source_scales.struct_size = sizeof args.source_scales;
  args.source_scales.x_scale = w.rowwise.scales;
  args.source_scales.x_scale_ld = w.given.scale_ld;
  args.q_transposed = w.transposed.codes;
  args.scale_transposed = w.transposed.scales;
  args.groups.group_count = d_.experts;
  args.workspace = scratch_;
  args.workspace_bytes = static_cast<std::size_t>(scratch_bytes_);
  return plans_.transposer().plan->run(args, stream_);
}

Status Run::multiply(Pass pass, const octile_layer_copy& a, const octile_layer_copy& b,
                     const Result2d& d, const void* bias, std::int64_t b_scale_ld,
                     std::int64_t a_columns) const {
  const auto factors = factors_of(pass);
  GemmArguments args;
  args.tokens = args_.tokens;
  args.a = a.codes;
  args.a_scale = a.scales;
  args.lda = ld_of(d_, factors[0], args_.tokens);
  if (a_columns > 0) {
    const bool transposed = factors[0].transposed;
    if (!transposed) args.lda = a_columns;
    args.a_scale_ld = packed_scale_ld(d_.recipe->gradient, args_.tokens, a_columns, transposed);
  }
  args.b = b.codes;
  args.b_scale = b.scales;
  args.b_scale_ld = b_scale_ld;
  args.ldb = ld_of(d_, factors[1], args_.tokens);
  args.d = d.pointer;
  args.ldd = d.ld;
  args.bias = bias;
  args.groups.offsets = args_.group_offsets;
  args.sm_limit = args_.sm_limit;
  args.flags = args_.flags;
  if (args_.sentry != nullptr) args.monitor.sentry = args_.sentry + static_cast<int>(pass);
  args.workspace = scratch_;
  args.workspace_bytes = static_cast<std::size_t>(scratch_bytes_);
  return plans_.gemm(pass).plan->run(args, stream_);
}

Status Run::clear(const Slot& slot, void* memory, std::size_t bytes) const {
  return slot.plan->clear(memory, bytes, stream_);
}

}  // namespace octile::layers
