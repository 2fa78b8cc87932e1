// Calls of the C API that are refused: the rows of tests/cells/refusals.txt. Each changes one valid
// call, is refused with its status and sentence, and leaves every byte of memory as it was.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "generator/families.h"
#include "generator/quantize/fused_source.h"
#include "octile/layers.h"
#include "tests/support/api_handles.h"
#include "tests/support/layer_case.h"
#include "tests/support/refusal_table.h"

namespace octile::test {
namespace {

// Memory that calls get, in parts that are aligned to 256 bytes and hold a pattern.
class CallMemory {
 public:
  template <typename T = void>
  T* take(std::size_t bytes = std::size_t{1} << 17) {
    EXPECT_LE(used_ + bytes, kBytes);
    T* const part = bytes_.at<T>(used_);
    std::memset(static_cast<void*>(part), 0x5a, bytes);
    used_ += (bytes + 255) / 256 * 256;
    return part;
  }
  std::vector<unsigned char> contents() {
    return {bytes_.at<unsigned char>(), bytes_.at<unsigned char>() + used_};
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{1} << 23;
  Bytes bytes_{kBytes};
  std::size_t used_ = 0;
};

// One call of a C function, and what it is given.
struct ApiCall {
  Fields fields;
  std::function<octile_status()> run;
  std::function<void()> destroy = [] {};  // what an accepted call has created
  std::vector<std::shared_ptr<void>> kept;

  // Keeps a value as long as the call. A struct gets its size.
  template <typename T>
  T& keep(T value = {}) {
    if constexpr (requires { value.struct_size; }) value.struct_size = sizeof(T);
    auto made = std::make_shared<T>(value);
    kept.push_back(made);
    return *made;
  }
  void add(const Fields& more, const std::string& prefix = "") {
    for (Field field : more) {
      field.name = prefix + field.name;
      fields.push_back(std::move(field));
    }
  }
  // Sets the function. Its parameters are fields with these names.
  template <typename... T>
  void set(octile_status (*function)(T...), const std::array<const char*, sizeof...(T)>& names,
           std::type_identity_t<T>... values) {
    auto& parameters = keep(std::tuple<T...>(values...));
    std::apply(
        [&](auto&... parameter) {
          std::size_t i = 0;
          (fields.emplace_back(names[i++], &parameter), ...);
        },
        parameters);
    run = [function, &parameters] { return std::apply(function, parameters); };
  }
};

template <typename... T>
ApiCall call_of(octile_status (*function)(T...), const std::array<const char*, sizeof...(T)>& names,
                std::type_identity_t<T>... values) {
  ApiCall call;
  call.set(function, names, values...);
  return call;
}

// Returns fields with the names of expressions, from which a leading "a." is taken.
template <typename... T>
Fields named(std::string_view names, T&... fields) {
  Fields made;
  const auto next = [&names] {
    const std::size_t end = std::min(names.find(','), names.size());
    std::string_view name = names.substr(0, end);
    name.remove_prefix(std::min(name.find_first_not_of(' '), end));
    if (name.starts_with("a.")) name.remove_prefix(2);
    names.remove_prefix(std::min(end + 1, names.size()));
    return std::string(name);
  };
  (made.emplace_back(next(), &fields), ...);
  return made;
}
#define OCTILE_FIELDS(...) named(#__VA_ARGS__, __VA_ARGS__)

Fields fields_of(octile_layer_operand& a) {
  return OCTILE_FIELDS(a.struct_size, a.source, a.ld, a.rowwise.codes, a.rowwise.scales,
                       a.transposed.codes, a.transposed.scales, a.state, a.skip, a.fingerprint,
                       a.scale_ld, a.whole_columns);
}

constexpr std::int64_t kTokens = 64;  // unless a row says otherwise
constexpr std::int64_t kTokensOfLayer = 37;
constexpr std::size_t kOfLayer = std::size_t{1} << 19;  // bytes for any tensor of a layer

// Makes calls that are valid, for the plans and layers of a table's bases.
class Calls {
 public:
  explicit Calls(const RefusalTable& table) : table_(table) {}

