// Checks that the problems of several families share. Each names the field, its value and what is
// allowed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "generator/core/error.h"
#include "generator/core/types.h"

namespace octile {

// Returns the error "`field` is `value`; allowed `allowed`".
Status refuse_field(std::string_view field, std::string_view value, std::string_view allowed);

// The count is >= 0, or kDynamic if that is allowed.
Status check_count(std::string_view name, std::int64_t value, bool dynamic_allowed);

// FP8 types have scales, and no other type has.
Status check_type(std::string_view name, const TensorType& type);

// A known value is a multiple of `multiple`; `why` ends the sentence.
Status check_multiple(std::string_view field, std::int64_t value, std::int64_t multiple,
                      std::string_view why);

// A tensor has at most 2^63-1 bytes, padding included. A dynamic extent counts as 0 here; the call
// that brings it checks it. `tensor` names it: "A[m,k]".
Status check_quantized_size(std::string_view tensor, const TensorType& type, std::int64_t rows,
                            std::int64_t cols, bool transposed = false);
Status check_plain_size(std::string_view tensor, DType dtype, std::int64_t rows, std::int64_t cols);

}  // namespace octile
