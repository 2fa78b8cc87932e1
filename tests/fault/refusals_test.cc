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

// One call of a C function, and all that it is given. The parts are in memory that `structs` owns.
struct ApiCall {
  Fields fields;
  std::function<octile_status()> run;
  std::function<void()> destroy = [] {};  // what an accepted call has created
  std::vector<std::shared_ptr<void>> structs;

  void add(const Fields& more, const std::string& prefix = "") {
    for (Field field : more) {
      field.name = prefix + field.name;
      fields.push_back(std::move(field));
    }
  }
};

// Returns fields with the names of expressions, each without its first object: of `a.lda, s->x.ld`
// these are "lda" and "x.ld".
template <typename... T>
Fields named(std::string_view names, T&... fields) {
  Fields made;
  const auto next = [&names] {
    const std::size_t end = std::min(names.find(','), names.size());
    std::string_view name = names.substr(0, end);
    name.remove_prefix(name.find_first_of(".>") + 1);
    names.remove_prefix(std::min(end + 1, names.size()));
    return std::string(name);
  };
  (made.emplace_back(next(), &fields), ...);
  return made;
}
#define OCTILE_FIELDS(...) named(#__VA_ARGS__, __VA_ARGS__)

// Returns a call whose parameters are fields with these names.
template <typename... T>
ApiCall call_of(octile_status (*function)(T...), const std::array<const char*, sizeof...(T)>& names,
                std::type_identity_t<T>... values) {
  auto parameters = std::make_shared<std::tuple<T...>>(values...);
  ApiCall call;
  std::apply(
      [&](auto&... parameter) {
        std::size_t i = 0;
        (call.fields.emplace_back(names[i++], &parameter), ...);
      },
      *parameters);
  call.run = [function, parameters] { return std::apply(function, *parameters); };
  return call;
}

Fields fields_of(octile_layer_operand& o) {
  return OCTILE_FIELDS(o.struct_size, o.source, o.ld, o.rowwise.codes, o.rowwise.scales,
                       o.transposed.codes, o.transposed.scales, o.state, o.skip, o.scale_ld,
                       o.whole_columns);
}

template <typename T>
std::shared_ptr<T> sized() {
  auto made = std::make_shared<T>();
  made->struct_size = sizeof(T);
  return made;
}

// The structs of a GEMM's arguments, each of them given.
struct GemmStructs {
  octile_gemm_args args{};
  octile_gemm_groups groups = unused_feature<octile_gemm_groups>();
  octile_gemm_batch batch = unused_feature<octile_gemm_batch>();
  octile_gemm_d_scales d_scales = unused_feature<octile_gemm_d_scales>();
  octile_gemm_monitor monitor = unused_feature<octile_gemm_monitor>();
};

struct QuantizeStructs {
  octile_quantize_args args{};
  octile_quantize_groups groups = unused_feature<octile_quantize_groups>();
  octile_quantize_delayed delayed = unused_feature<octile_quantize_delayed>();
  octile_quantize_fused fused = unused_feature<octile_quantize_fused>();
  octile_quantize_source_scales source_scales = unused_feature<octile_quantize_source_scales>();
  octile_quantize_monitor monitor = unused_feature<octile_quantize_monitor>();
  octile_quantize_change change = unused_feature<octile_quantize_change>();
  octile_quantize_gather gather = unused_feature<octile_quantize_gather>();
};

struct ForwardStructs {
  octile_layer_forward_args args{};
  octile_layer_operand x{}, w{};
};

struct BackwardStructs {
  octile_layer_backward_args args{};
  octile_layer_operand dy{}, x{}, w{};
};

struct QuantizeLayerStructs {
  octile_layer_quantize_args args{};
  octile_layer_operand w{};
};

struct KnownLayer {
  LayerHandle handle;
  std::int64_t experts = 0, history = 0;
  bool has_bias = false;
};

