// The C API from octile_*_plan_create to octile_*_run.
#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "runtime/api/boundary.h"
#include "runtime/api/convert.h"
#include "runtime/api/prepare.h"
#include "runtime/engine/describe.h"
#include "runtime/engine/plan_run.h"

namespace octile::api {
namespace {

template <typename P>
Status create_plan(octile_library* library, const char* device, Result<P> problem,
                   octile_plan** out) {
  if (Status ok = check_device(device); !ok) return ok;
  if (!problem) return tl::unexpected<Error>(problem.error());
  auto target = target_of(device);
  if (!target) return tl::unexpected<Error>(target.error());
  auto plan = Plan::create(library->library, std::move(*problem), std::move(*target));
  if (!plan) return tl::unexpected<Error>(plan.error());
  auto handle = std::unique_ptr<octile_plan>(new octile_plan{std::move(*plan), &library->library});
  note_handle(handle.get());
  *out = handle.release();
  ++library->library.plans;
  return {};
}

Status check_handles(octile_library* library, octile_plan** plan) {
  if (Status ok = require_handle("library", library); !ok) return ok;
  return require("plan", plan);
}

Status prepare_plan(octile_plan* plan, std::int64_t lo, std::int64_t hi,
                    const Result<PrepareRequest>& request) {
  if (Status ok = require_handle("plan", plan); !ok) return ok;
  if (!request) return tl::unexpected<Error>(request.error());
  const Plan::Range range{plan->plan.get(), lo, hi};
  return prepare(*plan->library, {&range, 1}, *request);
}

template <typename Arguments, typename User>
Status run(octile_plan* plan, const User* user, void* stream) {
  if (Status ok = require_handle("plan", plan); !ok) return ok;
  Arguments args{};
  if (Status ok = read_arguments(user, args); !ok) return ok;
  return plan->plan->run(args, static_cast<CUstream>(stream));
}

}  // namespace
}  // namespace octile::api

using namespace octile::api;  // NOLINT(google-build-using-namespace): the C functions are its face
using octile::Status;

octile_status octile_gemm_plan_create(octile_library* library, const char* device,
                                      const octile_gemm_desc* desc, octile_plan** plan) {
  return call([&]() -> Status {
    if (Status ok = check_handles(library, plan); !ok) return ok;
    return create_plan(library, device, to_problem(desc), plan);
  });
}

octile_status octile_quantize_plan_create(octile_library* library, const char* device,
                                          const octile_quantize_desc* desc, octile_plan** plan) {
  return call([&]() -> Status {
    if (Status ok = check_handles(library, plan); !ok) return ok;
    return create_plan(library, device, to_problem(desc), plan);
  });
}

octile_status octile_plan_create(octile_library* library, const char* device, const char* problem,
                                 octile_plan** plan) {
  return call([&]() -> Status {
    if (Status ok = check_handles(library, plan); !ok) return ok;
    if (Status ok = require("problem", problem); !ok) return ok;
    if (Status ok = check_length("problem", problem); !ok) return ok;
    return create_plan(library, device, octile::parse_problem(problem), plan);
  });
}

octile_status octile_plan_destroy(octile_plan* plan) {
  return call([&]() -> Status {
    if (plan == nullptr) return {};
    if (Status ok = forget_handle("plan", plan); !ok) return ok;
    octile::Library& library = *plan->library;
    delete plan;
    --library.plans;
    return {};
  });
}

octile_status octile_plan_prepare(octile_plan* plan, int64_t lo, int64_t hi, uint32_t flags) {
  return call([&] { return prepare_plan(plan, lo, hi, read_prepare_flags(flags)); });
}

octile_status octile_plan_prepare_with(octile_plan* plan, int64_t lo, int64_t hi,
                                       const octile_prepare_options* options) {
  return call([&] { return prepare_plan(plan, lo, hi, read_prepare_options(options)); });
}

octile_status octile_plan_wait(octile_plan* plan) {
  return call([&]() -> Status {
    if (Status ok = require_handle("plan", plan); !ok) return ok;
    return plan->plan->wait();
  });
}

octile_status octile_plan_problem(octile_plan* plan, char* buffer, size_t* size) {
  return call([&]() -> Status {
    if (Status ok = require_handle("plan", plan); !ok) return ok;
    if (Status ok = require("size", size); !ok) return ok;
    return write_text(octile::to_text(plan->plan->problem()), buffer, size);
  });
}

octile_status octile_plan_describe(octile_plan* plan, char* buffer, size_t* size) {
  return call([&]() -> Status {
    if (Status ok = require_handle("plan", plan); !ok) return ok;
    if (Status ok = require("size", size); !ok) return ok;
    return write_text(describe(*plan->plan), buffer, size);
  });
}

octile_status octile_plan_workspace_size(octile_plan* plan, int64_t tokens, size_t* bytes) {
  return call([&]() -> Status {
    if (Status ok = require_handle("plan", plan); !ok) return ok;
    if (Status ok = require("bytes", bytes); !ok) return ok;
    auto size = plan->plan->workspace_bytes(tokens);
    if (!size) return tl::unexpected<octile::Error>(size.error());
    *bytes = *size;
    return {};
  });
}

octile_status octile_plan_quantized_layout(octile_plan* plan, int64_t rows, int64_t groups,
                                           int32_t transposed, octile_quantized_layout* layout) {
  return call([&]() -> Status {
    if (Status ok = require_handle("plan", plan); !ok) return ok;
    if (Status ok = require("layout", layout); !ok) return ok;
    auto sizes = plan->plan->quantized_layout(rows, groups, transposed != 0);
    if (!sizes) return tl::unexpected<octile::Error>(sizes.error());
    return write_struct("layout", to_public(*sizes), layout);
  });
}

octile_status octile_gemm_run(octile_plan* plan, const octile_gemm_args* args, void* stream) {
  return call([&] { return run<octile::GemmArguments>(plan, args, stream); });
}

octile_status octile_quantize_run(octile_plan* plan, const octile_quantize_args* args,
                                  void* stream) {
  return call([&] { return run<octile::QuantizeArguments>(plan, args, stream); });
}

octile_status octile_scale_update_run(octile_plan* plan, const octile_scale_update_args* args,
                                      void* stream) {
  return call([&] { return run<octile_scale_update_args>(plan, args, stream); });
}
