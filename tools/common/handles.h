// The public C API as C++ values: handles that destroy themselves, and errors with a sentence.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cache/json.h"
#include "generator/core/error.h"
#include "generator/families.h"
#include "octile/layers.h"
#include "octile/octile.h"

namespace octile::tools {

// Returns the status of a call, with this thread's octile_last_error() as its sentence.
Status check(octile_status status);

// A library with the options of the environment. Its warnings go to stderr.
class LibraryHandle {
 public:
  // If compile_threads is 0, there is one thread per core.
  static Result<LibraryHandle> create(int compile_threads = 0);
  // Its warnings go nowhere.
  static Result<LibraryHandle> create_silent(int compile_threads = 0);
  octile_library* get() const { return library_.get(); }

 private:
  static Result<LibraryHandle> create(octile_library_options options);
  struct Destroy {
    void operator()(octile_library* library) const { octile_library_destroy(library); }
  };
  std::unique_ptr<octile_library, Destroy> library_;
};

// A plan, which must be destroyed before its library.
class PlanHandle {
 public:
  static Result<PlanHandle> create(const LibraryHandle& library, const std::string& device,
                                   const Problem& problem);
  Status prepare(std::int64_t lo, std::int64_t hi) const;
  // Returns the document that octile_plan_describe describes.
  Result<Json> describe() const;
  Result<std::size_t> workspace_bytes(std::int64_t tokens) const;
  // Fills in struct_size. `stream` is a CUstream.
  Status run(octile_gemm_args args, void* stream) const;
  Status run(octile_quantize_args args, void* stream) const;
  octile_plan* get() const { return plan_.get(); }

 private:
  struct Destroy {
    void operator()(octile_plan* plan) const { octile_plan_destroy(plan); }
  };
  std::unique_ptr<octile_plan, Destroy> plan_;
};

// A layer, which must be destroyed before its library.
class LayerHandle {
 public:
  // Fills in struct_size.
  static Result<LayerHandle> create(const LibraryHandle& library, const std::string& device,
                                    octile_layer_desc desc);
  // uses: octile_layer_use bits.
  Status prepare(std::int64_t tokens, std::uint32_t uses) const;
  // Returns the texts of the problems that prepare compiles for these uses, in its order.
  Result<std::vector<std::string>> problems(std::uint32_t uses) const;
  Result<octile_quantized_layout> copy_layout(octile_layer_tensor tensor, bool transposed,
                                              std::int64_t tokens) const;
  // Returns what any call with these uses needs.
  Result<std::size_t> workspace_bytes(std::int64_t tokens, std::uint32_t uses) const;
  // Fill in struct_size. `stream` is a CUstream.
  Status run(octile_layer_quantize_args args, void* stream) const;
  Status run(octile_layer_forward_args args, void* stream) const;
  Status run(octile_layer_backward_args args, void* stream) const;
  octile_layer* get() const { return layer_.get(); }

 private:
  struct Destroy {
    void operator()(octile_layer* layer) const { octile_layer_destroy(layer); }
  };
  std::unique_ptr<octile_layer, Destroy> layer_;
};

// Returns an operand that a call quantises or has as current, as `state` says.
octile_layer_operand layer_operand(octile_layer_state state, const void* source,
                                   octile_layer_copy rowwise, octile_layer_copy transposed = {});

}  // namespace octile::tools