  // Returns the call of a C function on a base, before a row changes it.
  Result<ApiCall> make(const std::string& function, const std::string& base) {
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
  std::vector<unsigned char> contents() { return memory_.contents(); }

  using Maker = std::function<ApiCall(Calls&, const std::string& base)>;
  static const std::map<std::string, Maker>& makers();

 private:
  struct Layer {
    LayerHandle handle;
    octile_layer_desc desc;
  };

  // Creates what a base stands for, by a call whose parameter `name` points to where it goes.
  template <typename Handle>
  std::pair<Handle*, ApiCall> create(const std::string& base, const char* name) {
    CallMemory before = std::exchange(memory_, CallMemory());
    ApiCall call = make(table_.bases.at(base).call, base).value();
    EXPECT_EQ(call.run(), OCTILE_OK) << base << ": " << octile_last_error();
    const Field& field = *std::ranges::find(call.fields, name, &Field::name);
    Handle* made = nullptr;
    std::memcpy(&made, *static_cast<void**>(field.at), sizeof made);
    memory_ = std::move(before);
    return {made, std::move(call)};
  }
  octile_plan* plan(const std::string& base) {
    if (!plans_.contains(base)) plans_[base].reset(create<octile_plan>(base, "plan").first);
    return plans_[base].get();
  }
  const Layer& layer(const std::string& base) {
    if (!layers_.contains(base)) {
      const auto [handle, call] = create<octile_layer>(base, "layer");
      layers_[base] = {LayerHandle(handle),
                       *static_cast<const octile_layer_desc*>(call.kept.front().get())};
    }
    return layers_[base];
  }
  // Returns the problem of a plan of this family, else one without anything special.
  template <typename OfFamily>
  static OfFamily problem(octile_plan* plan) {
    std::string text(1024, '\0');
    std::size_t size = text.size();
    EXPECT_EQ(octile_plan_problem(plan, text.data(), &size), OCTILE_OK);
    const Problem parsed = parse_problem(text.c_str()).value();
    const auto* found = std::get_if<OfFamily>(&parsed);
    return found == nullptr ? OfFamily() : *found;
  }

  // Returns memory for a struct or number of the caller's, with these bytes.
  template <typename T>
  T* put(T value = {}) {
    if constexpr (requires { value.struct_size; }) value.struct_size = sizeof(T);
    T* const at = memory_.take<T>(sizeof(T));
    std::memcpy(static_cast<void*>(at), &value, sizeof value);
    return at;
  }
  void* of_layer() { return memory_.take(kOfLayer); }
  // Returns numbers of groups, whose elements are fields.
  const std::int32_t* rows_of_groups(ApiCall& call) {
    auto* rows = reinterpret_cast<std::int32_t*>(put(std::array<std::int32_t, 16>{}));
    for (int i = 0; i < 4; ++i) call.fields.emplace_back(fmt::format("rows[{}]", i), rows + i);
    return rows;
  }
  // Returns where a create function puts what it makes.
  template <typename Handle>
  Handle** handle(ApiCall& call, octile_status (*destroy)(Handle*)) {
    auto** made = memory_.take<Handle*>(sizeof(Handle*));
    call.destroy = [made, destroy] { EXPECT_EQ(destroy(*made), OCTILE_OK); };
    return made;
  }

  ApiCall library_create(const std::string&) {
    ApiCall call;
    auto& a = call.keep<octile_library_options>();
    a.cache_dir = "";
    call.set(octile_library_create, {"options", "library"}, &a,
             handle(call, octile_library_destroy));
    call.add(OCTILE_FIELDS(a.compile_threads, a.log_level));
    return call;
  }
  ApiCall plan_create(const std::string&) {
    ApiCall call;
    call.set(octile_plan_create, {"library", "device", "problem", "plan"}, library_.get(), "host",
             kGemmText.c_str(), handle(call, octile_plan_destroy));
    return call;
  }
  ApiCall gemm_plan_create(const std::string&) {
    ApiCall call;
    auto& a = call.keep<octile_gemm_desc>();
    call.set(octile_gemm_plan_create, {"library", "device", "desc", "plan"}, library_.get(), "host",
             &a, handle(call, octile_plan_destroy));
    call.add(OCTILE_FIELDS(a.struct_size, a.n, a.k, a.m, a.a_dtype, a.a_granularity,
                           a.a_scale_format, a.b_dtype, a.b_granularity, a.d_dtype, a.d_granularity,
                           a.d_scale_format, a.promote, a.accumulate, a.batch_invariant,
                           a.bias_dtype, a.sentry, a.grouping, a.groups, a.batch));
    return call;
  }
  ApiCall quantize_plan_create(const std::string&) {
    ApiCall call;
    auto& a = call.keep<octile_quantize_desc>();
    auto& fused = call.keep<octile_quantize_fused_desc>();
    a.fused = &fused;
    call.set(octile_quantize_plan_create, {"library", "device", "desc", "plan"}, library_.get(),
             "host", &a, handle(call, octile_plan_destroy));
    call.add(OCTILE_FIELDS(a.struct_size, a.cols, a.x_dtype, a.q_dtype, a.granularity,
                           a.scale_format, a.amax_epsilon, a.e8m0_rounding, fused.struct_size,
                           fused.source, fused.tap, fused.weighted));
    return call;
  }
  ApiCall layer_create(const std::string&) {
    ApiCall call;
    auto& a = call.keep(desc_of(plain_layer_));
    call.set(octile_layer_create, {"library", "device", "desc", "layer"}, library_.get(), "host",
             &a, handle(call, octile_layer_destroy));
    call.add(OCTILE_FIELDS(a.struct_size, a.recipe, a.n, a.k, a.experts, a.dtype, a.weight_dtype,
                           a.weight_gradient_dtype, a.bias_dtype, a.history));
    return call;
  }

  ApiCall gemm_run(const std::string& base) {
    octile_plan* const on = plan(base);
    const auto p = problem<GemmProblem>(on);
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
                           a.b_scale, a.b_scale_ld, a.bias, a.d, a.ldd, a.flags, a.sm_limit,
                           a.groups, a.d_scales, a.monitor));
    call.add(OCTILE_FIELDS(groups.offsets, groups.counts, groups.expected_tokens, batch.a_stride,
                           batch.a_scale_stride, batch.b_stride, batch.b_scale_stride,
                           batch.d_stride, d_scales.scale, d_scales.scale_ld, monitor.sentry));
    return call;
  }
  ApiCall quantize_run(const std::string& base) {
    octile_plan* const on = plan(base);
    const auto p = problem<QuantizeProblem>(on);
    ApiCall call;
    auto& a = call.keep<octile_quantize_args>();
    auto& groups = call.keep<octile_quantize_groups>();
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
    a.fused = &fused;
    a.source_scales = &source_scales;
    a.monitor = &monitor;
    a.change = &change;
    a.gather = &gather;
    const std::int32_t* const rows = rows_of_groups(call);
    groups.group_count = p.grouping == Grouping::kNone ? 0 : 2;
    groups.offsets = p.grouping == Grouping::kContiguous ? rows : nullptr;
    groups.counts = p.grouping == Grouping::kMasked ? rows : nullptr;
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
                           a.q_transposed, a.scale_transposed, a.skip, a.groups, a.monitor,
                           a.change, a.gather));
    call.add(OCTILE_FIELDS(groups.group_count, groups.offsets, groups.counts, fused.x1, fused.x2,
                           fused.x3, fused.ldx1, fused.rstd, fused.bias_gradient, fused.tap,
                           fused.row_factor, source_scales.x_scale, source_scales.x_scale_ld,
                           monitor.struct_size, monitor.amax, monitor.nonfinite,
                           monitor.encode_scale, change.state, gather.index, gather.x_rows));
    return call;
  }

