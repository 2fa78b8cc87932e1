// The public C API as C++ values: handles that destroy themselves, errors with their sentence.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "generator/core/error.h"
#include "generator/families.h"
#include "octile/octile.h"

namespace octile::tools {

using Json = nlohmann::ordered_json;

// The status of a call with the sentence this thread's octile_last_error() holds.
Status check(octile_status status);

// Options as the environment says. Warnings of the library go to stderr.
class LibraryHandle {
 public:
  // compile_threads 0: one per core.
  static Result<LibraryHandle> create(int compile_threads = 0);
  octile_library* get() const { return library_.get(); }

 private:
  struct Destroy {
    void operator()(octile_library* library) const { octile_library_destroy(library); }
  };
  std::unique_ptr<octile_library, Destroy> library_;
};

// Destroyed before its library.
class PlanHandle {
 public:
  static Result<PlanHandle> create(const LibraryHandle& library, const std::string& device,
                                   const Problem& problem);
  Status prepare(std::int64_t lo, std::int64_t hi) const;
  // As octile_plan_describe documents it.
  Result<Json> describe() const;
  Result<std::size_t> workspace_bytes(std::int64_t tokens) const;
  // struct_size is filled in. `stream` is a CUstream.
  Status run(octile_gemm_args args, void* stream) const;
  Status run(octile_quantize_args args, void* stream) const;
  octile_plan* get() const { return plan_.get(); }

 private:
  struct Destroy {
    void operator()(octile_plan* plan) const { octile_plan_destroy(plan); }
  };
  std::unique_ptr<octile_plan, Destroy> plan_;
};

}  // namespace octile::tools
