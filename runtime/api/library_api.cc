// The C API from octile_version to octile_library_destroy, octile_quantized_layout_query,
// octile_recipe_at, octile_measure_loss and octile_sum_of_squares.
#include <fmt/format.h>

#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "generator/core/device_spec.h"
#include "generator/core/layout.h"
#include "generator/core/recipe.h"
#include "runtime/api/boundary.h"
#include "runtime/api/convert.h"
#include "runtime/base/environment.h"
#include "runtime/reference/gemm/squares.h"
#include "runtime/reference/quantize/inspect.h"

namespace octile::api {
namespace {

// Returns the non-empty parts of "a:b:c".
std::vector<std::string> split_roots(std::string_view text) {
  std::vector<std::string> roots;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(':'), text.size());
    if (end > 0) roots.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return roots;
}

// A variable with a value that is not allowed counts as unset; warn_of_environment() names it.
EngineOptions engine_options(const octile_library_options& options) {
  EngineOptions engine;
  engine.offline = options.offline != 0 || environment_switch("OCTILE_OFFLINE", false);
  engine.tuning = environment_tuning().records;
  if (options.disable_cache != 0) return engine;
  engine.max_bytes = environment_bytes("OCTILE_CACHE_MAX_BYTES", engine.max_bytes);
  engine.writable_root =
      options.cache_dir != nullptr
          ? cache::root_for_this_user(options.cache_dir)
          : cache::default_root(environment_value("OCTILE_CACHE_DIR").value_or(""),
                                environment_value("XDG_CACHE_HOME").value_or(""),
                                environment_value("HOME").value_or(""));
  engine.read_only_roots = split_roots(options.cache_roots != nullptr
                                           ? std::string(options.cache_roots)
                                           : environment_value("OCTILE_CACHE_ROOTS").value_or(""));
  return engine;
}

Logger::Callback log_callback(const octile_library_options& options) {
  if (options.log == nullptr) return nullptr;
  return [log = options.log, user = options.log_user](LogLevel level, const std::string& message) {
    log(static_cast<octile_log_level>(level), message.c_str(), user);
  };
}

Result<LibraryOptions> library_options(const octile_library_options* user) {
  octile_library_options options{};
  options.log_level = OCTILE_LOG_WARNING;
  if (user != nullptr)
    if (Status ok = read_struct("options", user, options); !ok)
      return tl::unexpected<Error>(ok.error());
  const int level = raw(options.log_level);
  if (Status ok = check_enum("options->log_level", "octile_log_level", level, OCTILE_LOG_DEBUG,
                             OCTILE_LOG_ERROR);
      !ok)
    return tl::unexpected<Error>(ok.error());
  constexpr int kMaxThreads = 1024;
  if (options.compile_threads < 0 || options.compile_threads > kMaxThreads)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("options->compile_threads is {}; allowed: 0 (one per core) to {}",
                            options.compile_threads, kMaxThreads));
  return LibraryOptions{engine_options(options), log_callback(options),
                        static_cast<LogLevel>(level), options.compile_threads,
                        environment_tuning()};
}

void warn_of_environment(Logger& logger) {
  for (const std::string& sentence : environment_warnings())
    logger.log(LogLevel::kWarning, sentence);
}

Status destroy(octile_library* library) {
  if (library == nullptr) return {};
  if (Status ok = require_live("library", library); !ok) return ok;
  struct Handles {
    const char* one;
    const char* several;
    int count;
  };
  const Library& owner = library->library;
  for (const auto& [one, several, count] :
       {Handles{"plan", "plans", owner.plans.load()},
        {"layer", "layers", owner.layers.load()},
        {"weight", "weights", owner.weights.load()},
        {"set of pieces", "sets of pieces", owner.pieces.load()}}) {
    if (count != 0)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("library has {} {}; allowed: none, destroy them first", count,
                              count == 1 ? one : several));
  }
  // One of two threads that destroy it gets here.
  if (Status ok = forget_handle("library", library); !ok) return ok;
  delete library;
  return {};
}

Status query_layout(const octile_dtype& dtype, const octile_granularity& granularity,
                    const octile_scale_format& format, std::int64_t rows, std::int64_t cols,
                    bool transposed, octile_quantized_layout* out) {
  auto type = tensor_type({"dtype", raw(dtype)}, {"granularity", raw(granularity)},
                          {"format", raw(format)});
  if (!type) return tl::unexpected<Error>(type.error());
  const auto layout = quantized_layout(*type, rows, cols, 0, transposed);
  if (!layout) return tl::unexpected<Error>(layout.error());
  return write_struct("layout", to_public(*layout), out);
}