  float* scaling_of(const Layer& on) {
    return on.desc.history == 0 ? nullptr : put(std::array<float, 4>{1, 1, 0, 0})->data();
  }
  // Gives a call on a layer its tokens, groups and workspace.
  template <typename Args>
  void give_common(ApiCall& call, Args& a, const Layer& on, bool forward) {
    a.tokens = kTokensOfLayer;
    const std::int32_t* const rows = rows_of_groups(call);
    a.group_offsets = on.desc.experts > 0 ? rows : nullptr;
    EXPECT_EQ(
        octile_layer_workspace_size(
            on.handle.get(), a.tokens, OCTILE_LAYER_INPUT_GRADIENT | OCTILE_LAYER_WEIGHT_GRADIENT,
            forward ? &a.workspace_bytes : nullptr, forward ? nullptr : &a.workspace_bytes),
        OCTILE_OK);
    a.workspace = memory_.take(a.workspace_bytes);
  }
  ApiCall layer_forward(const std::string& base) {
    const Layer& on = layer(base);
    ApiCall call;
    auto& a = call.keep<octile_layer_forward_args>();
    auto& x = call.keep(operand(of_layer(), {}, {of_layer(), of_layer()}));
    auto& w = call.keep(operand(of_layer()));
    a.x = &x;
    a.w = &w;
    a.y = of_layer();
    a.bias = on.desc.bias_dtype != 0 ? of_layer() : nullptr;
    a.scaling = scaling_of(on);
    give_common(call, a, on, true);
    call.set(octile_layer_forward, {"layer", "args", "stream"}, on.handle.get(), &a, nullptr);
    call.add(OCTILE_FIELDS(a.struct_size, a.tokens, a.x, a.w, a.y, a.ldy, a.bias, a.workspace,
                           a.workspace_bytes, a.group_offsets, a.scaling, a.sentry, a.sm_limit,
                           a.flags));
    call.add(fields_of(x), "x.");
    call.add(fields_of(w), "w.");
    return call;
  }
  ApiCall layer_backward(const std::string& base) {
    const Layer& on = layer(base);
    ApiCall call;
    auto& a = call.keep<octile_layer_backward_args>();
    auto& dy = call.keep(operand(of_layer()));
    auto& x = call.keep(operand(of_layer()));
    auto& w = call.keep(operand(of_layer()));
    a.dy = &dy;
    a.x = &x;
    a.w = &w;
    a.dx = of_layer();
    a.dw = of_layer();
    a.bias_gradient = on.desc.bias_dtype != 0 ? memory_.take<float>() : nullptr;
    give_common(call, a, on, false);
    call.set(octile_layer_backward, {"layer", "args", "stream"}, on.handle.get(), &a, nullptr);
    call.add(OCTILE_FIELDS(a.tokens, a.dy, a.x, a.w, a.dx, a.lddx, a.dw, a.lddw, a.bias_gradient,
                           a.workspace_bytes, a.group_offsets));
    call.add(fields_of(dy), "dy.");
    call.add(fields_of(x), "x.");
    call.add(fields_of(w), "w.");
    return call;
  }
  ApiCall layer_quantize(const std::string& base) {
    const Layer& on = layer(base);
    ApiCall call;
    auto& a = call.keep<octile_layer_quantize_args>();
    auto& w = call.keep(operand(of_layer(), {of_layer(), of_layer()}));
    a.tensor = OCTILE_LAYER_W;
    a.operand = &w;
    give_common(call, a, on, false);
    call.set(octile_layer_quantize, {"layer", "args", "stream"}, on.handle.get(), &a, nullptr);
    call.add(OCTILE_FIELDS(a.tensor, a.tokens, a.operand));
    call.add(fields_of(w), "operand.");
    return call;
  }
  ApiCall layer_update_scales(const std::string& base) {
    const Layer& on = layer(base);
    ApiCall call;
    auto& a = call.keep<octile_layer_update_args>();
    a.scaling = scaling_of(on);
    call.set(octile_layer_update_scales, {"layer", "args", "stream"}, on.handle.get(), &a, nullptr);
    call.add(OCTILE_FIELDS(a.scaling, a.choice, a.margin, a.average_share, a.states, a.stride));
    return call;
  }
  ApiCall plan_problem(const std::string& base) {
    std::size_t* const size = put(std::size_t{1} << 16);
    ApiCall call = call_of(octile_plan_problem, {"plan", "buffer", "size"}, plan(base),
                           memory_.take<char>(), size);
    call.fields.emplace_back("size[0]", size);
    return call;
  }

