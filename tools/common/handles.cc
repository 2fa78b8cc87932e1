#include "tools/common/handles.h"

#include "tools/common/output.h"

namespace octile::tools {
namespace {

void print_warning(octile_log_level level, const char* message, void*) {
  print_stderr("octile: {}{}\n", level >= OCTILE_LOG_ERROR ? "" : "warning: ", message);
}

}  // namespace

Status check(octile_status status) {
  if (status == OCTILE_OK) return {};
  return fail(static_cast<ErrorCode>(status), octile_last_error());
}

Result<LibraryHandle> LibraryHandle::create(int compile_threads) {
  octile_library_options options{};
  options.log = print_warning;
  options.compile_threads = compile_threads;
  return create(options);
}

Result<LibraryHandle> LibraryHandle::create_silent() { return create(octile_library_options{}); }

Result<LibraryHandle> LibraryHandle::create(octile_library_options options) {
  options.struct_size = sizeof options;
  options.log_level = OCTILE_LOG_WARNING;
  octile_library* library = nullptr;
  if (Status ok = check(octile_library_create(&options, &library)); !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  LibraryHandle handle;
  handle.library_.reset(library);
  return handle;
}

Result<PlanHandle> PlanHandle::create(const LibraryHandle& library, const std::string& device,
                                      const Problem& problem) {
  octile_plan* plan = nullptr;
  const std::string text = to_text(problem);
  if (Status ok = check(octile_plan_create(library.get(), device.c_str(), text.c_str(), &plan));
      !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  PlanHandle handle;
  handle.plan_.reset(plan);
  return handle;
}

Status PlanHandle::prepare(std::int64_t lo, std::int64_t hi) const {
  return check(octile_plan_prepare(plan_.get(), lo, hi, OCTILE_PREPARE_DEFAULT));
}

Result<Json> PlanHandle::describe() const {
  std::size_t size = 0;
  if (Status ok = check(octile_plan_describe(plan_.get(), nullptr, &size)); !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  std::string text(size, '\0');
  if (Status ok = check(octile_plan_describe(plan_.get(), text.data(), &size)); !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  text.resize(size - 1);  // without the terminator
  return Json::parse(text);
}

Result<std::size_t> PlanHandle::workspace_bytes(std::int64_t tokens) const {
  std::size_t bytes = 0;
  if (Status ok = check(octile_plan_workspace_size(plan_.get(), tokens, &bytes)); !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  return bytes;
}

Status PlanHandle::run(octile_gemm_args args, void* stream) const {
  args.struct_size = sizeof args;
  return check(octile_gemm_run(plan_.get(), &args, stream));
}

Result<LayerHandle> LayerHandle::create(const LibraryHandle& library, const std::string& device,
                                        octile_layer_desc desc) {
  desc.struct_size = sizeof desc;
  octile_layer* layer = nullptr;
  Status ok = check(octile_layer_create(library.get(), device.c_str(), &desc, &layer));
  if (!ok) return tl::unexpected<Error>(ok.error());
  LayerHandle handle;
  handle.layer_.reset(layer);
  return handle;
}

Status PlanHandle::run(octile_quantize_args args, void* stream) const {
  args.struct_size = sizeof args;
  return check(octile_quantize_run(plan_.get(), &args, stream));
}

}  // namespace octile::tools
