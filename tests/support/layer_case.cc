#include "tests/support/layer_case.h"
#include "tests/support/gemm_call.h"

#include <algorithm>
#include <array>

#include "generator/core/recipe.h"
#include "runtime/reference/synthetic.h"

namespace octile::test {
namespace {

const char* word_of(octile_dtype type) {
  static constexpr std::array kNames{"", "e4m3", "e5m2", "bf16", "fp16", "fp32"};
  return kNames.at(type);
}

std::size_t size_of_type(octile_dtype type) { return type == OCTILE_FP32 ? 4 : 2; }

// Returns the type of a role with the scales that its quantiser makes, or that a GEMM takes.
std::string type_text(const LayerCase& c, int role, bool of_gemm) {
  const Recipe* recipe = find_recipe(c.recipe);
  const std::array types{recipe->activation, recipe->weight, recipe->gradient};
  TensorType type = types.at(static_cast<std::size_t>(role));
  if (of_gemm && type.scale == ScaleFormat::kF32Pow2) type.scale = ScaleFormat::kF32;
  return to_text(type);
}

bool is_delayed(const LayerCase& c) { return c.recipe.starts_with("delayed"); }
std::int64_t tensors_of(const LayerCase& c) { return std::max<std::int64_t>(c.experts, 1); }

std::string grouping_text(const LayerCase& c, bool with_count) {
  if (c.experts == 0) return "";
  return with_count ? " group=contiguous groups=" + std::to_string(c.experts) : " group=contiguous";
}

// Returns the bits of values of N(0, 1) times `sigma`.
std::vector<unsigned char> random_values(octile_dtype type, std::int64_t count, std::uint64_t seed,
                                         double sigma) {
  std::vector<unsigned char> bytes(static_cast<std::size_t>(count) * size_of_type(type));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    const auto value = static_cast<float>(sigma * reference::random_normal(seed, index));
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    if (type == OCTILE_FP32) std::memcpy(bytes.data() + 4 * i, &bits, 4);
    if (type == OCTILE_BF16) std::memcpy(bytes.data() + 2 * i, &(bits >>= 16), 2);
    if (type == OCTILE_FP16) {
      const auto half = static_cast<_Float16>(value);
      std::memcpy(bytes.data() + 2 * i, &half, 2);
    }
  }
  return bytes;
}

struct Copy {
  Bytes codes{0}, scales{0};
  std::size_t code_bytes = 0, scale_bytes = 0;
  std::int64_t ld = 0;
  std::vector<unsigned char> codes_as_vector() {
    return {codes.at<unsigned char>(), codes.at<unsigned char>() + code_bytes};
  }
  std::vector<unsigned char> scales_as_vector() {
    return {scales.at<unsigned char>(), scales.at<unsigned char>() + scale_bytes};
  }
};

// One role's copies: of X and dY one call, of W one for each expert.
class Composition {
 public:
  Composition(const LibraryHandle& library, const LayerCase& c, const LayerTensors& tensors,
              std::vector<float>& scaling)
      : library_(library), c_(c), tensors_(tensors), scaling_(scaling) {}

  Copy quantize(int role, bool transposed, const std::vector<unsigned char>& source, float* sums) {
    const PlanHandle plan = make_plan(
        library_, "host", quantizer_text(c_, role, transposed ? "col" : "row", sums != nullptr));
    const bool is_w = role == 1;
    const std::int64_t rows = is_w ? c_.n : c_.tokens;
    octile_quantized_layout layout{};
    layout.struct_size = sizeof layout;
    EXPECT_EQ(octile_plan_quantized_layout(plan.get(), rows, is_w ? 0 : c_.experts,
                                           transposed ? 1 : 0, &layout),
              OCTILE_OK)
        << octile_last_error();
    const std::int64_t count = is_w ? tensors_of(c_) : 1;
    Copy copy;
    copy.code_bytes = static_cast<std::size_t>(layout.data_bytes * count);
    copy.scale_bytes = static_cast<std::size_t>(layout.scale_bytes * count);
    copy.codes = Bytes(copy.code_bytes);
    copy.scales = Bytes(copy.scale_bytes);
    std::memset(copy.codes.at(), 0xa5, copy.code_bytes);
    std::memset(copy.scales.at(), 0xa5, copy.scale_bytes);
    copy.ld = layout.data_ld;
    for (std::int64_t i = 0; i < count; ++i) {
      QuantizeArguments args;
      args.rows = rows;
      args.x = source.data() + i * static_cast<std::int64_t>(source.size()) / count;
      void* const codes = copy.codes.at(static_cast<std::size_t>(i * layout.data_bytes));
      void* const scales = copy.scales.at(static_cast<std::size_t>(i * layout.scale_bytes));
      (transposed ? args.q_transposed : args.q) = codes;
      (transposed ? args.scale_transposed : args.scale) = scales;
      if (!transposed) args.ldq = layout.data_ld;
      if (!is_w && c_.experts > 0) {
        args.groups.group_count = c_.experts;
        args.groups.offsets = tensors_.groups();
      }
      args.fused.bias_gradient = sums;
      set_scaling(args, role);
      EXPECT_EQ(run_quantize(plan.get(), args), OCTILE_OK) << octile_last_error();
    }
    return copy;
  }

