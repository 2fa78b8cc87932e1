#include "tests/support/api_calls.h"

#include "generator/families.h"
#include "generator/quantize/fused_source.h"

namespace octile::test {
namespace {

constexpr std::int64_t kTokens = 64;  // unless a row says otherwise

// Returns the problem of a plan of this family, else one without anything special.
template <typename OfFamily>
OfFamily family_problem(octile_plan* plan) {
  std::string text(1024, '\0');
  std::size_t size = text.size();
  EXPECT_EQ(octile_plan_problem(plan, text.data(), &size), OCTILE_OK);
  const Problem parsed = parse_problem(text.c_str()).value();
  const auto* found = std::get_if<OfFamily>(&parsed);
  return found == nullptr ? OfFamily() : *found;
}

}  // namespace

Result<ApiCall> Calls::make(const std::string& function, const std::string& base) {
  memory_ = CallMemory();
  const auto maker = makers().find(function);
  if (maker == makers().end()) return fail(ErrorCode::kInvalidArgument, "no call " + function);
  ApiCall call = maker->second(*this, base);
  call.fields.emplace_back("spare", &call.keep(memory_.take()));
  const auto found = table_.bases.find(base);
  if (found == table_.bases.end() || found->second.call != function) return call;
  for (const Change& change : found->second.changes) {
    if (const Status made = apply(change, call.fields, texts_); !made)
      return tl::unexpected(made.error());
  }
  return call;
}

octile_plan* Calls::plan(const std::string& base) {
  if (!plans_.contains(base)) {
    CallMemory before = std::exchange(memory_, CallMemory());
    plans_[base].reset(create<octile_plan>(base, "plan").first);
    memory_ = std::move(before);
  }
  return plans_[base].get();
}

const std::int32_t* Calls::rows_of_groups(ApiCall& call) {
  auto* rows = reinterpret_cast<std::int32_t*>(put(std::array<std::int32_t, 16>{}));
  for (int i = 0; i < 4; ++i) call.fields.emplace_back(fmt::format("rows[{}]", i), rows + i);
  return rows;
}

ApiCall Calls::library_create(const std::string&) {
  ApiCall call;
  auto& a = call.keep<octile_library_options>();
  a.cache_dir = "";
  call.set(octile_library_create, {"options", "library"}, &a, handle(call, octile_library_destroy));
  call.add(OCTILE_FIELDS(a.compile_threads, a.log_level));
  return call;
}

ApiCall Calls::plan_create(const std::string&) {
  ApiCall call;
  call.set(octile_plan_create, {"library", "device", "problem", "plan"}, library_.get(), "host",
           kGemmText.c_str(), handle(call, octile_plan_destroy));
  return call;
}

ApiCall Calls::gemm_plan_create(const std::string&) {
  ApiCall call;
  auto& a = call.keep<octile_gemm_desc>();
  call.set(octile_gemm_plan_create, {"library", "device", "desc", "plan"}, library_.get(), "host",
           &a, handle(call, octile_plan_destroy));
  call.add(OCTILE_FIELDS(a.struct_size, a.n, a.k, a.m, a.a_dtype, a.a_granularity, a.a_scale_format,
                         a.b_dtype, a.b_granularity, a.d_dtype, a.d_granularity, a.d_scale_format,
                         a.promote, a.accumulate, a.batch_invariant, a.bias_dtype, a.sentry,
                         a.grouping, a.groups, a.batch));
  return call;
}

ApiCall Calls::quantize_plan_create(const std::string&) {
  ApiCall call;
  auto& a = call.keep<octile_quantize_desc>();
  auto& fused = call.keep<octile_quantize_fused_desc>();
  a.fused = &fused;
  call.set(octile_quantize_plan_create, {"library", "device", "desc", "plan"}, library_.get(),
           "host", &a, handle(call, octile_plan_destroy));
  call.add(OCTILE_FIELDS(a.struct_size, a.cols, a.x_dtype, a.via_dtype, a.q_dtype, a.granularity,
                         a.scale_format, a.amax_epsilon, a.e8m0_rounding, fused.struct_size,
                         fused.source, fused.tap, fused.weighted));
  return call;
}

ApiCall Calls::gemm_run(const std::string& base) {
  octile_plan* const on = plan(base);
  const auto p = family_problem<GemmProblem>(on);
  ApiCall call;
  auto& a = call.keep<octile_gemm_args>();
  auto& groups = call.keep<octile_gemm_groups>();
  auto& batch = call.keep<octile_gemm_batch>();
  auto& d_scales = call.keep<octile_gemm_d_scales>();
  auto& monitor = call.keep<octile_gemm_monitor>();
  a.tokens = p.m == kDynamic || p.k == kDynamic ? kTokens : p.m;
  a.a = memory_.take();
  a.a_scale = memory_.take();
  a.b = memory_.take();
  a.b_scale = memory_.take();
  a.d = memory_.take();
  a.bias = p.bias ? memory_.take() : nullptr;
  a.groups = &groups;
  a.batch = &batch;
  a.d_scales = &d_scales;
  a.monitor = &monitor;
  const std::int32_t* const rows = rows_of_groups(call);
  groups.offsets = p.grouping == Grouping::kContiguous ? rows : nullptr;
  groups.counts = p.grouping == Grouping::kMasked ? rows : nullptr;
  d_scales.scale = is_fp8(p.d.dtype) ? memory_.take<float>() : nullptr;
  monitor.sentry = has_sentry(p) ? memory_.take<std::uint32_t>() : nullptr;
  call.set(octile_gemm_run, {"plan", "args", "stream"}, on, &a, nullptr);
  call.add(OCTILE_FIELDS(a.struct_size, a.tokens, a.a, a.lda, a.a_scale, a.a_scale_ld, a.b, a.ldb,
                         a.b_scale, a.b_scale_ld, a.bias, a.d, a.ldd, a.flags, a.sm_limit, a.groups,
                         a.d_scales, a.monitor));
  call.add(OCTILE_FIELDS(groups.offsets, groups.counts, groups.expected_tokens, batch.a_stride,
                         batch.a_scale_stride, batch.b_stride, batch.b_scale_stride, batch.d_stride,
                         d_scales.scale, d_scales.scale_ld, monitor.sentry));
  return call;
}

ApiCall Calls::quantize_run(const std::string& base) {
  octile_plan* const on = plan(base);
  const auto p = family_problem<QuantizeProblem>(on);
  ApiCall call;
  auto& a = call.keep<octile_quantize_args>();
  auto& groups = call.keep<octile_quantize_groups>();
  auto& delayed = call.keep<octile_quantize_delayed>();
  auto& fused = call.keep<octile_quantize_fused>();
  auto& source_scales = call.keep<octile_quantize_source_scales>();
  auto& monitor = call.keep<octile_quantize_monitor>();
  auto& change = call.keep<octile_quantize_change>();
  auto& gather = call.keep<octile_quantize_gather>();
  a.rows = kTokens;
  a.x = memory_.take();
  const bool is_amax = p.operation == QuantizeOperation::kAmax;
  if (has_rowwise(p.output) && !is_amax) {
    a.q = memory_.take();
    a.scale = is_fp8(p.q.dtype) ? memory_.take() : nullptr;
  }
  if (has_transposed(p.output)) {
    a.q_transposed = memory_.take();
    a.scale_transposed = memory_.take();
  }
  a.groups = &groups;
  a.delayed = &delayed;
  a.fused = &fused;
  a.source_scales = &source_scales;
  a.monitor = &monitor;
  a.change = &change;
  a.gather = &gather;
  const std::int32_t* const rows = rows_of_groups(call);
  groups.group_count = p.grouping == Grouping::kNone ? 0 : 2;
  groups.offsets = p.grouping == Grouping::kContiguous ? rows : nullptr;
  groups.counts = p.grouping == Grouping::kMasked ? rows : nullptr;
  delayed.encode_scale = p.policy == ScalePolicy::kDelayed ? memory_.take<float>() : nullptr;
  const SourceShape source = source_shape(p.source);
  fused.x1 = source.inputs > 1 ? memory_.take() : nullptr;
  fused.x2 = source.inputs > 2 ? memory_.take() : nullptr;
  fused.x3 = source.inputs > 3 ? memory_.take() : nullptr;
  fused.rstd = source.norms ? memory_.take<float>() : nullptr;
  fused.bias_gradient = p.bias_gradient ? memory_.take<float>() : nullptr;
  fused.tap = p.tap ? memory_.take<float>() : nullptr;
  fused.row_factor = p.weighted ? memory_.take<float>() : nullptr;
  source_scales.x_scale = is_fp8(p.x.dtype) ? memory_.take() : nullptr;
  monitor.amax = is_amax ? memory_.take<float>() : nullptr;
  change.state = p.skip_unchanged ? put<octile_fingerprint>() : nullptr;
  if (p.operation == QuantizeOperation::kGather) {
    gather.index = memory_.take<std::int32_t>();
    gather.x_rows = kTokens;
  }
  call.set(octile_quantize_run, {"plan", "args", "stream"}, on, &a, nullptr);
  call.add(OCTILE_FIELDS(a.struct_size, a.rows, a.x, a.ldx, a.q, a.ldq, a.scale, a.scale_ld,
                         a.q_transposed, a.scale_transposed, a.skip, a.groups, a.monitor, a.change,
                         a.gather));
  call.add(OCTILE_FIELDS(
      groups.group_count, groups.offsets, groups.counts, delayed.encode_scale, fused.x1, fused.x2,
      fused.x3, fused.ldx1, fused.rstd, fused.bias_gradient, fused.tap, fused.row_factor,
      source_scales.x_scale, source_scales.x_scale_ld, monitor.struct_size, monitor.amax,
      monitor.nonfinite, monitor.encode_scale, change.state, gather.index, gather.x_rows));
  return call;
}

ApiCall Calls::scale_update_run(const std::string& base) {
  octile_plan* const on = plan(base);
  ApiCall call;
  auto& a = call.keep<octile_scale_update_args>();
  a.history = memory_.take<float>();
  a.encode_scale = memory_.take<float>();
  a.tensors = 1;
  a.length = 3;
  call.set(octile_scale_update_run, {"plan", "args", "stream"}, on, &a, nullptr);
  call.add(OCTILE_FIELDS(a.struct_size, a.history, a.encode_scale, a.tensors, a.length, a.choice,
                         a.margin, a.average_share, a.states, a.history_stride, a.scale_stride));
  return call;
}

// Eight pieces, each a whole weight.
ApiCall Calls::pieces_create(const std::string&) {
  constexpr std::int64_t kRows = 33, kCols = 300;
  ApiCall call;
  auto& a = call.keep<octile_pieces_desc>();
  auto& pieces = call.keep<std::array<octile_piece, 8>>();
  a.x_dtype = OCTILE_FP32;
  a.via_dtype = OCTILE_BF16;
  a.q_dtype = OCTILE_E4M3;
  a.granularity = OCTILE_SCALE_128X128;
  for (octile_piece& p : pieces) {
    const auto take = [this] { return memory_.take(kRows * kCols * sizeof(float)); };
    p = {sizeof p,      kRows,  kCols,  0,
         kRows * kCols, take(), take(), static_cast<float*>(take()),
         take(),        take(), take(), take()};
  }
  call.set(octile_pieces_create, {"library", "device", "desc", "pieces", "count", "out"},
           library_.get(), "host", &a, pieces.data(), std::ssize(pieces),
           handle(call, octile_pieces_destroy));
  call.add(OCTILE_FIELDS(a.struct_size, a.x_dtype, a.via_dtype, a.q_dtype, a.granularity,
                         a.scale_format, a.amax_epsilon, a.e8m0_rounding, a.reserved));
  octile_piece& p = pieces[4];
  call.add(OCTILE_FIELDS(p.struct_size, p.rows, p.cols, p.start, p.length, p.x, p.q, p.amax,
                         p.scale, p.scale_transposed, p.q_gathered, p.q_transposed),
           "pieces[4].");
  return call;
}

ApiCall Calls::pieces_run(const std::string& base) {
  auto [pieces, creation] = create<octile_pieces>(base, "out");
  ApiCall call = call_of(octile_pieces_run, {"pieces", "step", "first", "count", "stream"}, pieces,
                         OCTILE_PIECES_AMAX, 0, 8, nullptr);
  call.kept.emplace_back(pieces, octile_pieces_destroy);
  return call;
}

ApiCall Calls::plan_problem(const std::string& base) {
  std::size_t* const size = put(std::size_t{1} << 16);
  ApiCall call = call_of(octile_plan_problem, {"plan", "buffer", "size"}, plan(base),
                         memory_.take<char>(), size);
  call.fields.emplace_back("size[0]", size);
  return call;
}

const std::map<std::string, Calls::Maker>& Calls::makers() {
  using Name = const std::string&;
  static const std::map<std::string, Maker> all{
      {"gemm_plan_create", &Calls::gemm_plan_create},
      {"gemm_run", &Calls::gemm_run},
      {"layer_backward", &Calls::layer_backward},
      {"layer_create", &Calls::layer_create},
      {"layer_forward", &Calls::layer_forward},
      {"layer_prepare_with", &Calls::layer_prepare_with},
      {"layer_quantize", &Calls::layer_quantize},
      {"layer_update_scales", &Calls::layer_update_scales},
      {"library_create", &Calls::library_create},
      {"pieces_create", &Calls::pieces_create},
      {"pieces_run", &Calls::pieces_run},
      {"plan_create", &Calls::plan_create},
      {"plan_prepare_with", &Calls::plan_prepare_with},
      {"plan_problem", &Calls::plan_problem},
      {"quantize_plan_create", &Calls::quantize_plan_create},
      {"quantize_run", &Calls::quantize_run},
      {"records_find", &Calls::records_find},
      {"records_load", &Calls::records_load},
      {"records_merge", &Calls::records_merge},
      {"scale_update_run", &Calls::scale_update_run},
      {"tune", &Calls::tune},
      {"weight_begin", &Calls::weight_begin},
      {"layer_copy_layout",
       [](Calls& c, Name base) {
         return call_of(
             octile_layer_copy_layout, {"layer", "tensor", "transposed", "tokens", "layout"},
             c.layer(base).handle.get(), OCTILE_LAYER_X, 0, 1, c.put<octile_quantized_layout>());
       }},
      {"layer_prepare",
       [](Calls& c, Name base) {
         return call_of(octile_layer_prepare, {"layer", "lo", "hi", "uses"},
                        c.layer(base).handle.get(), 1, 8, 0);
       }},
      {"layer_problems",
       [](Calls& c, Name base) {
         return call_of(octile_layer_problems, {"layer", "uses", "buffer", "size"},
                        c.layer(base).handle.get(), 0, c.memory_.take<char>(),
                        c.put(std::size_t{1} << 16));
       }},
      {"layer_scaling_size",
       [](Calls& c, Name base) {
         return call_of(octile_layer_scaling_size, {"layer", "elements"},
                        c.layer(base).handle.get(), c.put<std::int64_t>());
       }},
      {"layer_workspace_size",
       [](Calls& c, Name base) {
         return call_of(
             octile_layer_workspace_size, {"layer", "tokens", "uses", "forward", "backward"},
             c.layer(base).handle.get(), 8, 0, c.put<std::size_t>(), c.put<std::size_t>());
       }},
      {"plan_describe",
       [](Calls& c, Name base) {
         return call_of(octile_plan_describe, {"plan", "buffer", "size"}, c.plan(base),
                        c.memory_.take<char>(), c.put(std::size_t{1} << 16));
       }},
      {"plan_prepare",
       [](Calls& c, Name base) {
         return call_of(octile_plan_prepare, {"plan", "lo", "hi", "flags"}, c.plan(base), 0, 1, 0);
       }},
      {"plan_quantized_layout",
       [](Calls& c, Name base) {
         return call_of(octile_plan_quantized_layout,
                        {"plan", "rows", "groups", "transposed", "layout"}, c.plan(base), 10, 0, 0,
                        c.put<octile_quantized_layout>());
       }},
      {"plan_wait",
       [](Calls& c, Name base) { return call_of(octile_plan_wait, {"plan"}, c.plan(base)); }},
      {"plan_workspace_size",
       [](Calls& c, Name base) {
         return call_of(octile_plan_workspace_size, {"plan", "tokens", "bytes"}, c.plan(base), 1,
                        c.put<std::size_t>());
       }},
      {"quantized_layout_query",
       [](Calls& c, Name) {
         return call_of(octile_quantized_layout_query,
                        {"dtype", "granularity", "format", "rows", "cols", "transposed", "layout"},
                        OCTILE_E4M3, OCTILE_SCALE_1X128, OCTILE_SCALE_FORMAT_DEFAULT, 8, 8, 0,
                        c.put<octile_quantized_layout>());
       }},
      {"recipe_at",
       [](Calls& c, Name) {
         return call_of(octile_recipe_at, {"index", "recipe"}, 0, c.put<octile_recipe>());
       }},
      {"measure_loss",
       [](Calls& c, Name) {
         ApiCall call;
         constexpr octile_tensor_type kType{OCTILE_E4M3, OCTILE_SCALE_1X128,
                                            OCTILE_SCALE_FORMAT_DEFAULT};
         auto& types = call.keep(std::array{kType, kType});
         auto& losses = call.keep(std::array{c.put<octile_loss>(), c.put<octile_loss>()});
         call.set(octile_measure_loss,
                  {"source", "x", "rows", "cols", "ldx", "types", "count", "sample", "losses"},
                  OCTILE_BF16, c.memory_.take(), 8, 8, 0, types.data(), 2, 1.0, losses.data());
         auto& last = types[1];
         call.fields.emplace_back("types[1].dtype", &last.dtype);
         call.fields.emplace_back("types[1].granularity", &last.granularity);
         call.fields.emplace_back("types[1].scale_format", &last.scale_format);
         call.fields.emplace_back("losses[1]", &losses[1]);
         call.fields.emplace_back("losses[1].struct_size", &losses[1]->struct_size);
         return call;
       }},
      {"sum_of_squares",
       [](Calls& c, Name) {
         return call_of(octile_sum_of_squares, {"squares", "sum"}, c.put<octile_squares>(),
                        c.put<double>());
       }},
  };
  return all;
}

}  // namespace octile::test