constexpr std::int64_t kTokens = 64;  // unless a row says otherwise
constexpr std::int64_t kTokensOfLayer = 37;
constexpr std::size_t kOfLayer = std::size_t{1} << 19;  // bytes for any tensor of a layer

// Makes calls that are valid, for the plans and layers of a table's bases.
class Calls {
 public:
  explicit Calls(const RefusalTable& table) : table_(table) {}

  // Returns the call of a C function on a base as it is before a row changes it, or the sentence
  // that says why there is none.
  Result<ApiCall> make(const std::string& function, const std::string& base) {
    memory_ = CallMemory();
    const auto maker = makers().find(function);
    if (maker == makers().end()) return fail(ErrorCode::kInvalidArgument, "no call " + function);
    ApiCall call = (this->*maker->second)(base);
    call.fields.emplace_back("spare", keep(call, memory_.take()));
    const auto found = table_.bases.find(base);
    if (found == table_.bases.end() || found->second.call != function) return call;
    for (const Change& change : found->second.changes) {
      if (const Status made = apply(change, call.fields, texts_); !made)
        return tl::unexpected(made.error());
    }
    return call;
  }
  std::vector<unsigned char> contents() { return memory_.contents(); }

  using Maker = ApiCall (Calls::*)(const std::string& base);
  static const std::map<std::string, Maker>& makers();

 private:
  // Keeps a value as long as the call, and returns its address.
  template <typename T>
  static T* keep(ApiCall& call, T value) {
    auto kept = std::make_shared<T>(value);
    call.structs.push_back(kept);
    return kept.get();
  }

  // Creates what a base stands for, by a call whose parameter `handle` points to where it goes.
  // Returns the call too.
  template <typename Handle>
  std::pair<Handle*, ApiCall> create(const std::string& base, const char* handle) {
    CallMemory before = std::exchange(memory_, CallMemory());
    const Result<ApiCall> call = make(table_.bases.at(base).call, base);
    EXPECT_TRUE(call.has_value()) << (call ? "" : call.error().message);
    Handle* made = nullptr;
    if (call && call->run() == OCTILE_OK) {
      const Field& field = *std::ranges::find(call->fields, handle, &Field::name);
      std::memcpy(&made, *static_cast<void**>(field.at), sizeof made);
    }
    EXPECT_NE(made, nullptr) << base << ": " << octile_last_error();
    memory_ = std::move(before);
    return {made, call.value()};
  }
  octile_plan* plan(const std::string& base) {
    if (!plans_.contains(base)) plans_[base].reset(create<octile_plan>(base, "plan").first);
    return plans_[base].get();
  }
  const KnownLayer& layer(const std::string& base) {
    if (!layers_.contains(base)) {
      auto [handle, call] = create<octile_layer>(base, "layer");
      const auto value = [&fields = call.fields](const char* name) {
        std::int64_t number = 0;
        const Field& field = *std::ranges::find(fields, name, &Field::name);
        std::memcpy(&number, field.at, field.size);
        return number;
      };
      layers_[base] = {LayerHandle(handle), value("experts"), value("history"),
                       value("bias_dtype") != 0};
    }
    return layers_[base];
  }
  // Returns the problem of a base that is a plan of its family, else one without anything special.
  template <typename OfFamily>
  OfFamily problem(octile_plan* plan) {
    std::string text(1024, '\0');
    std::size_t size = text.size();
    EXPECT_EQ(octile_plan_problem(plan, text.data(), &size), OCTILE_OK);
    const auto parsed = parse_problem(text.c_str()).value();
    const auto* found = std::get_if<OfFamily>(&parsed);
    return found == nullptr ? OfFamily() : *found;
  }

  // Adds values of small arrays of numbers as fields.
  std::int32_t* numbers(ApiCall& call, const std::string& name) {
    auto* values = memory_.take<std::int32_t>();
    std::memset(values, 0, 16 * sizeof *values);
    for (std::size_t i = 0; i < 4; ++i)
      call.fields.emplace_back(fmt::format("{}[{}]", name, i), values + i);
    return values;
  }

