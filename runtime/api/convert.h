// Structs of the C API as the types that the library works with.
#pragma once

#include "generator/core/error.h"
#include "generator/core/layout.h"
#include "octile/octile.h"
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

octile_quantized_layout to_public(const QuantizedLayout& layout);
octile_tensor_type to_public(const TensorType& type);

Result<GemmProblem> to_problem(const octile_gemm_desc* user);
Result<QuantizeProblem> to_problem(const octile_quantize_desc* user);

// Reads the arguments of a run, with the features' structs that the caller gave.
Status read_arguments(const octile_gemm_args* user, GemmArguments& out);
Status read_arguments(const octile_quantize_args* user, QuantizeArguments& out);
Status read_arguments(const octile_scale_update_args* user, octile_scale_update_args& out);

}  // namespace octile::api