Status write_recipe(std::int32_t index, octile_recipe* out) {
  const auto all = recipes();
  if (index < 0 || static_cast<std::size_t>(index) >= all.size()) {
    return refuse(fmt::format("index is {}; allowed are 0 to {}", index, all.size() - 1));
  }
  const Recipe& recipe = all[static_cast<std::size_t>(index)];
  octile_recipe result{};
  result.name = recipe.name.data();  // a literal
  result.activation = to_public(recipe.activation);
  result.weight = to_public(recipe.weight);
  result.gradient = to_public(recipe.gradient);
  result.promote_forward = recipe.promote_fprop;
  result.promote_backward = recipe.promote_backward;
  result.delayed = recipe.delayed ? 1 : 0;
  return write_struct("recipe", result, out);
}

Status write_sum(const octile_squares* squares, double* sum) {
  if (squares == nullptr) return refuse("squares is null; allowed: a sum in host memory");
  if (sum == nullptr) return refuse("sum is null; allowed: a place for the result");
  *sum = sum_of_squares(*squares);
  return {};
}

// A matrix in the caller's memory.
class CallerMatrix : public reference::MatrixSource {
 public:
  CallerMatrix(DType dtype, const void* x, std::int64_t rows, std::int64_t cols, std::int64_t ldx)
      : dtype_(dtype), x_(x), rows_(rows), cols_(cols), ldx_(ldx) {}
  DType dtype() const override { return dtype_; }
  std::int64_t rows() const override { return rows_; }
  std::int64_t cols() const override { return cols_; }
  std::size_t scratch_bytes(std::int64_t /*elements*/) const override { return 0; }
  Result<reference::Panel> read(const reference::PanelPlace& place,
                                std::span<std::byte> /*scratch*/) const override {
    const std::int64_t element = place.row * ldx_ + place.col;
    const std::int64_t bytes = dtype_ == DType::kFP32 ? 4 : 2;
    return reference::Panel{static_cast<const std::byte*>(x_) + element * bytes, ldx_};
  }

 private:
  DType dtype_;
  const void* x_;
  std::int64_t rows_, cols_, ldx_;
};

Status check_matrix(NamedValue source, const void* x, std::int64_t rows, std::int64_t cols,
                    std::int64_t ldx) {
  constexpr std::int64_t kMostExtent = (std::int64_t{1} << 31) - 1;
  if (source.value < OCTILE_BF16 || source.value > OCTILE_FP32)
    return refuse(fmt::format("source is {}; allowed: OCTILE_BF16, OCTILE_FP16 and OCTILE_FP32",
                              source.value));
  for (const auto& [name, extent] : {std::pair("rows", rows), {"cols", cols}}) {
    if (extent < 1 || extent > kMostExtent)
      return refuse(fmt::format("{} is {}; allowed: 1 to {}", name, extent, kMostExtent));
  }
  if (ldx != 0 && ldx < cols)
    return refuse(fmt::format("ldx is {}; allowed: 0, or at least cols = {}", ldx, cols));
  return require("x", x);
}

octile_loss to_public(const reference::ValueCounts& values, const reference::Loss& loss) {
  octile_loss out{};
  out.elements = values.elements;
  out.zeros = values.zeros;
  out.nans = values.nans;
  out.infinities = values.infinities;
  out.amax = static_cast<double>(values.amax);
  out.signal = loss.signal;
  out.noise = loss.noise;
  out.rest_signal = loss.rest_signal;
  out.rest_noise = loss.rest_noise;
  out.bulk_signal = loss.bulk_signal;
  out.bulk_noise = loss.bulk_noise;
  out.nonzero = loss.nonzero;
  out.flushed = loss.flushed;
  out.saturated = loss.saturated;
  out.blocks = loss.blocks;
  out.set_by_one = loss.set_by_one;
  static_assert(std::size(decltype(out.worst){}) == reference::Loss::kMostWorst);
  for (const reference::BlockLoss& block : loss.worst()) {
    out.worst[out.worst_count++] = {block.row,
                                    block.col,
                                    block.rows,
                                    block.cols,
                                    block.noise_share,
                                    block.flushed_share,
                                    static_cast<double>(block.amax),
                                    block.is_set_by_one ? 1 : 0};
  }
  return out;
}

Result<std::vector<TensorType>> loss_types(const octile_tensor_type* types, std::int32_t count) {
  constexpr std::int32_t kMost = 64;
  if (count < 1 || count > kMost)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("count is {}; allowed: 1 to {}", count, kMost));
  if (Status ok = require("types", types); !ok) return tl::unexpected<Error>(ok.error());
  std::vector<TensorType> all;
  for (std::int32_t i = 0; i < count; ++i) {
    const auto name_of = [i](const char* field) { return fmt::format("types[{}].{}", i, field); };
    const std::string dtype = name_of("dtype"), granularity = name_of("granularity"),
                      format = name_of("scale_format");
    const auto type = tensor_type({dtype.c_str(), raw(types[i].dtype)},
                                  {granularity.c_str(), raw(types[i].granularity)},
                                  {format.c_str(), raw(types[i].scale_format)});
    if (!type) return tl::unexpected<Error>(type.error());
    if (!is_fp8(type->dtype))
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} is {}; allowed: OCTILE_E4M3 and OCTILE_E5M2", dtype,
                              static_cast<int>(type->dtype)));
    all.push_back(*type);
  }
  return all;
}