  // ---- creating

  template <typename Handle>
  Handle** out(ApiCall& call, octile_status (*destroy)(Handle*)) {
    auto** made = memory_.take<Handle*>(sizeof(Handle*));
    call.destroy = [made, destroy] { EXPECT_EQ(destroy(*made), OCTILE_OK); };
    return made;
  }

  ApiCall library_create(const std::string&) {
    auto options = sized<octile_library_options>();
    options->cache_dir = "";
    ApiCall made;
    auto** library = out(made, octile_library_destroy);
    ApiCall call = call_of(octile_library_create, {"options", "library"}, options.get(), library);
    call.add(OCTILE_FIELDS(options->compile_threads, options->log_level));
    call.structs.push_back(options);
    call.destroy = made.destroy;
    return call;
  }
  // Returns the call of a function that creates a plan or a layer by a description.
  template <typename Desc, typename Handle>
  ApiCall created(octile_status (*function)(octile_library*, const char*, const Desc*, Handle**),
                  const char* handle, octile_status (*destroy)(Handle*),
                  std::shared_ptr<Desc> desc) {
    ApiCall made;
    auto** const place = out(made, destroy);
    ApiCall call = call_of(function, {"library", "device", "desc", handle}, library_.get(), "host",
                           desc.get(), place);
    call.structs.push_back(std::move(desc));
    call.destroy = made.destroy;
    return call;
  }
  ApiCall plan_create(const std::string&) {
    ApiCall made;
    auto** const place = out(made, octile_plan_destroy);
    ApiCall call = call_of(octile_plan_create, {"library", "device", "problem", "plan"},
                           library_.get(), "host", kGemmText.c_str(), place);
    call.destroy = made.destroy;
    return call;
  }
  ApiCall gemm_plan_create(const std::string&) {
    auto desc = sized<octile_gemm_desc>();
    ApiCall call = created(octile_gemm_plan_create, "plan", octile_plan_destroy, desc);
    auto& d = *desc;
    call.add(OCTILE_FIELDS(d.struct_size, d.n, d.k, d.m, d.a_dtype, d.a_granularity,
                           d.a_scale_format, d.b_dtype, d.b_granularity, d.d_dtype, d.d_granularity,
                           d.d_scale_format, d.promote, d.accumulate, d.batch_invariant,
                           d.bias_dtype, d.sentry, d.grouping, d.groups, d.batch));
    return call;
  }
  ApiCall quantize_plan_create(const std::string&) {
    auto desc = sized<octile_quantize_desc>();
    auto fused = sized<octile_quantize_fused_desc>();
    desc->fused = fused.get();
    ApiCall call = created(octile_quantize_plan_create, "plan", octile_plan_destroy, desc);
    auto& d = *desc;
    call.add(OCTILE_FIELDS(d.struct_size, d.cols, d.x_dtype, d.q_dtype, d.granularity,
                           d.scale_format, d.amax_epsilon, d.e8m0_rounding, d.fused));
    call.add(OCTILE_FIELDS(fused->struct_size, fused->source, fused->tap), "fused.");
    call.structs.push_back(std::move(fused));
    return call;
  }
  ApiCall layer_create(const std::string&) {
    auto desc = sized<octile_layer_desc>();
    *desc = desc_of(plain_layer_);
    ApiCall call = created(octile_layer_create, "layer", octile_layer_destroy, desc);
    auto& d = *desc;
    call.add(OCTILE_FIELDS(d.struct_size, d.recipe, d.n, d.k, d.experts, d.dtype, d.weight_dtype,
                           d.weight_gradient_dtype, d.bias_dtype, d.history));
    return call;
  }

  // ---- running plans