  void multiply(int pass, Copy& a, Copy& b, void* d, std::uint32_t* sentry) {
    const PlanHandle plan = make_plan(library_, "host", gemm_text(c_, pass));
    GemmArguments args;
    args.tokens = c_.tokens;
    args.a = a.codes.at();
    args.lda = a.ld;
    args.a_scale = a.scales.at();
    args.b = b.codes.at();
    args.ldb = b.ld;
    args.b_scale = b.scales.at();
    args.d = d;
    args.bias = pass == 0 && c_.bias ? tensors_.bias.data() : nullptr;
    args.groups.offsets = tensors_.groups();
    args.monitor.sentry = sentry;
    EXPECT_EQ(tests::run_gemm(plan.get(), args, nullptr), OCTILE_OK) << octile_last_error();
  }

 private:
  // The state's layout, written out: encode scales of X and dY, then the maxima of each.
  void set_scaling(QuantizeArguments& args, int role) {
    if (scaling_.empty() || role == 1) return;
    const std::int64_t e = tensors_of(c_), index = role / 2;
    if (is_delayed(c_)) args.delayed.encode_scale = scaling_.data() + index * e;
    args.monitor.amax = scaling_.data() + (2 + index * c_.history) * e;
  }

  const LibraryHandle& library_;
  const LayerCase& c_;
  const LayerTensors& tensors_;
  std::vector<float>& scaling_;
};

std::vector<unsigned char> filled(std::int64_t elements, octile_dtype type, unsigned char byte) {
  return std::vector<unsigned char>(static_cast<std::size_t>(elements) * size_of_type(type), byte);
}

}  // namespace

Guarded::Guarded(std::size_t bytes) : bytes_(bytes), storage_(bytes + kGuard + 256, 0xa5) {}
unsigned char* Guarded::at() const {
  const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
  return reinterpret_cast<unsigned char*>((address + 255) & ~std::uintptr_t{255});
}
std::vector<unsigned char> Guarded::bytes() const { return {at(), at() + bytes_}; }
bool Guarded::untouched() const {
  return std::all_of(at(), at() + bytes_ + kGuard, [](unsigned char b) { return b == 0xa5; });
}
bool Guarded::guard_holds() const {
  return std::all_of(at() + bytes_, at() + bytes_ + kGuard,
                     [](unsigned char b) { return b == 0xa5; });
}

octile_layer_desc desc_of(const LayerCase& c) {
  octile_layer_desc desc{};
  desc.struct_size = sizeof desc;
  desc.recipe = c.recipe.c_str();
  desc.n = c.n;
  desc.k = c.k;
  desc.experts = c.experts;
  desc.dtype = c.dtype;
  desc.weight_dtype = c.weight_dtype;
  desc.weight_gradient_dtype = c.gradient_dtype;
  desc.accumulate = c.accumulate ? 1 : 0;
  if (c.bias) desc.bias_dtype = OCTILE_BF16;
  desc.sentry = c.sentry ? 1 : 0;
  desc.history = c.history;
  return desc;
}

LayerHandle make_layer(const LibraryHandle& library, const LayerCase& c, const char* device) {
  const octile_layer_desc desc = desc_of(c);
  octile_layer* layer = nullptr;
  EXPECT_EQ(octile_layer_create(library.get(), device, &desc, &layer), OCTILE_OK)
      << octile_last_error();
  return LayerHandle(layer);
}

CopyMemory memory_of_copy(octile_layer* layer, octile_layer_tensor tensor, bool transposed,
                          std::int64_t tokens) {
  octile_quantized_layout layout{};
  layout.struct_size = sizeof layout;
  EXPECT_EQ(octile_layer_copy_layout(layer, tensor, transposed ? 1 : 0, tokens, &layout), OCTILE_OK)
      << octile_last_error();
  return {Guarded(static_cast<std::size_t>(layout.data_bytes)),
          Guarded(static_cast<std::size_t>(layout.scale_bytes))};
}