// Checks the structs for results, so that a call that is refused writes none of them.
Status check_losses(octile_loss* const* losses, std::size_t count) {
  if (Status ok = require("losses", losses); !ok) return ok;
  for (std::size_t i = 0; i < count; ++i) {
    const Status ok =
        check_struct(fmt::format("losses[{}]", i).c_str(), losses[i], FirstSize<octile_loss>::value,
                     sizeof(octile_loss), alignof(octile_loss));
    if (!ok) return ok;
  }
  return {};
}

Status measure_loss(const CallerMatrix& matrix, std::span<const TensorType> types, double sample,
                    octile_loss* const* out) {
  const bool is_share = sample > 0 && sample <= 1;  // a NaN is none
  if (!is_share) return refuse(fmt::format("sample is {}; allowed: above 0, up to 1", sample));
  const auto measured = reference::inspect(matrix, types, {.sample = sample});
  if (!measured) return tl::unexpected<Error>(measured.error());
  for (std::size_t i = 0; i < types.size(); ++i) {
    Status ok = write_struct("losses", to_public(measured->values, measured->losses[i]), out[i]);
    if (!ok) return ok;
  }
  return {};
}

constexpr std::array kStatusNames{
    "OCTILE_OK",        "OCTILE_INVALID_ARGUMENT", "OCTILE_UNSUPPORTED",    "OCTILE_NOT_PREPARED",
    "OCTILE_NO_DRIVER", "OCTILE_NO_COMPILER",      "OCTILE_COMPILE_FAILED", "OCTILE_DEVICE_ERROR",
    "OCTILE_OFFLINE",   "OCTILE_OUT_OF_MEMORY",    "OCTILE_CAPTURING",      "OCTILE_INTERNAL",
    "OCTILE_FILE_ERROR"};
static_assert(kStatusNames.size() == OCTILE_FILE_ERROR + 1);

}  // namespace
}  // namespace octile::api

using namespace octile::api;  // NOLINT(google-build-using-namespace): the C functions are its face

void octile_version(int* major, int* minor, int* patch) {
  if (major != nullptr) *major = OCTILE_VERSION_MAJOR;
  if (minor != nullptr) *minor = OCTILE_VERSION_MINOR;
  if (patch != nullptr) *patch = OCTILE_VERSION_PATCH;
}

const char* octile_status_name(octile_status status) {
  const auto index = static_cast<std::size_t>(raw(status));
  return index < kStatusNames.size() ? kStatusNames[index] : "unknown octile_status";
}

const char* octile_last_error(void) { return last_error(); }

octile_status octile_library_create(const octile_library_options* options,
                                    octile_library** library) {
  return call([&]() -> octile::Status {
    if (octile::Status ok = require("library", library); !ok) return ok;
    auto cpp = library_options(options);
    if (!cpp) return tl::unexpected<octile::Error>(cpp.error());
    octile::find_device("");  // makes the table of devices before a fork can interrupt that
    std::unique_ptr<octile_library> handle(new octile_library{octile::Library(std::move(*cpp))});
    octile::api::warn_of_environment(handle->library.logger);
    note_handle(handle.get());
    *library = handle.release();
    return {};
  });
}

octile_status octile_library_destroy(octile_library* library) {
  return call([&] { return destroy(library); });
}

octile_status octile_quantized_layout_query(octile_dtype dtype, octile_granularity granularity,
                                            octile_scale_format format, int64_t rows, int64_t cols,
                                            int32_t transposed, octile_quantized_layout* layout) {
  return call([&] {
    return query_layout(dtype, granularity, format, rows, cols, transposed != 0, layout);
  });
}

octile_status octile_recipe_at(int32_t index, octile_recipe* recipe) {
  return call([&] { return write_recipe(index, recipe); });
}

octile_status octile_measure_loss(octile_dtype source, const void* x, int64_t rows, int64_t cols,
                                  int64_t ldx, const octile_tensor_type* types, int32_t count,
                                  double sample, octile_loss* const* losses) {
  return call([&]() -> octile::Status {
    const auto asked = loss_types(types, count);
    if (!asked) return tl::unexpected<octile::Error>(asked.error());
    // Checked first, so that nothing is measured in vain.
    if (octile::Status ok = check_losses(losses, asked->size()); !ok) return ok;
    if (octile::Status ok = check_matrix({"source", raw(source)}, x, rows, cols, ldx); !ok)
      return ok;
    const CallerMatrix matrix(static_cast<octile::DType>(raw(source)), x, rows, cols,
                              ldx == 0 ? cols : ldx);
    return measure_loss(matrix, *asked, sample, losses);
  });
}

octile_status octile_sum_of_squares(const octile_squares* squares, double* sum) {
  return call([&] { return write_sum(squares, sum); });
}
