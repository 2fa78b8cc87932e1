#include "tools/common/handles.h"

#include <algorithm>
#include <sstream>

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

Result<LibraryHandle> LibraryHandle::create_silent(int compile_threads) {
  octile_library_options options{};
  options.compile_threads = compile_threads;
  return create(options);
}

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
  return parse_object(text, "octile_plan_describe").map_error([](const std::string& sentence) {
    return Error{ErrorCode::kInternal, sentence};
  });
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

Status PlanHandle::run(octile_quantize_args args, void* stream) const {
  args.struct_size = sizeof args;
  return check(octile_quantize_run(plan_.get(), &args, stream));
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

Status LayerHandle::prepare(std::int64_t tokens, std::uint32_t uses) const {
  return check(octile_layer_prepare(layer_.get(), tokens, tokens, uses));
}

Result<std::vector<std::string>> LayerHandle::problems(std::uint32_t uses) const {
  std::size_t size = 0;
  Status ok = check(octile_layer_problems(layer_.get(), uses, nullptr, &size));
  std::string text(size, '\0');
  if (ok) ok = check(octile_layer_problems(layer_.get(), uses, text.data(), &size));
  if (!ok) return tl::unexpected<Error>(ok.error());
  std::vector<std::string> lines;
  std::istringstream stream(text.c_str());  // the buffer ends in a NUL
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

Result<octile_quantized_layout> LayerHandle::copy_layout(octile_layer_tensor tensor,
                                                         bool transposed,
                                                         std::int64_t tokens) const {
  octile_quantized_layout layout{};
  layout.struct_size = sizeof layout;
  const Status ok =
      check(octile_layer_copy_layout(layer_.get(), tensor, transposed ? 1 : 0, tokens, &layout));
  if (!ok) return tl::unexpected<Error>(ok.error());
  return layout;
}

Result<std::size_t> LayerHandle::workspace_bytes(std::int64_t tokens, std::uint32_t uses) const {
  std::size_t forward = 0, backward = 0;
  const Status ok =
      check(octile_layer_workspace_size(layer_.get(), tokens, uses, &forward, &backward));
  if (!ok) return tl::unexpected<Error>(ok.error());
  return std::max(forward, backward);
}

Status LayerHandle::run(octile_layer_quantize_args args, void* stream) const {
  args.struct_size = sizeof args;
  return check(octile_layer_quantize(layer_.get(), &args, stream));
}

Status LayerHandle::run(octile_layer_forward_args args, void* stream) const {
  args.struct_size = sizeof args;
  return check(octile_layer_forward(layer_.get(), &args, stream));
}

Status LayerHandle::run(octile_layer_backward_args args, void* stream) const {
  args.struct_size = sizeof args;
  return check(octile_layer_backward(layer_.get(), &args, stream));
}

octile_layer_operand layer_operand(octile_layer_state state, const void* source,
                                   octile_layer_copy rowwise, octile_layer_copy transposed) {
  octile_layer_operand operand{};
  operand.struct_size = sizeof operand;
  operand.source = source;
  operand.rowwise = rowwise;
  operand.transposed = transposed;
  operand.state = state;
  return operand;
}

}  // namespace octile::tools