octile_layer_operand operand(const void* source, octile_layer_copy rowwise,
                             octile_layer_copy transposed) {
  octile_layer_operand made{};
  made.struct_size = sizeof made;
  made.source = source;
  made.rowwise = rowwise;
  made.transposed = transposed;
  return made;
}

octile_layer_operand current(octile_layer_copy rowwise, octile_layer_copy transposed) {
  octile_layer_operand made = operand(nullptr, rowwise, transposed);
  made.state = OCTILE_LAYER_CURRENT;
  return made;
}

octile_layer_operand held(octile_layer_copy rowwise) {
  octile_layer_operand made = operand(nullptr, rowwise);
  made.state = OCTILE_LAYER_CODES;
  return made;
}

LayerTensors::LayerTensors(const LayerCase& c, std::uint64_t seed)
    : x(random_values(c.dtype, c.tokens * c.k, seed, 1)),
      w(random_values(c.weight_dtype, tensors_of(c) * c.n * c.k, seed + 100, 0.05)),
      dy(random_values(c.dtype, c.tokens * c.n, seed + 200, 0.01)),
      bias(random_values(OCTILE_BF16, c.n, seed + 300, 1)) {
  if (c.experts == 0) return;
  // Shares of different sizes; the second expert has no token.
  offsets.assign(static_cast<std::size_t>(c.experts) + 1, 0);
  for (std::int64_t e = 1; e <= c.experts; ++e) {
    const bool is_second = e == 2;
    const auto at = static_cast<std::size_t>(e);
    offsets[at] = is_second ? offsets[1] : static_cast<std::int32_t>(c.tokens * e / c.experts);
  }
}

octile_layer_forward_args forward_args(std::int64_t tokens, const octile_layer_operand* x,
                                       const octile_layer_operand* w, void* y,
                                       LayerWorkspace workspace) {
  octile_layer_forward_args args{};
  args.struct_size = sizeof args;
  args.tokens = tokens;
  args.x = x;
  args.w = w;
  args.y = y;
  args.workspace = workspace.memory;
  args.workspace_bytes = workspace.bytes;
  return args;
}

octile_layer_backward_args backward_args(std::int64_t tokens, const octile_layer_operand* dy,
                                         const octile_layer_operand* x,
                                         const octile_layer_operand* w, LayerWorkspace workspace) {
  octile_layer_backward_args args{};
  args.struct_size = sizeof args;
  args.tokens = tokens;
  args.dy = dy;
  args.x = x;
  args.w = w;
  args.workspace = workspace.memory;
  args.workspace_bytes = workspace.bytes;
  return args;
}

octile_layer_forward_args forward_args(const LayerCase& c, const LayerTensors& tensors,
                                       const octile_layer_operand* x, const octile_layer_operand* w,
                                       Guarded& y, Guarded& workspace) {
  octile_layer_forward_args args =
      forward_args(c.tokens, x, w, y.get(), {workspace.get(), workspace.size()});
  args.bias = c.bias ? tensors.bias.data() : nullptr;
  args.group_offsets = tensors.groups();
  return args;
}

octile_layer_backward_args backward_args(const LayerCase& c, const LayerTensors& tensors,
                                         const octile_layer_operand* dy,
                                         const octile_layer_operand* x,
                                         const octile_layer_operand* w, Guarded& workspace) {
  octile_layer_backward_args args =
      backward_args(c.tokens, dy, x, w, {workspace.get(), workspace.size()});
  args.group_offsets = tensors.groups();
  return args;
}

std::string quantizer_text(const LayerCase& c, int role, const char* out, bool sums) {
  const octile_dtype x = role == 1 ? c.weight_dtype : c.dtype;
  return "quantize rows=? cols=" + std::to_string(role == 2 ? c.n : c.k) + " x=" + word_of(x) +
         " q=" + type_text(c, role, false) + " out=" + out +
         (is_delayed(c) && role != 1 ? " policy=delayed" : "") + (sums ? " dbias=1" : "") +
         (role == 1 ? "" : grouping_text(c, false));
}

std::string scale_suffix(const LayerCase& c) {
  return find_recipe(c.recipe)->activation.scale == ScaleFormat::kF32Pow2 ? ":pow2" : "";
}