  ApiCall gemm_run(const std::string& base) {
    octile_plan* const on = plan(base);
    const auto p = problem<GemmProblem>(on);
    auto s = std::make_shared<GemmStructs>();
    ApiCall call = call_of(octile_gemm_run, {"plan", "args", "stream"}, on, &s->args, nullptr);
    octile_gemm_args& a = s->args;
    a.struct_size = sizeof a;
    a.tokens = p.m == kDynamic || p.k == kDynamic ? kTokens : p.m;
    a.a = memory_.take();
    a.a_scale = memory_.take();
    a.b = memory_.take();
    a.b_scale = memory_.take();
    a.d = memory_.take();
    a.bias = p.bias ? memory_.take() : nullptr;
    a.groups = &s->groups;
    a.batch = &s->batch;
    a.d_scales = &s->d_scales;
    a.monitor = &s->monitor;
    const std::int32_t* const rows = numbers(call, "rows");
    s->groups.offsets = p.grouping == Grouping::kContiguous ? rows : nullptr;
    s->groups.counts = p.grouping == Grouping::kMasked ? rows : nullptr;
    s->d_scales.scale = is_fp8(p.d.dtype) ? memory_.take<float>() : nullptr;
    s->monitor.sentry = has_sentry(p) ? memory_.take<std::uint32_t>() : nullptr;
    call.add(OCTILE_FIELDS(a.struct_size, a.tokens, a.a, a.lda, a.a_scale, a.a_scale_ld, a.b, a.ldb,
                           a.b_scale, a.b_scale_ld, a.bias, a.d, a.ldd, a.flags, a.sm_limit,
                           a.groups, a.d_scales, a.monitor));
    call.add(OCTILE_FIELDS(s->groups.offsets, s->groups.counts, s->groups.expected_tokens,
                           s->batch.a_stride, s->batch.a_scale_stride, s->batch.b_stride,
                           s->batch.b_scale_stride, s->batch.d_stride, s->d_scales.scale,
                           s->d_scales.scale_ld, s->monitor.sentry));
    call.structs.push_back(std::move(s));
    return call;
  }
  ApiCall quantize_run(const std::string& base) {
    octile_plan* const on = plan(base);
    const auto p = problem<QuantizeProblem>(on);
    auto s = std::make_shared<QuantizeStructs>();
    ApiCall call = call_of(octile_quantize_run, {"plan", "args", "stream"}, on, &s->args, nullptr);
    octile_quantize_args& a = s->args;
    a.struct_size = sizeof a;
    a.rows = kTokens;
    a.x = memory_.take();
    const bool has_scales = is_fp8(p.q.dtype);
    if (has_rowwise(p.output)) {
      a.q = memory_.take();
      a.scale = has_scales ? memory_.take() : nullptr;
    }
    if (has_transposed(p.output)) {
      a.q_transposed = memory_.take();
      a.scale_transposed = memory_.take();
    }
    a.groups = &s->groups;
    a.delayed = &s->delayed;
    a.fused = &s->fused;
    a.source_scales = &s->source_scales;
    a.monitor = &s->monitor;
    a.change = &s->change;
    a.gather = &s->gather;
    const std::int32_t* const rows = numbers(call, "rows");
    s->groups.group_count = p.grouping == Grouping::kNone ? 0 : 2;
    s->groups.offsets = p.grouping == Grouping::kContiguous ? rows : nullptr;
    s->groups.counts = p.grouping == Grouping::kMasked ? rows : nullptr;
    const SourceShape source = source_shape(p.source);
    const std::array inputs{&s->fused.x1, &s->fused.x2, &s->fused.x3};
    for (int i = 1; i < source.inputs; ++i)
      *inputs.at(static_cast<std::size_t>(i) - 1) = memory_.take();
    s->fused.rstd = source.norms ? memory_.take<float>() : nullptr;
    s->fused.bias_gradient = p.bias_gradient ? memory_.take<float>() : nullptr;
    s->fused.tap = p.tap ? memory_.take<float>() : nullptr;
    s->source_scales.x_scale = is_fp8(p.x.dtype) ? memory_.take() : nullptr;
    if (p.skip_unchanged) {
      s->change.state = memory_.take<octile_fingerprint>();
      *s->change.state = {};
    }
    if (p.operation == QuantizeOperation::kGather) {
      s->gather.index = memory_.take<std::int32_t>();
      s->gather.x_rows = kTokens;
    }
    call.add(OCTILE_FIELDS(a.struct_size, a.rows, a.x, a.ldx, a.q, a.ldq, a.scale, a.scale_ld,
                           a.q_transposed, a.scale_transposed, a.skip, a.groups, a.change,
                           a.gather));
    call.add(OCTILE_FIELDS(
        s->groups.group_count, s->groups.offsets, s->groups.counts, s->fused.x1, s->fused.x2,
        s->fused.x3, s->fused.ldx1, s->fused.rstd, s->fused.bias_gradient, s->fused.tap,
        s->source_scales.x_scale, s->source_scales.x_scale_ld, s->monitor.struct_size,
        s->monitor.nonfinite, s->change.state, s->gather.index, s->gather.x_rows));
    call.structs.push_back(std::move(s));
    return call;
  }

