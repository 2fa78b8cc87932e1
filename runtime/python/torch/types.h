// Types of quantised tensors: as the library numbers them, as problem texts name them, and what
// tensors of PyTorch hold them.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_TYPES_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_TYPES_H_

#include <cstdint>
#include <string>

#include "octile/octile.h"
#include "tensors.h"

namespace octile::binding {

// The name of a type in problem texts, such as "e4m3".
const char* name_of(octile_dtype type);

// "e4m3:1x128:pow2", as the canonical text of a quantiser's problem names the type: without a
// format that is the granularity's default.
std::string text_of(const octile_tensor_type& type);
// The same as a GEMM's text names it. GEMMs multiply by fp32 scales, powers of two or not, so their
// texts tell the two apart no more than tuned configurations do.
std::string operand_text(const octile_tensor_type& type);

// Reads all three parts of a type, such as "e4m3:1x128:f32". Throws std::invalid_argument, naming
// the argument, for any other text: what is written into a problem's text are the names of this
// file, never the caller's.
octile_tensor_type type_named(const std::string& text, const char* argument);

// PyTorch's number of the element type that scales of this format have, and its bytes.
std::int32_t torch_scale_type(octile_scale_format format);
std::int64_t scale_bytes(octile_scale_format format);

// The sizes of a [rows, cols] tensor of this type, or of its transposed copy.
octile_quantized_layout layout_of(const octile_tensor_type& type, std::int64_t rows,
                                  std::int64_t cols, bool transposed);

// Throws std::invalid_argument, naming `argument`, unless `codes` has rows x cols FP8 codes, in
// rows that may be padded, on `place`.
void check_codes(const Tensor& codes, const octile_tensor_type& type, std::int64_t rows,
                 std::int64_t cols, const Place& place, const char* argument);

// The same. Throws also unless `scales` have the layout of octile_quantized_layout_query,
// contiguous and of any shape, on `place`.
void check_quantized(const Tensor& codes, const Tensor& scales, const octile_tensor_type& type,
                     std::int64_t rows, std::int64_t cols, const Place& place,
                     const char* argument);

// Throws std::invalid_argument unless `codes` is contiguous [rows, columns] of this type on
// `place`, as an operator has returned it.
void check_copy(const Tensor& codes, const octile_tensor_type& type, std::int64_t rows,
                std::int64_t columns, const Place& place, const std::string& argument);

// Throws std::invalid_argument unless `scales` are `count` of this format, contiguous, on `place`.
void check_scales(const Tensor& scales, octile_scale_format format, std::int64_t count,
                  const Place& place, const std::string& argument);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_TYPES_H_
