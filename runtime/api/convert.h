// Descriptions of the C API as problems.
#pragma once

#include "generator/core/error.h"
#include "generator/core/layout.h"
#include "generator/families.h"
#include "octile/octile.h"

namespace octile::api {

struct NamedValue {
  const char* name;  // of the argument, as the caller wrote it
  int value;
};

// Format 0 is the granularity's default. Errors: kInvalidArgument, naming the argument. Whether
// such a tensor is supported is not asked here.
Result<TensorType> tensor_type(NamedValue dtype, NamedValue granularity, NamedValue format);

octile_quantized_layout to_public(const QuantizedLayout& layout);

Result<GemmProblem> to_problem(const octile_gemm_desc* user);
Result<QuantizeProblem> to_problem(const octile_quantize_desc* user);

}  // namespace octile::api