  // ---- asking plans

  ApiCall plan_prepare(const std::string& base) {
    return call_of(octile_plan_prepare, {"plan", "lo", "hi", "flags"}, plan(base), 0, 1, 0);
  }
  ApiCall plan_wait(const std::string& base) {
    return call_of(octile_plan_wait, {"plan"}, plan(base));
  }
  ApiCall plan_problem(const std::string& base) { return text_of(octile_plan_problem, base); }
  ApiCall plan_describe(const std::string& base) { return text_of(octile_plan_describe, base); }
  ApiCall text_of(octile_status (*function)(octile_plan*, char*, std::size_t*),
                  const std::string& base) {
    auto* size = memory_.take<std::size_t>(sizeof(std::size_t));
    *size = std::size_t{1} << 16;
    ApiCall call =
        call_of(function, {"plan", "buffer", "size"}, plan(base), memory_.take<char>(), size);
    call.fields.emplace_back("size[0]", size);
    return call;
  }
  ApiCall plan_workspace_size(const std::string& base) {
    return call_of(octile_plan_workspace_size, {"plan", "tokens", "bytes"}, plan(base), 1,
                   memory_.take<std::size_t>());
  }
  octile_quantized_layout* layout() {
    auto* made = memory_.take<octile_quantized_layout>();
    made->struct_size = sizeof *made;
    return made;
  }
  ApiCall plan_quantized_layout(const std::string& base) {
    return call_of(octile_plan_quantized_layout, {"plan", "rows", "groups", "transposed", "layout"},
                   plan(base), 10, 0, 0, layout());
  }
  ApiCall quantized_layout_query(const std::string&) {
    return call_of(octile_quantized_layout_query,
                   {"dtype", "granularity", "format", "rows", "cols", "transposed", "layout"},
                   OCTILE_E4M3, OCTILE_SCALE_1X128, OCTILE_SCALE_FORMAT_DEFAULT, 8, 8, 0, layout());
  }
  ApiCall recipe_at(const std::string&) {
    auto* recipe = memory_.take<octile_recipe>();
    recipe->struct_size = sizeof *recipe;
    return call_of(octile_recipe_at, {"index", "recipe"}, 0, recipe);
  }
  ApiCall sum_of_squares(const std::string&) {
    auto* squares = memory_.take<octile_squares>();
    *squares = {};
    return call_of(octile_sum_of_squares, {"squares", "sum"}, squares, memory_.take<double>());
  }

  // ---- layers