  const RefusalTable& table_;
  LibraryHandle library_{""};
  CallMemory memory_;
  Texts texts_;
  LayerCase plain_layer_;
  std::map<std::string, PlanHandle> plans_;
  std::map<std::string, Layer> layers_;
};

const std::map<std::string, Calls::Maker>& Calls::makers() {
  using Name = const std::string&;
  static const std::map<std::string, Maker> all{
      {"gemm_plan_create", &Calls::gemm_plan_create},
      {"gemm_run", &Calls::gemm_run},
      {"layer_backward", &Calls::layer_backward},
      {"layer_create", &Calls::layer_create},
      {"layer_forward", &Calls::layer_forward},
      {"layer_quantize", &Calls::layer_quantize},
      {"layer_update_scales", &Calls::layer_update_scales},
      {"library_create", &Calls::library_create},
      {"plan_create", &Calls::plan_create},
      {"plan_problem", &Calls::plan_problem},
      {"quantize_plan_create", &Calls::quantize_plan_create},
      {"quantize_run", &Calls::quantize_run},
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
         return call_of(octile_measure_loss,
                        {"source", "x", "rows", "cols", "ldx", "dtype", "granularity", "format",
                         "sample", "loss"},
                        OCTILE_BF16, c.memory_.take(), 8, 8, 0, OCTILE_E4M3, OCTILE_SCALE_1X128,
                        OCTILE_SCALE_FORMAT_DEFAULT, 1.0, c.put<octile_loss>());
       }},
      {"sum_of_squares",
       [](Calls& c, Name) {
         return call_of(octile_sum_of_squares, {"squares", "sum"}, c.put<octile_squares>(),
                        c.put<double>());
       }},
  };
  return all;
}

std::vector<std::string> names_of_calls() {
  std::vector<std::string> names;
  for (const auto& [name, maker] : Calls::makers()) names.push_back(name);
  return names;
}

RefusalTable shipped_table() {
  return tests::read_cells("refusals.txt").and_then(parse_refusals).value();
}

