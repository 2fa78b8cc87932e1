// The C API from octile_version to octile_library_destroy, octile_quantized_layout_query,
// octile_recipe_at and octile_sum_of_squares.
#include <fmt/format.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "generator/core/device_spec.h"
#include "generator/core/layout.h"
#include "generator/core/recipe.h"
#include "runtime/api/boundary.h"
#include "runtime/api/convert.h"
#include "runtime/base/environment.h"
#include "runtime/reference/gemm/squares.h"

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

octile_status octile_sum_of_squares(const octile_squares* squares, double* sum) {
  return call([&] { return write_sum(squares, sum); });
}