  void* take() { return memory_.take(kOfLayer); }
  // Returns offsets of groups that are all empty, if the layer has experts.
  const std::int32_t* offsets(ApiCall& call, const KnownLayer& on) {
    const std::int32_t* const rows = numbers(call, "rows");
    return on.experts > 0 ? rows : nullptr;
  }
  float* scaling(const KnownLayer& on) {
    if (on.history == 0) return nullptr;
    auto* state = memory_.take<float>();
    std::fill_n(state, 4, 1.0F);
    return state;
  }
  static constexpr std::uint32_t kUses = OCTILE_LAYER_INPUT_GRADIENT | OCTILE_LAYER_WEIGHT_GRADIENT;

  ApiCall layer_forward(const std::string& base) {
    const KnownLayer& on = layer(base);
    auto s = std::make_shared<ForwardStructs>();
    octile_layer_forward_args& a = s->args;
    ApiCall call =
        call_of(octile_layer_forward, {"layer", "args", "stream"}, on.handle.get(), &a, nullptr);
    s->x = operand(take(), {}, {take(), take()});
    s->w = operand(take());
    a.struct_size = sizeof a;
    a.tokens = kTokensOfLayer;
    a.x = &s->x;
    a.w = &s->w;
    a.y = take();
    a.bias = on.has_bias ? take() : nullptr;
    a.group_offsets = offsets(call, on);
    a.scaling = scaling(on);
    EXPECT_EQ(
        octile_layer_workspace_size(on.handle.get(), a.tokens, kUses, &a.workspace_bytes, nullptr),
        OCTILE_OK);
    a.workspace = memory_.take(a.workspace_bytes);
    call.add(OCTILE_FIELDS(a.struct_size, a.tokens, a.x, a.w, a.y, a.ldy, a.bias, a.workspace,
                           a.workspace_bytes, a.group_offsets, a.scaling, a.sentry, a.sm_limit,
                           a.flags));
    call.add(fields_of(s->x), "x.");
    call.add(fields_of(s->w), "w.");
    call.structs.push_back(std::move(s));
    return call;
  }
  ApiCall layer_backward(const std::string& base) {
    const KnownLayer& on = layer(base);
    auto s = std::make_shared<BackwardStructs>();
    octile_layer_backward_args& a = s->args;
    ApiCall call =
        call_of(octile_layer_backward, {"layer", "args", "stream"}, on.handle.get(), &a, nullptr);
    s->dy = operand(take());
    s->x = operand(take());
    s->w = operand(take());
    a.struct_size = sizeof a;
    a.tokens = kTokensOfLayer;
    a.dy = &s->dy;
    a.x = &s->x;
    a.w = &s->w;
    a.dx = take();
    a.dw = take();
    a.bias_gradient = on.has_bias ? static_cast<float*>(take()) : nullptr;
    a.group_offsets = offsets(call, on);
    EXPECT_EQ(
        octile_layer_workspace_size(on.handle.get(), a.tokens, kUses, nullptr, &a.workspace_bytes),
        OCTILE_OK);
    a.workspace = memory_.take(a.workspace_bytes);
    call.add(OCTILE_FIELDS(a.tokens, a.dy, a.x, a.w, a.dx, a.lddx, a.dw, a.lddw, a.bias_gradient,
                           a.workspace_bytes, a.group_offsets));
    call.add(fields_of(s->dy), "dy.");
    call.add(fields_of(s->x), "x.");
    call.structs.push_back(std::move(s));
    return call;
  }
  ApiCall layer_quantize(const std::string& base) {
    const KnownLayer& on = layer(base);
    auto s = std::make_shared<QuantizeLayerStructs>();
    octile_layer_quantize_args& a = s->args;
    ApiCall call =
        call_of(octile_layer_quantize, {"layer", "args", "stream"}, on.handle.get(), &a, nullptr);
    s->w = operand(take(), {take(), take()});
    a.struct_size = sizeof a;
    a.tensor = OCTILE_LAYER_W;
    a.operand = &s->w;
    EXPECT_EQ(octile_layer_workspace_size(on.handle.get(), kTokensOfLayer, kUses, nullptr,
                                          &a.workspace_bytes),
              OCTILE_OK);
    a.workspace = memory_.take(a.workspace_bytes);
    call.add(OCTILE_FIELDS(a.tensor, a.tokens, a.operand));
    call.add(fields_of(s->w), "operand.");
    call.structs.push_back(std::move(s));
    return call;
  }
  ApiCall layer_update_scales(const std::string& base) {
    const KnownLayer& on = layer(base);
    auto args = sized<octile_layer_update_args>();
    args->scaling = scaling(on);
    ApiCall call = call_of(octile_layer_update_scales, {"layer", "args", "stream"}, on.handle.get(),
                           args.get(), nullptr);
    call.add(OCTILE_FIELDS(args->scaling, args->choice, args->margin, args->average_share,
                           args->states, args->stride));
    call.structs.push_back(std::move(args));
    return call;
  }
  ApiCall layer_prepare(const std::string& base) {
    return call_of(octile_layer_prepare, {"layer", "lo", "hi", "uses"}, layer(base).handle.get(), 1,
                   8, 0);
  }
  ApiCall layer_problems(const std::string& base) {
    auto* size = memory_.take<std::size_t>(sizeof(std::size_t));
    *size = std::size_t{1} << 16;
    return call_of(octile_layer_problems, {"layer", "uses", "buffer", "size"},
                   layer(base).handle.get(), 0, memory_.take<char>(), size);
  }
  ApiCall layer_copy_layout(const std::string& base) {
    return call_of(octile_layer_copy_layout, {"layer", "tensor", "transposed", "tokens", "layout"},
                   layer(base).handle.get(), OCTILE_LAYER_X, 0, 1, layout());
  }
  ApiCall layer_workspace_size(const std::string& base) {
    return call_of(octile_layer_workspace_size, {"layer", "tokens", "uses", "forward", "backward"},
                   layer(base).handle.get(), 8, 0, memory_.take<std::size_t>(),
                   memory_.take<std::size_t>());
  }
  ApiCall layer_scaling_size(const std::string& base) {
    return call_of(octile_layer_scaling_size, {"layer", "elements"}, layer(base).handle.get(),
                   memory_.take<std::int64_t>());
  }

