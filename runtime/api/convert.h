// Converts structs of the C API to the library's own types.
#pragma once

#include <cstddef>
#include <string>

#include "generator/core/error.h"
#include "generator/core/layout.h"
#include "generator/gemm/problem.h"
#include "generator/quantize/problem.h"
#include "octile/octile.h"
#include "runtime/engine/target.h"
#include "runtime/families/gemm/arguments.h"
#include "runtime/families/quantize/arguments.h"

namespace octile::api {

struct NamedValue {
  const char* name;  // the argument's, as the caller wrote it
  int value;
};

// Returns the type; format 0 is the granularity's default. Errors: kInvalidArgument, naming the
// argument. The support matrix is not asked here.
Result<TensorType> tensor_type(NamedValue dtype, NamedValue granularity, NamedValue format);

// Refuses a text that is too long for its kind, before any sentence quotes it.
Status check_length(const char* name, const char* text);

// The device that a caller named; null is "cuda". Errors: as resolve_target.
Status check_device(const char* device);
Result<Target> target_of(const char* device);

// Writes a text for a caller who gave the buffer's bytes, or only its size if the buffer is null.
Status write_text(const std::string& text, char* buffer, std::size_t* size);

octile_quantized_layout to_public(const QuantizedLayout& layout);
octile_tensor_type to_public(const TensorType& type);

Result<GemmProblem> to_problem(const octile_gemm_desc* user);
Result<QuantizeProblem> to_problem(const octile_quantize_desc* user);

// Reads the arguments of a run, with the features' structs that the caller gave.
Status read_arguments(const octile_gemm_args* user, GemmArguments& out);
Status read_arguments(const octile_quantize_args* user, QuantizeArguments& out);
Status read_arguments(const octile_scale_update_args* user, octile_scale_update_args& out);

}  // namespace octile::api