std::string gemm_text(const LayerCase& c, int pass) {
  const Recipe* recipe = find_recipe(c.recipe);
  const int promote = pass == 0 ? recipe->promote_fprop : recipe->promote_backward;
  const auto extents = [](const std::string& m, const std::string& n, const std::string& k) {
    return "gemm m=" + m + " n=" + n + " k=" + k;
  };
  const std::string n = std::to_string(c.n), k = std::to_string(c.k);
  std::string text = pass == 0   ? extents("?", n, k)
                     : pass == 1 ? extents("?", k, n)
                                 : extents(n, k, "?");
  // Weight gradients with a scale for each column know that scales are powers of two.
  const bool plain = pass != 2 || recipe->activation.granularity != Granularity::k1x128;
  text += " a=" + type_text(c, pass == 0 ? 0 : 2, plain) +
          " b=" + type_text(c, pass == 2 ? 0 : 1, plain);
  text += std::string(" d=") + word_of(pass == 2 ? c.gradient_dtype : c.dtype) +
          " acc=" + (pass == 2 && c.accumulate ? "1" : "0") +
          " promote=" + (promote < 0 ? "none" : std::to_string(promote));
  if (pass == 0 && c.bias) text += " bias=bf16";
  if (c.sentry) text += " sentry=1";
  return text + grouping_text(c, true);
}

LayerResults composed_step(const LibraryHandle& library, const LayerCase& c,
                           const LayerTensors& tensors, std::vector<float> scaling) {
  LayerResults out;
  Composition composition(library, c, tensors, scaling);
  if (c.sentry) out.sentry.assign(3, 0);
  const auto word = [&](int pass) {
    return c.sentry ? &out.sentry.at(static_cast<std::size_t>(pass)) : nullptr;
  };
  const auto result = [](std::int64_t elements, octile_dtype type) {
    Bytes made(filled(elements, type, 0).size());
    return made;
  };
  const auto bytes_of = [](Bytes& memory, std::size_t count) {
    return std::vector<unsigned char>(memory.at<unsigned char>(),
                                      memory.at<unsigned char>() + count);
  };
  Copy x = composition.quantize(0, false, tensors.x, nullptr);
  Copy w = composition.quantize(1, false, tensors.w, nullptr);
  Bytes y = result(c.tokens * c.n, c.dtype);
  std::memset(y.at(), kAddend, filled(c.tokens * c.n, c.dtype, 0).size());
  composition.multiply(0, x, w, y.at(), word(0));
  out.y = bytes_of(y, filled(c.tokens * c.n, c.dtype, 0).size());

  Copy xt = composition.quantize(0, true, tensors.x, nullptr);
  Copy wt = composition.quantize(1, true, tensors.w, nullptr);
  Bytes db(static_cast<std::size_t>(c.n) * sizeof(float));
  Copy dy = composition.quantize(2, false, tensors.dy, c.bias ? db.at<float>() : nullptr);
  Copy dyt = composition.quantize(2, true, tensors.dy, nullptr);
  out.x_transposed = xt.codes_as_vector();
  out.x_scales = xt.scales_as_vector();
  out.db = bytes_of(db, static_cast<std::size_t>(c.n) * sizeof(float));

  const std::size_t dx_bytes = filled(c.tokens * c.k, c.dtype, 0).size();
  Bytes dx(dx_bytes);
  std::memset(dx.at(), kAddend, dx_bytes);
  composition.multiply(1, dy, wt, dx.at(), word(1));
  out.dx = bytes_of(dx, dx_bytes);
  const std::size_t dw_bytes = filled(tensors_of(c) * c.n * c.k, c.gradient_dtype, 0).size();
  Bytes dw(dw_bytes);
  std::memset(dw.at(), kAddend, dw_bytes);
  composition.multiply(2, dyt, xt, dw.at(), word(2));
  out.dw = bytes_of(dw, dw_bytes);
  out.scaling = std::move(scaling);
  return out;
}

void composed_update(const LibraryHandle& library, const LayerCase& c,
                     std::vector<float>& scaling) {
  const std::int64_t e = tensors_of(c);
  for (const int role : {0, 2}) {
    const PlanHandle plan = make_plan(library, "host", quantizer_text(c, role, "row"));
    octile_scale_update_args args{};
    args.struct_size = sizeof args;
    args.encode_scale = scaling.data() + role / 2 * e;
    args.history = scaling.data() + (2 + role / 2 * c.history) * e;
    args.tensors = e;
    args.length = c.history;
    EXPECT_EQ(octile_scale_update_run(plan.get(), &args, nullptr), OCTILE_OK)
        << octile_last_error();
  }
}

}  // namespace octile::test