  const RefusalTable& table_;
  LibraryHandle library_{""};
  CallMemory memory_;
  Texts texts_;
  LayerCase plain_layer_;
  std::map<std::string, PlanHandle> plans_;
  std::map<std::string, KnownLayer> layers_;
};

const std::map<std::string, Calls::Maker>& Calls::makers() {
  static const std::map<std::string, Maker> all{
      {"gemm_plan_create", &Calls::gemm_plan_create},
      {"gemm_run", &Calls::gemm_run},
      {"layer_backward", &Calls::layer_backward},
      {"layer_copy_layout", &Calls::layer_copy_layout},
      {"layer_create", &Calls::layer_create},
      {"layer_forward", &Calls::layer_forward},
      {"layer_prepare", &Calls::layer_prepare},
      {"layer_problems", &Calls::layer_problems},
      {"layer_quantize", &Calls::layer_quantize},
      {"layer_scaling_size", &Calls::layer_scaling_size},
      {"layer_update_scales", &Calls::layer_update_scales},
      {"layer_workspace_size", &Calls::layer_workspace_size},
      {"library_create", &Calls::library_create},
      {"plan_create", &Calls::plan_create},
      {"plan_describe", &Calls::plan_describe},
      {"plan_prepare", &Calls::plan_prepare},
      {"plan_problem", &Calls::plan_problem},
      {"plan_quantized_layout", &Calls::plan_quantized_layout},
      {"plan_wait", &Calls::plan_wait},
      {"plan_workspace_size", &Calls::plan_workspace_size},
      {"quantize_plan_create", &Calls::quantize_plan_create},
      {"quantize_run", &Calls::quantize_run},
      {"quantized_layout_query", &Calls::quantized_layout_query},
      {"recipe_at", &Calls::recipe_at},
      {"sum_of_squares", &Calls::sum_of_squares},
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