class Refusals : public ::testing::TestWithParam<std::string> {};

// A base's call without a change is accepted, or a row would be refused for another reason than its
// change. Rows that change nothing are of bases with which the call cannot be made.
TEST_P(Refusals, NameWhatIsWrongAndWriteNothing) {
  const RefusalTable table = shipped_table();
  Calls calls(table);
  Texts texts;
  std::set<std::string> accepted;
  int rows = 0;
  for (const Refusal& row : table.rows) {
    if (row.call.text != GetParam()) continue;
    ++rows;
    SCOPED_TRACE(row.text);
    if (!row.changes.empty() && accepted.insert(row.base).second) {
      const Result<ApiCall> call = calls.make(row.call.text, row.base);
      ASSERT_TRUE(call.has_value()) << call.error().message;
      const octile_status status = call->run();
      EXPECT_EQ(status, OCTILE_OK) << "without a change: " << octile_last_error();
      if (status == OCTILE_OK) call->destroy();
    }
    const Result<ApiCall> call = calls.make(row.call.text, row.base);
    ASSERT_TRUE(call.has_value()) << call.error().message;
    for (const Change& change : row.changes) {
      const Status made = apply(change, call->fields, texts);
      ASSERT_TRUE(made.has_value()) << made.error().message;
    }
    const std::vector<unsigned char> before = calls.contents();
    const octile_status status = call->run();
    EXPECT_STREQ(octile_status_name(status), octile_status_name(row.status));
    const std::string sentence = octile_last_error();
    for (const std::string& part : row.parts) {
      if (part.starts_with("= ")) {
        EXPECT_EQ(sentence, part.substr(2));
      } else {
        EXPECT_THAT(sentence, ::testing::HasSubstr(part));
      }
    }
    EXPECT_TRUE(calls.contents() == before) << "memory was written";
  }
  EXPECT_GT(rows, 0) << "no row has this call";
}
INSTANTIATE_TEST_SUITE_P(Calls, Refusals, ::testing::ValuesIn(names_of_calls()),
                         [](const auto& call) { return call.param; });

TEST(RefusalTable, EveryRowHasACall) {
  for (const Refusal& row : shipped_table().rows)
    EXPECT_TRUE(Calls::makers().contains(row.call.text)) << row.text;
}

// Returns why a table is refused, or why its last row cannot be made.
std::string objection_to(const std::string& text) {
  const Result<RefusalTable> table = parse_refusals(text);
  if (!table) return table.error().message;
  Calls calls(*table);
  const Refusal& row = table->rows.back();
  const Result<ApiCall> call = calls.make(row.call.text, row.base);
  if (!call) return call.error().message;
  Texts texts;
  for (const Change& change : row.changes)
    if (const Status made = apply(change, call->fields, texts); !made) return made.error().message;
  return "";
}

TEST(RefusalTable, ErrorsNameLineAndColumn) {
  const std::string base = "# a comment\ndense | plan_create | -\n";
  for (const auto& [row, says] : {
           std::pair("plan_wait | dense", "refusals.txt:3:13: a row of 2 cells"),
           std::pair("plan_wait | dens | plan=null | INTERNAL | x", "3:13: no row above makes"),
           std::pair("plan_wait | dense | plan | INTERNAL | x", "3:25: a change is a name, then"),
           std::pair("plan_wait | dense | plan= | INTERNAL | x", "3:26: a change has no value"),
           std::pair("plan_create | - | device=\"x | INTERNAL | x", "3:28: a text in quotes does"),
           std::pair("plan_wait | dense | plan=null | NONE | x", "3:33: the status is 'NONE'"),
           std::pair("plan_wait | dense | plan=null | INTERNAL |", "the sentence has no part"),
           std::pair("dense | plan_create | -", "3:1: the base dense is there twice"),
           std::pair("plan_wait | dense | plan=null, n=1 | INTERNAL | x",
                     "3:32: the call has no 'n'"),
           std::pair("plan_wait | dense | plan=1 | INTERNAL | x", "3:21: 'plan' cannot become 1"),
           std::pair("plan_prepare | dense | flags=-1 | INTERNAL | x", "'flags' cannot become -1"),
           std::pair("plan_prepare | dense | lo=plan | INTERNAL | x", "'lo' cannot become plan"),
       }) {
    EXPECT_THAT(objection_to(base + row), ::testing::HasSubstr(says));
  }
  EXPECT_EQ(objection_to(base + "plan_prepare | dense | lo=hi, hi+2, plan=null | INTERNAL | x"),
            "");
}

}  // namespace
}  // namespace octile::test
